"""From an initializer to its bytes in a compute layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tenonnx import dtypes
from tenonnx._native import Buffer, run_kernel
from tenonnx.compiled.load import Wanted
from tenonnx.layouts import mapping, packer
from tenonnx.plan import Planner, Weight
from tenonnx.structs import catalogue

_PART = 8 << 20  # bytes of a payload that are packed at once


def wanted(planner: Planner) -> dict[str, Wanted]:
    """The weights that some node of the model reads packed, by the name of their initializer."""
    return {name: want for name, want in _packed(planner) if name not in planner.blocks}


def apart(planner: Planner) -> dict[str, Wanted]:
    """Those whose codes and scales are initializers apart, by the name of the codes: no pack is stored of them, as what tells
    its source is one initializer.
    """
    return {name: want for name, want in _packed(planner) if name in planner.blocks}


def _packed(planner: Planner) -> Iterator[tuple[str, Wanted]]:
    for name, weight in planner.packed().items():
        want = as_packed(weight)
        if want is not None:
            yield name, want


def as_packed(weight: Weight) -> Wanted | None:
    """A weight as kernels read it; None where no kernel reads it packed."""
    if weight.layout is None:
        return None
    rows, columns = weight.shape
    return Wanted(weight.layout, rows, columns, weight.columns_first)


def pack(
    payload: np.ndarray, format_name: str, want: Wanted, threads: int, release: Callable[[], object] = lambda: None
) -> np.ndarray:
    """UINT8[want.nbytes]: blocks of a known format, UINT8[n], in the layout that kernels read.

    A large payload is read in parts, after each of which ``release`` may give back the memory of what was read.
    """
    packed: np.ndarray = Buffer(want.nbytes, "weight").array()
    payload, generic = payload.reshape(-1), mapping(format_name)
    if generic is not None:
        parts = generic.operands(catalogue[format_name], payload, (want.rows, want.columns))
        sources = [None if part is None else _tensor(part) for part in parts]
        ints = [want.rows, want.columns, *want.layout.arguments]
        run_kernel(packer(format_name), sources, [_tensor(packed)], ints, threads=threads)
        return packed
    stored_rows, group = (want.columns, 1) if want.columns_first else (want.rows, want.layout.rows)
    row_bytes = payload.size // stored_rows
    step = -(-max(1, _PART // row_bytes) // group) * group
    for first in range(0, stored_rows, step):
        count = min(step, stored_rows - first)
        source = _tensor(payload[first * row_bytes : (first + count) * row_bytes])
        if want.columns_first:
            kernel, ints, target = f"{packer(format_name)}_columns", [want.rows, want.columns, first, count], packed
        else:
            begin, end = (want.layout.nbytes(rows, want.columns) for rows in (first, first + count))
            kernel, ints, target = packer(format_name), [count, want.columns], packed[begin:end]
        run_kernel(kernel, [source], [_tensor(target)], ints, threads=threads)
        if step < stored_rows:
            release()
    return packed


def _tensor(data: np.ndarray) -> tuple[int, int, list[int], list[int]]:
    strides = [stride // data.itemsize for stride in data.strides]
    return data.ctypes.data, dtypes.of_numpy(data.dtype).number, list(data.shape), strides
