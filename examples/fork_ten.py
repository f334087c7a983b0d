"""One prompt, ten continuations: forks of a paged cache share the prompt's pages, and each adds its own.

    python examples/fork_ten.py [MODEL]

MODEL is a GGUF or a known name; smollm2-135m, the default, is fetched on first use.
"""

import sys

import numpy as np

from tenonnx import text
from tenonnx.text import Sampler, Sampling

FORKS, TOKENS = 10, 12
PREFIX = "Here is a list of short, original names for a friendly robot that waters plants. " * 16 + "The best name is"

model = text.load_model(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m", paged=True)


def run(cache, tokens):
    """The logits after the last of ``tokens``."""
    n = len(tokens)
    feeds = {"input_ids": np.array([tokens]), "position_ids": cache.length + np.arange(n)[None], "logit_rows": np.array([n - 1])}
    return model.session.run(feeds, cache=cache)["logits"][0, 0]


prefix = model.session.new_cache(context=1024, policy="INT8_PAGE")
first = run(prefix, model.tokenizer.encode(PREFIX)).copy()
alone, pool = prefix.nbytes, prefix.pool
print(f"prefix: {prefix.length} tokens in {len(prefix.pages)} pages, {alone:,} bytes")

forks = []
for seed in range(FORKS):
    fork = prefix.fork()  # shares every page: no byte is copied
    draw, made, logits = Sampler(Sampling(temperature=1.0, seed=seed)), [], first
    for _ in range(TOKENS):
        made.append(draw(logits))
        fork.prepare()  # the half-filled last page is still shared: this fork gets one of its own
        logits = run(fork, made[-1:])
    forks.append(fork)
    print(f"  {model.tokenizer.decode(made)!r}")

apart = sum(fork.nbytes for fork in forks) + alone
shared = sum(pool.owners(page) == FORKS + 1 for page in prefix.pages)
print(f"{shared} pages shared by {FORKS + 1} sequences; {pool.nbytes:,} bytes in all, {apart:,} if each had its own")
for fork in forks:
    fork.free()
assert pool.nbytes == alone
