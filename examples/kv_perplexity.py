"""What a policy for the cache costs: perplexity over a text, beside the bytes that the cache takes.

    python examples/kv_perplexity.py [MODEL [TEXTFILE]]

MODEL is a GGUF or a known name, TEXTFILE is UTF-8; by default smollm2-135m reads English that Python ships.
"""

import pydoc_data.topics
import sys
from pathlib import Path

from tenonnx import text
from tenonnx.cache import Aged, Budget, Uniform

model = text.load_model(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m", paged=True)
read = Path(sys.argv[2]).read_text(encoding="utf-8") if len(sys.argv) > 2 else "\n\n".join(pydoc_data.topics.topics.values())

POLICIES = {
    "F16": Uniform("F16"),
    "INT8_PAGE": Uniform("INT8_PAGE"),
    "K INT8, V INT4": (Uniform("INT8_PAGE"), Uniform("INT4_PAGE")),
    "aged": Aged([("F16", 64), ("INT8_PAGE", 128), ("INT4_PAGE", None)]),
    "3 MB at most": Budget(3_000_000),
}

print(f"{'policy':16} {'cache bytes':>12} {'of F16':>7} {'perplexity':>11} {'KL to F16':>10}")
for name, policy in POLICIES.items():
    found = text.perplexity(model, read, policy, tokens=256)
    share = found.cache_bytes / found.f16_bytes
    print(f"{name:16} {found.cache_bytes:12,} {share:7.3f} {found.perplexity:11.3f} {found.kl:10.5f}")
