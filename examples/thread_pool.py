"""One session, many threads: runs go side by side, each with a cache of its own, and give what they give alone.

    python examples/thread_pool.py [MODEL]

MODEL is a GGUF, an .onnx file or a known name; smollm2-135m, the default, is fetched on first use.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

from tenonnx import text

PROMPTS = ["The capital of France is", "Water boils at", "The opposite of hot is", "Bees make"]

# threads=1: each run computes on the thread that calls it, and the pool is what runs side by side.
model = text.load_model(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m", threads=1)


def continued(prompt):
    return text.generate(model, prompt, max_tokens=12, temperature=0).text


begin = time.perf_counter()
alone = [continued(prompt) for prompt in PROMPTS]
between = time.perf_counter()
with ThreadPoolExecutor(2) as pool:
    together = list(pool.map(continued, PROMPTS))
end = time.perf_counter()

for prompt, said in zip(PROMPTS, together, strict=True):
    print(f"{prompt}{said!r}")
assert together == alone
print(f"the same texts from 2 threads as from 1, in {end - between:.1f} s for {between - begin:.1f} s")
