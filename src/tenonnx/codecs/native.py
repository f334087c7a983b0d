"""Known formats decoded by their native kernels: the values of the format's formula, to the last bit."""

from __future__ import annotations

import numpy as np

from tenonnx import dtypes
from tenonnx._native import has_kernel, run_kernel
from tenonnx.structs import Format

_UINT8, _FLOAT = (dtypes.BY_NAME[name].number for name in ("UINT8", "FLOAT"))


def decodes(format: Format) -> bool:
    """Whether a catalogue format has a kernel. Kernels write blocks one after the other, so a block lies within one row."""
    return len(format.block_shape) <= 1 and has_kernel(f"decode_{format.name}")


def decode(format: Format, payload: np.ndarray, shape: tuple[int, ...], threads: int = 0) -> np.ndarray:
    """FLOAT of ``shape`` from UINT8[n] of exactly its blocks, by ``threads`` threads, 0 for one on each processor."""
    payload = np.ascontiguousarray(payload)
    values = np.empty(shape, np.float32)
    blocks = (payload.ctypes.data, _UINT8, [payload.size], [1])
    run_kernel(f"decode_{format.name}", [blocks], [(values.ctypes.data, _FLOAT, [values.size], [1])], threads=threads)
    return values
