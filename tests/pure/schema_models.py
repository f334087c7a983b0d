"""A model with a payload in every place that may have one, for the tests of files."""

from __future__ import annotations

import numpy as np
from onnx import numpy_helper

from tenonnx.schema.external import DataRoot
from tenonnx.schema.files import load, save
from tenonnx.schema.messages import ModelProto, from_onnx
from tenonnx.schema.payload import struct_payload, tensor_array

RNG = np.random.default_rng(0)
WEIGHTS = {"a": RNG.standard_normal(3000).astype(np.float32), "b": RNG.integers(0, 256, 5000, np.uint8)}
STRUCT, PACK = RNG.bytes(4096), RNG.bytes(2000)


def small_model():
    """y = x + a: initializers a and b, a structured value, a pack; tensors in branches, nodes and functions."""
    model = ModelProto(ir_version=11)
    model.opset_import.add(version=20)
    graph = model.graph
    graph.name = "g"
    for name in WEIGHTS:
        graph.initializer.append(from_onnx(numpy_helper.from_array(WEIGHTS[name], name)))
    graph.struct_initializer.add(type=0, name="s", raw_data=STRUCT)
    graph.input.add(name="x").type.tensor_type.elem_type = 1
    graph.node.add(op_type="Add", input=["x", "a"], output=["y"])
    graph.output.add(name="y").type.tensor_type.elem_type = 1
    branch = graph.node.add(op_type="If", input=["c"], output=["z"]).attribute.add(name="then_branch", type=5).g
    branch.initializer.append(from_onnx(numpy_helper.from_array(WEIGHTS["a"], "inner")))
    branch.node.add(op_type="Constant", output=["k"]).attribute.add(name="value", type=4).t.CopyFrom(
        from_onnx(numpy_helper.from_array(WEIGHTS["b"], "constant"))
    )
    function = model.functions.add(domain="d", name="F", input=["c"])
    body = function.node.add(op_type="If", input=["c"], output=["y"]).attribute.add(name="then_branch", type=5).g
    body.initializer.append(from_onnx(numpy_helper.from_array(WEIGHTS["a"], "deep")))
    function.attribute_proto.add(name="default", type=4).t.CopyFrom(from_onnx(numpy_helper.from_array(WEIGHTS["b"], "default")))
    model.compiled_tensors.add(source_name="a").value.raw_data = PACK
    model.compiled_tensors[0].value.type = 0
    return model


def contents(model, folder):
    """The payload bytes of every value of ``small_model``, wherever they lie."""
    root = DataRoot(folder)
    found = {tensor.name: tensor_array(tensor, root).tobytes() for tensor in model.graph.initializer}
    found["s"] = struct_payload(model.graph.struct_initializer[0], root).tobytes()
    found["pack"] = struct_payload(model.compiled_tensors[0].value, root).tobytes()
    branch = model.graph.node[1].attribute[0].g
    found["inner"] = tensor_array(branch.initializer[0], root).tobytes()
    found["constant"] = tensor_array(branch.node[0].attribute[0].t, root).tobytes()
    function = model.functions[0]
    found["deep"] = tensor_array(function.node[0].attribute[0].g.initializer[0], root).tobytes()
    found["default"] = tensor_array(function.attribute_proto[0].t, root).tobytes()
    return found


TRUTH = contents(small_model(), None)


def external_model(folder):
    """``small_model`` with every payload in ``folder``/old.onnx.data."""
    save(small_model(), folder / "old.onnx", threshold=0)
    return load(folder / "old.onnx")
