"""What is in somebody's GGUF: sizes and formats from its header, then the bits of one block, field by field.

    python examples/look_into_gguf.py [MODEL.gguf]

No weight is read but the block that is shown. ``tenonnx inspect MODEL.gguf`` prints as much without a script.
"""

import sys

import numpy as np

from tenonnx import inspection, text

path = sys.argv[1] if len(sys.argv) > 1 else text.known("smollm2-135m").path
subject = inspection.open_subject(path)

found = inspection.summary(subject)
print(f"{found['metadata'].get('general.name', path)}: {found['graph']}, {sum(found['nodes'].values()):,} nodes")
for weights in found["weights"]:
    print(
        f"  {weights['format']:8} {weights['count']:4} tensors {weights['bytes']:12,} bytes in {weights['file'] or 'the model'}"
    )

value = next(value for value in subject.model.graph.struct_initializer if "attn_q" in value.name)
element = inspection.element_of(subject, f"{value.name}[3]")  # block 3 of the weight
print(f"{element.title}: {element.payload.nbytes} bytes, {element.payload.tobytes().hex(' ')}")
for name, field in element.fields.items():
    print(f"  {name:8} {np.array2string(field, threshold=8)}")
print(f"  stands for {np.array2string(element.decoded, threshold=8, precision=4)}")
