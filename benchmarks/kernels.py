"""Every kernel beside what this processor does at most, both measured in one run.

    python benchmarks/kernels.py [--threads 2] [--isa avx2] [--tokens 512] [--repeat 7] [LAYOUT ...]

The limits are reading memory and summing products of bytes, each by a kernel that does nothing else. Products: one token
through copies of a 4096 x 4096 matrix, beyond any cache, in GB/s of packed weights; and a prompt through 1024 x 4096, in
products of bytes per second (float layouts multiply floats and have no such limit). Attention: one token over caches of the
real model's shape, in GB/s of K and V. The rest: GB/s read and written over arrays beyond any cache. Kernels take turns;
figures are medians, percentages are of the limit.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tenonnx import _native
from tenonnx.layouts import LAYOUTS, quantized_row_bytes
from tenonnx.layouts.layout import generic

N = K = 4096
TOTAL = 192 << 20  # bytes, more than a processor caches
PROMPT_ROWS = 1024
GENERIC = {layout.name: layout for layout in (generic(64, ""), generic(32, "FLOAT16"), generic(128, "FLOAT16"))}
ALL = LAYOUTS | GENERIC
TYPES = {np.float32: 1, np.uint8: 2, np.int64: 7, np.float16: 10, np.uint64: 13}

Run = Callable[[], None]


@dataclass
class Measure:
    """One kernel at one task: ``work`` bytes, or products where ``multiplies``, for each run."""

    title: str
    run: Run
    work: float
    multiplies: bool = False
    limited: bool = True
    seconds: list[float] = field(default_factory=list)

    def take(self) -> None:
        begin = time.perf_counter()
        self.run()
        self.seconds.append(time.perf_counter() - begin)

    @property
    def rate(self) -> float:
        """10^9 of its work per second, median."""
        return self.work / statistics.median(self.seconds) / 1e9

    @property
    def best(self) -> float:
        return self.work / min(self.seconds) / 1e9


class Door:
    """Calls kernels over arrays with given threads and instruction set."""

    def __init__(self, threads: int, isa: str) -> None:
        self.threads, self.isa = threads, isa
        self.rng = np.random.default_rng(0)

    def call(self, name: str, inputs: list[np.ndarray | None], output: np.ndarray, *ints: int, floats: tuple = ()) -> Run:
        ends = [None if array is None else _tensor(array) for array in inputs]
        kept = [*inputs, output]

        def run() -> None:
            _native.run_kernel(name, ends, [_tensor(kept[-1])], list(ints), list(floats), self.threads, self.isa)

        return run

    def limits(self, memory: np.ndarray) -> list[Measure]:
        products = np.zeros(64, np.int64)
        multiply = self.call("multiply_bytes", [np.zeros(256, np.uint8)], products, 20_000)
        multiply()
        parities = np.zeros(memory.nbytes >> 20, np.uint64)
        return [
            Measure("reading", self.call("read_memory", [memory], parities), memory.nbytes),
            Measure("products of bytes", multiply, float(products.sum()), multiplies=True),
        ]

    def products(self, name: str, tokens: int, memory: np.ndarray) -> list[Measure]:
        layout = ALL[name]
        size = layout.nbytes(N, K)
        copies = [memory[begin : begin + size] for begin in range(0, memory.nbytes - size + 1, size)]
        one, many = (self._activations(count, layout.quantized_activations) for count in (1, tokens))
        y = np.empty((1, N), np.float32)
        runs = [self.call(layout.matmul, [one, weights], y, N, K, *layout.arguments) for weights in copies]
        rows = copies[0][: layout.nbytes(PROMPT_ROWS, K)]
        out = np.empty((tokens, PROMPT_ROWS), np.float32)
        prompt = self.call(layout.matmul, [many, rows], out, PROMPT_ROWS, K, *layout.arguments)
        bits = size * 8 / (N * K)
        title, macs, exact = f"{name} ({bits:.2f} bits)", tokens * PROMPT_ROWS * K, layout.quantized_activations
        return [
            Measure(f"{title}, one token", lambda: [run() for run in runs] and None, size * len(copies)),
            Measure(f"{title}, prompt", prompt, macs, multiplies=True, limited=exact),
        ]

    def _activations(self, tokens: int, quantized: bool) -> np.ndarray:
        x = self.rng.standard_normal((tokens, K)).astype(np.float32)
        if not quantized:
            return x
        rows = np.empty((tokens, quantized_row_bytes(K)), np.uint8)
        self.call("quantize_rows", [x], rows)()
        return rows

    def attention(self, length: int) -> Measure:
        """30 layers of 9 heads over 3 of keys and values, 64 wide, FLOAT16."""
        q, y = self.rng.standard_normal((1, 9, 1, 64)).astype(np.float32), np.empty((1, 9, 1, 64), np.float32)
        caches = [self.rng.standard_normal((2, 1, 3, length, 64), np.float32).astype(np.float16) for _ in range(30)]
        workspace, valid = np.empty(4 * 9 * -(-length // 128) * (64 + 2), np.uint8), np.array([length])
        runs: list[Run] = []
        for k, v in caches:
            runs.append(self.call("attention_partial", [q, k, v, None, valid], workspace, 1, -1, floats=(0.125, 0.0)))
            runs.append(self.call("attention_combine", [workspace, valid], y, length))
        return Measure(
            f"attention, 1 token over {length:,}", lambda: [run() for run in runs] and None, sum(cache.nbytes for cache in caches)
        )

    def others(self, memory: np.ndarray) -> list[Measure]:
        x = memory.view(np.float32)[: 4096 * 4096].reshape(4096, 4096)
        y, half = np.empty_like(x), np.empty(x.shape, np.float16)
        rows = np.empty((4096, quantized_row_bytes(4096)), np.uint8)
        made = [
            ("copy", self.call("copy", [x], y), y),
            ("cast to FLOAT16", self.call("copy", [x], half), half),
            ("swish", self.call("swish", [x], y, floats=(1.0,)), y),
            ("quantize_rows", self.call("quantize_rows", [x], rows), rows),
            ("softmax", self.call("softmax", [x], y), y),
        ]
        return [Measure(title, run, x.nbytes + out.nbytes) for title, run, out in made]


def _tensor(array: np.ndarray) -> tuple[int, int, list[int], list[int]]:
    return (array.ctypes.data, TYPES[array.dtype.type], list(array.shape), [s // array.itemsize for s in array.strides])


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("layouts", nargs="*", default=list(ALL), metavar="LAYOUT", help=", ".join(ALL))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", default="")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--repeat", type=int, default=7)
    options = parser.parse_args()
    # As a float of any width these bytes are some small normal number.
    memory = np.random.default_rng(0).integers(0x30, 0x40, TOTAL, np.uint8)
    door = Door(options.threads, options.isa)
    limits = door.limits(memory)
    measures = [measure for name in options.layouts for measure in door.products(name, options.tokens, memory)]
    measures += [door.attention(length) for length in (1024, 3000, 7000)]
    measures += door.others(memory)
    for _ in range(options.repeat):
        for measure in (*limits, *measures):
            measure.take()
    reading, multiplying = (limit.best for limit in limits)
    print(
        f"{options.isa or _native.host_isa()}, {options.threads} threads: reads {reading:.1f} GB/s, sums {multiplying:.0f} "
        "products of bytes a nanosecond"
    )
    for measure in measures:
        limit, unit = (multiplying, "GMAC/s") if measure.multiplies else (reading, "GB/s")
        share = f"{measure.rate / limit:4.0%}" if measure.limited else ""
        print(f"{measure.title:34} {measure.rate:7.1f} {unit:6} {share}")


if __name__ == "__main__":
    main()
