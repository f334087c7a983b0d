"""From an initializer to its bytes in a compute layout."""

from __future__ import annotations

import numpy as np

from tenonnx import dtypes
from tenonnx._native import Buffer, run_kernel
from tenonnx.compiled.load import Wanted
from tenonnx.layouts import mapping, packer
from tenonnx.plan import Planner
from tenonnx.structs import catalogue


def wanted(planner: Planner) -> dict[str, Wanted]:
    """The weights that some node of the model reads packed, by the name of their initializer."""
    return {name: Wanted(weight.layout, *weight.shape) for name, weight in planner.packed().items() if weight.layout is not None}


def pack(payload: np.ndarray, format_name: str, want: Wanted, threads: int) -> np.ndarray:
    """UINT8[want.nbytes]: blocks of a known format, UINT8[n], in the layout that kernels read."""
    packed: np.ndarray = Buffer(want.nbytes, "weight").array()
    generic = mapping(format_name)
    parts: tuple[np.ndarray | None, ...] = (payload.reshape(-1),)
    if generic is not None:
        parts = generic.operands(catalogue[format_name], payload, (want.rows, want.columns))
    sources = [None if part is None else _tensor(part) for part in parts]
    run_kernel(
        packer(format_name), sources, [_tensor(packed)], [want.rows, want.columns, *want.layout.arguments], threads=threads
    )
    return packed


def _tensor(data: np.ndarray) -> tuple[int, int, list[int], list[int]]:
    strides = [stride // data.itemsize for stride in data.strides]
    return data.ctypes.data, dtypes.of_numpy(data.dtype).number, list(data.shape), strides
