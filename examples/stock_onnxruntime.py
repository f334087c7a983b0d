"""A GGUF that stock onnxruntime runs, converted to standard operators and types: nothing of ours is left in it.

    python examples/stock_onnxruntime.py [MODEL.gguf]

The weights are decoded, to FLOAT16 here: a larger file is the price of running anywhere. Only the tokenizer is Tenonnx's.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from onnxruntime import InferenceSession, OrtValue

from tenonnx import convert, text

CONTEXT = 32
source = Path(sys.argv[1]) if len(sys.argv) > 1 else text.known("smollm2-135m").path

with tempfile.TemporaryDirectory() as folder:
    report = convert.convert(source, Path(folder, "portable.onnx"), portable="float16")
    print(f"{report.path.name}: {report.model_bytes / 1e6:.0f} MB")
    session = InferenceSession(report.path, providers=["CPUExecutionProvider"])

tokenizer = text.Tokenizer.from_metadata(session.get_modelmeta().custom_metadata_map)
# Each cache is bound as an input and, under its new name, as an output: then TensorScatter writes in place here too.
binding = session.io_binding()
for value in session.get_inputs():
    if "cache" in value.name:
        cache = OrtValue.ortvalue_from_numpy(np.zeros((1, value.shape[1], CONTEXT, value.shape[3]), np.float16))
        binding.bind_ortvalue_input(value.name, cache)
        binding.bind_ortvalue_output(f"{value.name}.updated", cache)
logits = OrtValue.ortvalue_from_shape_and_type((1, 1, session.get_outputs()[0].shape[-1]), np.float32)
binding.bind_ortvalue_output("logits", logits)

tokens, position = tokenizer.encode("The capital of France is"), 0
for _ in range(8):
    n = len(tokens)
    feeds = {"input_ids": np.array([tokens]), "position_ids": position + np.arange(n)[None]}
    for name, array in {**feeds, "position": np.array(position), "logit_rows": np.array([n - 1])}.items():
        binding.bind_cpu_input(name, array)
    session.run_with_iobinding(binding)
    tokens, position = [int(logits.numpy()[0, -1].argmax())], position + n
    print(tokenizer.decode(tokens), end="", flush=True)
print()
