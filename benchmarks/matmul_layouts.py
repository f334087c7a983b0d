"""Times every compute layout: one token against the speed of plain reading, and a prompt against layout q4.

    python benchmarks/matmul_layouts.py [--threads 2] [--isa avx2] [--tokens 512] [--repeat 7] [LAYOUT ...]

One token goes through copies of a 4096 x 4096 matrix (a total beyond any cache), a prompt through one of 1024 x 4096.
Layouts take turns, and figures are medians. Prints GB/s of packed weights and their share of what threads that only read
reach at best, GMAC/s and their ratio to q4, GB/s of the source that packs, and bits per weight.
"""

import argparse
import statistics
import threading
import time
from collections.abc import Callable

import numpy as np

from tenonnx import _native
from tenonnx.layouts import LAYOUTS, quantized_row_bytes
from tenonnx.layouts.layout import generic

N = K = 4096
TOTAL = 192 << 20
PROMPT_ROWS = 1024
FLOAT, UINT8 = 1, 2
GENERIC = {layout.name: layout for layout in (generic(64, ""), generic(32, "FLOAT16"), generic(128, "FLOAT16"))}
ALL = LAYOUTS | GENERIC


def tensor(array: np.ndarray) -> tuple[int, int, list[int], list[int]]:
    element_type = FLOAT if array.dtype == np.float32 else UINT8
    return (array.ctypes.data, element_type, list(array.shape), [s // array.itemsize for s in array.strides])


def seconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def activations(tokens: int, quantized: bool) -> np.ndarray:
    x = np.random.default_rng(1).standard_normal((tokens, K)).astype(np.float32)
    if not quantized:
        return x
    rows = np.empty((tokens, quantized_row_bytes(K)), np.uint8)
    _native.run_kernel("quantize_rows", [tensor(x)], [tensor(rows)], [])
    return rows


class Case:
    def __init__(self, name: str, threads: int, isa: str, tokens: int, memory: np.ndarray) -> None:
        self.layout = ALL[name]
        size = self.layout.nbytes(N, K)
        self.copies = [memory[begin : begin + size] for begin in range(0, memory.nbytes - size + 1, size)]
        self.threads, self.isa = threads, isa
        self.one = activations(1, self.layout.quantized_activations)
        self.many = activations(tokens, self.layout.quantized_activations)
        self.y = np.empty((tokens, N), np.float32)
        self.token_times: list[float] = []
        self.prompt_times: list[float] = []

    def multiply(self, x: np.ndarray, weights: np.ndarray, n: int) -> None:
        y = tensor(np.ndarray((len(x), n), np.float32, self.y))
        ints = [n, K, *self.layout.arguments]
        _native.run_kernel(self.layout.matmul, [tensor(x), tensor(weights)], [y], ints, threads=self.threads, isa=self.isa)

    def measure(self) -> None:
        def token() -> None:
            for weights in self.copies:
                self.multiply(self.one, weights, N)

        self.token_times.append(seconds(token) / len(self.copies))
        part = self.copies[0][: self.layout.nbytes(PROMPT_ROWS, K)]
        self.prompt_times.append(seconds(lambda: self.multiply(self.many, part, PROMPT_ROWS)))

    @property
    def bandwidth(self) -> float:
        return self.layout.nbytes(N, K) / statistics.median(self.token_times) / 1e9

    @property
    def macs(self) -> float:
        return len(self.many) * PROMPT_ROWS * K / statistics.median(self.prompt_times) / 1e9


def reading(memory: np.ndarray, threads: int) -> float:
    """GB/s of threads that only read."""
    parts = np.array_split(memory, threads)
    workers = [threading.Thread(target=np.max, args=(part,)) for part in parts]

    def run() -> None:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    return memory.nbytes / seconds(run) / 1e9


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("layouts", nargs="*", default=list(ALL))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", default="")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--repeat", type=int, default=7)
    options = parser.parse_args()
    # As a float of any width these bytes are some small normal number.
    memory = np.random.default_rng(0).integers(0x30, 0x40, TOTAL, np.uint8)
    names = list(dict.fromkeys(["q4", *options.layouts]))
    cases = [Case(name, options.threads, options.isa, options.tokens, memory) for name in names]
    reads = []
    for _ in range(options.repeat):
        reads.append(reading(memory, options.threads))
        for case in cases:
            case.measure()
    limit = max(reads)
    print(f"{options.isa or _native.host_isa()}, {options.threads} threads: reading {limit:.1f} GB/s")
    for case in cases:
        bits = case.layout.nbytes(N, K) * 8 / (N * K)
        print(
            f"{case.layout.name:6} {bits:5.2f} bits  one token {case.bandwidth:5.1f} GB/s {case.bandwidth / limit:4.0%}  "
            f"prompt {case.macs:5.0f} GMAC/s {case.macs / cases[0].macs:4.0%} of q4"
        )


if __name__ == "__main__":
    main()
