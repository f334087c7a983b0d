"""An export whose caches grow by Concat, converted to update them in place, beside the export itself in onnxruntime.

    python examples/convert_export.py [EXPORT.onnx]

The default is a small Llama that torch.onnx.export wrote. Another needs the inputs input_ids, position_ids and attention_mask.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime

from tenonnx import Session, convert

given = Path(__file__).parents[1] / "tests" / "data" / "llama_sdpa_23.onnx"
export = Path(sys.argv[1]) if len(sys.argv) > 1 else given
CONTEXT, PROMPT = 16, [1, 2, 3, 4, 5]

with tempfile.TemporaryDirectory() as folder:
    report = convert.convert(export, Path(folder, "declared.onnx"), copy=True)
    for line in (*report.caches, *report.notes):
        print(line)
    session = Session(report.path)

stock = onnxruntime.InferenceSession(export)
outputs = [value.name for value in stock.get_outputs()]
inputs = {value.name: value for value in stock.get_inputs()}
# The caches are the inputs of rank 4, the outputs behind the first their successors; before the first token they are empty.
past = {
    name: np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32) for name, value in inputs.items() if len(value.shape) == 4
}

cache = session.new_cache(context=CONTEXT)
where = cache[next(iter(cache.specs))].ctypes.data
tokens = PROMPT
for _ in range(6):
    length, n = cache.length, len(tokens)
    step = {"input_ids": np.array([tokens]), "position_ids": length + np.arange(n)[None]}

    # onnxruntime: feeds every cache, gets every cache back, one token longer, somewhere else.
    feeds = {**step, "attention_mask": np.ones((1, length + n), np.int64), **past}
    expected, *presents = stock.run(outputs, {name: value for name, value in feeds.items() if name in inputs})
    past = dict(zip(past, presents, strict=True))

    # Tenonnx: writes n rows where the cache lies. The mask is as long as the cache from the start: no shape changes.
    feeds = {**step, "attention_mask": np.ones((1, CONTEXT), np.int64)}
    result = session.run({name: value for name, value in feeds.items() if name in session.inputs}, cache=cache)[outputs[0]]

    difference = np.abs(result - expected).max()
    tokens = [int(result[0, -1].argmax())]
    print(f"{cache.length:2} positions: next token {tokens[0]:2}, difference to onnxruntime {difference:.1e}")
    assert difference < 1e-4 and tokens[0] == expected[0, -1].argmax()

assert cache[next(iter(cache.specs))].ctypes.data == where
print(f"{cache.nbytes:,} bytes of caches, allocated once")
