"""Times the packed matrix kernels over the matrices of a 135M-parameter llama, each in memory of its own.

    python benchmarks/matmul_kernels.py [--threads 2] [--isa avx2] [--tokens 512] [--repeat 15]

Prints the median of one token through all matrices (ms, GB/s of packed weights), of a prompt without the
head (GMAC/s), and of packing (GB/s). Kernels are called through the door for tests, one call a matrix.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from tenonnx import _native
from tenonnx.layouts import quantized_row_bytes

LAYERS = 30
LAYER = [(576, 576), (192, 576), (192, 576), (576, 576), (1536, 576), (1536, 576), (576, 1536)]
HEAD = (49152, 576)
FLOAT, UINT8 = 1, 2


def tensor(array: np.ndarray) -> tuple[int, int, list[int], list[int]]:
    element_type = FLOAT if array.dtype == np.float32 else UINT8
    return (array.ctypes.data, element_type, list(array.shape), [s // array.itemsize for s in array.strides])


def median_seconds(run: Callable[[], None], repeat: int) -> float:
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


class Bench:
    def __init__(self, threads: int, isa: str) -> None:
        self.threads, self.isa = threads, isa
        rng = np.random.default_rng(0)
        scales = np.float16(0.01).view(np.uint16)
        self.weights = {}
        for n, k in {*LAYER, HEAD}:
            layout, size, header = ("q8", 272, 1) if (n, k) == HEAD else ("q4m", 160, 2)
            blocks = rng.integers(0, 256, (n // 8 * (k // 32), size), dtype=np.uint8)
            blocks[:, : 16 * header].view(np.uint16)[:] = scales
            copies = 1 if (n, k) == HEAD else LAYERS * LAYER.count((n, k))
            self.weights[n, k] = (layout, [blocks.reshape(-1).copy() for _ in range(copies)])

    def call(self, name: str, inputs: list[np.ndarray], output: np.ndarray, ints: list[int]) -> None:
        ends = [tensor(a) for a in inputs]
        _native.run_kernel(name, ends, [tensor(output)], ints, threads=self.threads, isa=self.isa)

    def steps(self, tokens: int, head: bool) -> Callable[[], None]:
        """All products of one pass, prepared so that timing them calls kernels alone."""
        calls = []
        for (n, k), (layout, copies) in self.weights.items():
            if (n, k) == HEAD and not head:
                continue
            x = np.random.default_rng(1).standard_normal((tokens, k)).astype(np.float32)
            rows, y = np.empty((tokens, quantized_row_bytes(k)), np.uint8), np.empty((tokens, n), np.float32)
            self.call("quantize_rows", [x], rows, [])
            for w in copies:
                calls.append((f"matmul_{layout}", [tensor(rows), tensor(w)], [tensor(y)], [n, k], (rows, w, y)))

        def run() -> None:
            for name, inputs, outputs, ints, _arrays in calls:
                _native.run_kernel(name, inputs, outputs, ints, threads=self.threads, isa=self.isa)

        run()
        return run

    def packing(self, repeat: int) -> float:
        n, k = HEAD
        source, packed = np.ones(n * k // 32 * 20, np.uint8), np.ones(n * k // 32 * 20, np.uint8)
        seconds = median_seconds(lambda: self.call("pack_q4m_from_Q4_1", [source], packed, [n, k]), repeat)
        return source.nbytes / seconds / 1e9


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", default="")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--repeat", type=int, default=15)
    options = parser.parse_args()
    bench = Bench(options.threads, options.isa)
    total = sum(w.nbytes for _, copies in bench.weights.values() for w in copies)
    one = median_seconds(bench.steps(1, head=True), options.repeat)
    macs = LAYERS * sum(n * k for n, k in LAYER) * options.tokens
    prompt = median_seconds(bench.steps(options.tokens, head=False), max(3, options.repeat // 3))
    print(f"{options.isa or _native.host_isa()}, {options.threads} threads: one token {one * 1e3:.2f} ms "
          f"({total / one / 1e9:.1f} GB/s), prompt of {options.tokens} {macs / prompt / 1e9:.0f} GMAC/s, "
          f"packing {bench.packing(options.repeat):.1f} GB/s")  # fmt: skip


if __name__ == "__main__":
    main()
