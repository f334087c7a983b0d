"""The door to the native kernel that unpacks fields. Structured types need no native code: NumPy reads the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from tenonnx.structs.layout import Axis

_MAX_AXES = 8  # of a native tensor
_ONNX_TYPES = {1: 2, 2: 4, 4: 12, 8: 13}  # unsigned integers by their bytes


@cache
def extension() -> Any | None:
    """The native module, or None where this installation has none."""
    try:
        from tenonnx import _native
    except ImportError:
        return None
    return _native


def unpack(data: np.ndarray, offset: int, axes: Sequence[Axis], width: int, out: np.ndarray) -> bool:
    """Fill ``out`` with the fields of ``data``, UINT8[n]; False when that is left to NumPy."""
    kernels, walked = extension(), merged(axes)
    if kernels is None or len(walked) > _MAX_AXES:
        return False
    payload = (data.ctypes.data, _ONNX_TYPES[1], [data.size], [1])
    dims = [axis.size for axis in walked]
    strides = [int(np.prod(dims[place + 1 :], dtype=np.int64)) for place in range(len(dims))]
    fields = (out.ctypes.data, _ONNX_TYPES[out.itemsize], dims, strides)
    kernels.run_kernel("unpack_bits", [payload], [fields], [offset, width, *(axis.stride for axis in walked)])
    return True


def merged(axes: Sequence[Axis]) -> list[Axis]:
    """The same elements in the same order over as few axes as possible."""
    walked: list[Axis] = []
    for axis in axes:
        if axis.size == 1:
            continue
        if walked and walked[-1].stride == axis.size * axis.stride:
            walked[-1] = Axis(walked[-1].size * axis.size, axis.stride)
        else:
            walked.append(axis)
    return walked
