"""What the cache contract costs: an update by capacity, attention by length, Python by run, memory by steps.

    python benchmarks/caches.py [--threads 2] [--repeat 200]

Update: one token of 3 heads x 64 in FLOAT16 into caches of 1 k to 1 M positions, at random places, medians in microseconds;
`Session.run` of that one-node model included, so the figure of the smallest cache is Python's and the binding's share.
Attention: one token of 9 heads over 3, at the same valid length in caches of several capacities. Memory: the growth of peak
RSS, beyond the caches themselves, of 2,000 steps over a cache of 2 GB that the steps fill from end to end. Plan: seconds for
a chain of 10,000 nodes, and for SmolLM2.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import tenonnx
from tenonnx import Session, convert, text, writable
from tests.models import FLOAT, FLOAT16, INT64, Graph

HEADS, HEAD = 3, 64


def microseconds(runs: Sequence[Callable[[], object]]) -> float:
    """Median of the calls after the first."""
    found = []
    for run in runs:
        begin = time.perf_counter()
        run()
        found.append(time.perf_counter() - begin)
    return 1e6 * statistics.median(found[1:])


def update_model() -> Graph:
    g = Graph()
    g.input("cache", FLOAT16, [1, HEADS, "capacity", HEAD], mutable=True)
    g.input("values", FLOAT16, [1, HEADS, "n", HEAD])
    g.input("position", INT64, [])
    g.update("cache", "values", "position", "updated")
    g.output("updated", FLOAT16, None, alias_of="cache")
    return g


def updates(threads: int, repeat: int) -> None:
    session, rng = Session(update_model().model, threads=threads), np.random.default_rng(0)
    values = np.ones((1, HEADS, 1, HEAD), np.float16)
    for capacity in (1_000, 10_000, 100_000, 1_000_000):
        feeds: dict[str, Any] = {"cache": writable(np.zeros((1, HEADS, capacity, HEAD), np.float16)), "values": values}
        steps = [partial(session.run, feeds | {"position": np.array(at)}) for at in rng.integers(0, capacity, repeat + 1)]
        print(f"update of one token, capacity {capacity:>9,}: {microseconds(steps):6.1f} us")


def attention(threads: int, repeat: int) -> None:
    g = Graph()
    g.input("q", FLOAT, [1, 3 * HEADS, 1, HEAD])
    for name in "kv":
        g.input(name, FLOAT16, [1, HEADS, "capacity", HEAD])
        g.node("Cast", [name], f"{name}32", to=FLOAT)
    g.input("length", INT64, [1])
    g.node("Attention", ["q", "k32", "v32", "", "", "", "length"], "y")
    g.output("y", FLOAT, [1, 3 * HEADS, 1, HEAD])
    session, rng = Session(g.model, threads=threads), np.random.default_rng(0)
    q = rng.standard_normal((1, 3 * HEADS, 1, HEAD), np.float32)
    for capacity in (2_048, 16_384, 131_072):
        k, v = (rng.standard_normal((1, HEADS, capacity, HEAD), np.float32).astype(np.float16) for _ in range(2))
        for length in (1_024, 2_048):
            feeds = {"q": q, "k": k, "v": v, "length": np.array([length])}
            taken = microseconds([partial(session.run, feeds)] * (repeat + 1))
            print(f"attention over {length:,} of {capacity:>7,}: {taken:6.1f} us")


def memory(threads: int) -> None:
    session, rows = Session(update_model().model, threads=threads), 2_000
    capacity = (2 << 30) // (HEADS * HEAD * 2)
    cache = np.zeros((1, HEADS, capacity, HEAD), np.float16)
    values = np.ones((1, HEADS, capacity // rows, HEAD), np.float16)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for step in range(rows):
        session.run({"cache": writable(cache), "values": values, "position": step * values.shape[2]})
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    beside = (grown * 1024 - cache.nbytes) / 1e6
    print(f"a cache of {cache.nbytes / 1e6:,.0f} MB filled in {rows:,} steps: {beside:,.1f} MB beside it")


def planning() -> None:
    chain = Graph()
    chain.input("x0", FLOAT, ["n"])
    for index in range(10_000):
        chain.node("Neg", [f"x{index}"], f"x{index + 1}")
    chain.output("x10000", FLOAT, ["n"])
    smollm2, _ = convert.from_gguf(text.known("smollm2-135m").path)
    for name, model, dims in (
        ("10,000 nodes", chain.model, {"n": 5}),
        ("SmolLM2", smollm2, {"batch": 1, "n": 1, "k": 1, "max_length": 1024}),
    ):
        begin = time.perf_counter()
        tenonnx.plan(model, dims)
        print(f"shapes and plan of {name}: {time.perf_counter() - begin:.2f} s")


def python(threads: int, repeat: int) -> None:
    session = Session(update_model().model, threads=threads)
    cache, values = session.new_cache(context=repeat + 2), np.ones((1, HEADS, 1, HEAD), np.float16)
    taken = microseconds([partial(session.run, {"values": values}, cache=cache)] * (repeat + 1))
    print(f"a run of one node with a Cache: {taken:.1f} us")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=200)
    options = parser.parse_args()
    memory(options.threads)  # first: peaks never fall
    updates(options.threads, options.repeat)
    python(options.threads, options.repeat)
    attention(options.threads, options.repeat)
    planning()


if __name__ == "__main__":
    main()
