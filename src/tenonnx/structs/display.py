"""Values and bytes of a view in a form to look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tenonnx import dtypes
from tenonnx.structs.layout import Axis

_LINE = 16  # bytes

Run = tuple[int, Sequence[Axis], int]  # first bit, axes and width in bits of a leaf


def plain(field: Any) -> Any:
    """A field of a view as Python values."""
    if hasattr(field, "to_dict"):
        return field.to_dict()
    array = np.asarray(field)
    # Without an element there is nothing to convert, and dims that another type of more bytes might not hold.
    if array.dtype.isbuiltin == 1 or array.dtype.kind in "iufcb" or array.size == 0:
        return array.tolist()
    whole = "INT" in dtypes.of_numpy(array.dtype).name
    return array.astype(np.int64 if whole else np.float32).tolist()


def hexdump(data: np.ndarray, runs: Sequence[Run], limit: int) -> str:
    """At most ``limit`` of the bytes of UINT8[n] from the first to the last that a run has a bit in, the others as dots."""
    if not (extents := [_extent(*run) for run in runs if all(axis.size for axis in run[1])]):
        return ""
    first, last = min(low for low, _ in extents), max(high for _, high in extents)
    end = min(last, first + limit)
    held = np.zeros(end - first, bool)
    for run in runs:
        _mark(held, first, run)
    lines = []
    for start in range(first - first % _LINE, end, _LINE):
        places = range(start, min(start + _LINE, end))
        shown = [f"{data[at]:02x}" if at >= first and held[at - first] else "··" if at >= first else "  " for at in places]
        lines.append(f"{start:08x}  {' '.join(shown)}")
    if last > end:
        lines.append(f"… {last - end} more bytes")
    return "\n".join(lines)


def _extent(offset: int, axes: Sequence[Axis], width: int) -> tuple[int, int]:
    reaches = [(axis.size - 1) * axis.stride for axis in axes]
    low = offset + sum(reach for reach in reaches if reach < 0)
    high = offset + sum(reach for reach in reaches if reach > 0)
    return low // 8, -(-(high + width) // 8)


def _mark(held: np.ndarray, first: int, run: Run) -> None:
    """Set the places of the bytes from ``first`` on that a run has a bit in."""
    offset, axes, width = run
    if not all(axis.size for axis in axes):
        return
    window = 8 * held.size
    bits = np.array([offset - 8 * first])
    for axis in axes:
        if axis.size > 1:
            stride, start = abs(axis.stride), min(axis.stride, 0) * (axis.size - 1)
            # A negative stride is walked from its other end; elements past the window are never listed.
            bits = np.add.outer(bits + start, np.arange(min(axis.size, window // max(stride, 1) + 1)) * stride).reshape(-1)
            bits = bits[bits < window]
    for byte in range(-(-(7 + min(width, window)) // 8)):
        places = bits // 8 + byte
        held[places[(places < held.size) & (8 * byte < bits % 8 + width)]] = True
