"""An image in RGB565 as a value of a structured type: a graph decodes it and computes its brightness.

    python examples/rgb565_image.py

The model says what every bit of a pixel is: five for blue, six for green, five for red. Whoever reads the model can decode
it, for the decoder is a function of the model.
"""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tenonnx import Session, structs
from tenonnx.schema.messages import from_onnx

HEIGHT, WIDTH = 6, 48
rgb565 = structs.catalogue["RGB565"]

# A picture: red grows to the right, green downwards, blue to the left. Packed from its fields, two bytes a pixel.
across, down = np.meshgrid(np.linspace(0, 1, WIDTH), np.linspace(0, 1, HEIGHT))
fields = {"r": across * 31, "g": down * 63, "b": (1 - across) * 31}
pixel = {name: np.rint(values).astype(np.uint8).reshape(-1, 1) for name, values in fields.items()}
picture = rgb565.pack((HEIGHT, WIDTH, 3), pixel=pixel)
assert picture.nbytes == 2 * HEIGHT * WIDTH

# A graph over it: FLOAT[height, width, 3] by the type's own decoder, then the weights of ITU-R BT.709 for brightness.
graph = helper.make_graph(
    [
        helper.make_node("StructDecode", ["picture"], ["rgb"], domain="tenonnx"),
        helper.make_node("MatMul", ["rgb", "weights"], ["grey"]),
    ],
    "brightness",
    [],
    [helper.make_tensor_value_info("grey", TensorProto.FLOAT, [HEIGHT, WIDTH, 1])],
    [numpy_helper.from_array(np.array([[0.2126], [0.7152], [0.0722]], np.float32), "weights")],
)
opsets = [helper.make_opsetid("", 24), helper.make_opsetid("tenonnx", 1)]
model = from_onnx(helper.make_model(graph, opset_imports=opsets, ir_version=12))
kind = structs.declare(model, rgb565, (HEIGHT, WIDTH, 3))  # the type, and its decoder among model.functions
model.graph.struct_initializer.add(name="picture", type=kind, raw_data=picture.tobytes())

grey = Session(model).run({})["grey"][..., 0]
for row in grey:
    print("".join(" .:-=+*#%@"[int(level * 9.99)] for level in row))

view = structs.view(picture, kind, model.struct_types)
print("the last pixel:", view[HEIGHT * WIDTH - 1].to_dict())
