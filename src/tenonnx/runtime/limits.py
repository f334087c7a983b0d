"""What this machine does at most, to measure a model against."""

from __future__ import annotations

import time

import numpy as np

from tenonnx._native import run_kernel
from tenonnx.dtypes import of_numpy

_BYTES = 256 << 20  # more than a processor caches


def read_bandwidth(threads: int, repeat: int = 3) -> float:
    """Bytes per second that ``threads`` threads read from memory, doing nothing else: the best of ``repeat`` runs."""
    memory = np.ones(_BYTES, np.uint8)  # touched: pages never written would all be one
    parities = np.empty(_BYTES >> 20, np.uint64)
    source, result = ((array.ctypes.data, of_numpy(array.dtype).number, list(array.shape), [1]) for array in (memory, parities))
    seconds = []
    for _ in range(repeat):
        begin = time.perf_counter()
        run_kernel("read_memory", [source], [result], threads=threads)
        seconds.append(time.perf_counter() - begin)
    return _BYTES / min(seconds)
