"""Calls one native kernel over NumPy arrays, on each instruction set that this host runs."""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tenonnx import _native

ORDER = ("portable", "avx2", "avx512")
ISAS = ORDER[: ORDER.index(_native.host_isa()) + 1]

ELEMENT_TYPES = {
    np.dtype(np.float32): 1, np.dtype(np.uint8): 2, np.dtype(np.int8): 3, np.dtype(np.uint16): 4,
    np.dtype(np.int16): 5, np.dtype(np.int32): 6, np.dtype(np.int64): 7, np.dtype(np.bool_): 9,
    np.dtype(np.float16): 10, np.dtype(np.float64): 11, np.dtype(np.uint32): 12, np.dtype(np.uint64): 13,
    np.dtype(ml_dtypes.bfloat16): 16,
}  # fmt: skip


def view(array: np.ndarray | None) -> tuple | None:
    """The array as the binding takes it: address, ONNX element type, dims, strides in elements."""
    if array is None:
        return None
    strides = [stride // array.itemsize for stride in array.strides]
    return (array.ctypes.data, ELEMENT_TYPES[array.dtype], list(array.shape), strides)


def call(
    name: str,
    inputs: Sequence[np.ndarray | None],
    outputs: Sequence[np.ndarray | None],
    ints: Sequence[int] = (),
    floats: Sequence[float] = (),
    threads: int = 1,
    isa: str = "",
) -> Any:
    """Runs a kernel; returns None or the fault it reported. ValueError where it refuses types or shapes."""
    return _native.run_kernel(name, [view(a) for a in inputs], [view(a) for a in outputs], list(ints), list(floats), threads, isa)
