"""Cache policies on SmolLM2-135M-Instruct: bytes, perplexity, KL to an F16 cache, and tokens per second at depth.

    python benchmarks/kv_policies.py [--tokens 2000] [--depth 3000] [--plot docs/kv-policies.svg]

Perplexity is over English that Python ships (``pydoc_data.topics``), each token predicted from all before it. Speeds are medians
over rounds in which all policies take turns, after ``depth`` tokens are in the cache; the dense cache runs beside them.
"""

from __future__ import annotations

import argparse
import math
import pydoc_data.topics
import statistics
import time

import numpy as np

from tenonnx import text
from tenonnx.cache import Aged, Uniform
from tenonnx.cache.policy import DEFAULT_AGED
from tenonnx.text.perplexity import perplexity

POLICIES = {
    "F16": Uniform("F16"),
    "INT8_PAGE": Uniform("INT8_PAGE"),
    "FP8_PAGE": Uniform("FP8_PAGE"),
    "Q8_0": Uniform("Q8_0"),
    "aged": Aged(DEFAULT_AGED),
    "INT4_PAGE": Uniform("INT4_PAGE"),
    "K INT8, V INT4": (Uniform("INT8_PAGE"), Uniform("INT4_PAGE")),
    "INT2_PAGE": Uniform("INT2_PAGE"),
}


def step(session, cache, tokens):
    """Logits after ``tokens``, the last alone."""
    position, count = cache.length, len(tokens)
    feeds = {
        "input_ids": np.array([tokens], np.int64),
        "position_ids": np.arange(position, position + count, dtype=np.int64)[None],
        "logit_rows": np.array([count - 1], np.int64),
    }
    return session.run(feeds, cache=cache)


def filled(session, depth, policy, tokens):
    cache = session.new_cache(context=depth + 200, **({} if policy is None else {"policy": policy}))
    for start in range(0, depth, 512):
        step(session, cache, tokens[start : min(depth, start + 512)])
    return cache


def speeds(paged, dense, depth, rounds, tokens):
    """Milliseconds of a step per cache: median over rounds, the caches in turn."""
    caches = {name: (paged, filled(paged, depth, policy, tokens)) for name, policy in POLICIES.items()}
    caches["dense F16"] = dense, filled(dense, depth, None, tokens)
    taken = {name: [] for name in caches}
    for _ in range(rounds):
        for name, (session, cache) in caches.items():
            begin = time.perf_counter()
            step(session, cache, [1])
            taken[name].append(1000 * (time.perf_counter() - begin))
    return {name: statistics.median(times[2:]) for name, times in taken.items()}


def plot(rows, path):
    """Bytes relative to F16 against the divergence from F16, on a logarithmic axis, as SVG. Beside F16 itself, which has none."""
    width, height, left, bottom, top = 640, 420, 70, 50, 30
    shown = [row for row in rows if row["kl"] > 0]
    low, high = (math.floor(math.log10(min(row["kl"] for row in shown))), math.ceil(math.log10(max(row["kl"] for row in shown))))
    x = lambda share: left + share / 0.7 * (width - left - 20)  # noqa: E731
    y = lambda kl: top + (high - math.log10(kl)) / (high - low) * (height - bottom - top)  # noqa: E731
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<path d="M{left} {top}V{height - bottom}H{width - 20}" fill="none" stroke="black"/>',
    ]
    for share in np.linspace(0, 0.7, 8):
        parts.append(f'<text x="{x(share):.0f}" y="{height - bottom + 18}" text-anchor="middle">{share:.1f}</text>')
    for power in range(low, high + 1):
        at = y(10**power)
        parts.append(f'<text x="{left - 6}" y="{at + 4:.0f}" text-anchor="end">{10**power:g}</text>')
        parts.append(f'<path d="M{left} {at:.0f}H{width - 20}" stroke="#ddd"/>')
    for row in shown:
        here = x(row["share"]), y(row["kl"])
        last = row["share"] == max(each["share"] for each in shown)
        side, anchor = (8, "start") if last else (-8, "end")
        parts.append(f'<circle cx="{here[0]:.0f}" cy="{here[1]:.0f}" r="4" fill="#0b61a4"/>')
        parts.append(f'<text x="{here[0] + side:.0f}" y="{here[1] + 4:.0f}" text-anchor="{anchor}">{row["name"]}</text>')
    parts.append(f'<text x="{(width + left) / 2:.0f}" y="{height - 10}" text-anchor="middle">cache bytes, share of F16</text>')
    parts.append(f'<text x="{left}" y="16">KL divergence of the predictions from those over an F16 cache, nats</text></svg>')
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(parts) + "\n")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tokens", type=int, default=2000)
    options.add_argument("--depth", type=int, default=3000)
    options.add_argument("--rounds", type=int, default=40)
    options.add_argument("--plot")
    given = options.parse_args()
    path = text.known("smollm2-135m").path
    paged, dense = text.load_model(path, paged=True), text.load_model(path)
    english = "\n\n".join(pydoc_data.topics.topics.values())
    ids = paged.tokenizer.encode_prompt(english[: 40 * given.depth])[: given.depth]
    times = speeds(paged.session, dense.session, given.depth, given.rounds, ids) if given.depth else {}
    print("| Policy | Share of F16 bytes | Perplexity | Ratio to F16 | KL to F16 | Steps/s at depth |\n|---|---|---|---|---|---|")
    rows = []
    for name, policy in POLICIES.items():
        found = perplexity(paged, english, policy, tokens=given.tokens)
        share, ratio = found.cache_bytes / found.f16_bytes, found.perplexity / found.f16_perplexity
        rows.append({"name": name, "share": share, "kl": found.kl})
        speed = f"{1000 / times[name]:.1f}" if times else "-"
        print(f"| {name} | {share:.3f} | {found.perplexity:.4f} | {ratio:.4f} | {found.kl:.5f} | {speed} |", flush=True)
    if times:
        print(f"| dense F16 | | | | | {1000 / times['dense F16']:.1f} |")
    if given.plot:
        plot(rows, given.plot)


if __name__ == "__main__":
    main()
