"""Bits to NumPy arrays and back: any width at any bit offset, over any axes, least significant bit first.

An axis whose stride is not whole bytes is split into at most eight phases. Within a phase every element starts at the same bit
of its byte, so a handful of vectorized shifts does for all of them. Unpacking goes through the native kernel where the
extension is installed, which takes the same bits several times faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tenonnx.dtypes import ScalarType
from tenonnx.errors import PayloadError, ShapeError
from tenonnx.structs import native
from tenonnx.structs.layout import Axis, Leaf, container_bits, leaves
from tenonnx.structs.physical import Node, TypeLimit

Axes = tuple[Axis, ...]


def _dims(axes: Axes) -> tuple[int, ...]:
    return tuple(axis.size for axis in axes)


def new_array(shape: tuple[int, ...], dtype: np.dtype, where: str) -> np.ndarray:
    """An uninitialized array; ``TypeLimit`` for dims that NumPy cannot hold, even when one of them is 0."""
    try:
        return np.empty(shape, dtype)
    except (ValueError, MemoryError) as error:
        raise TypeLimit(f"{where}: dims {list(shape)} of {dtype} do not fit a NumPy array: {error}") from error


def strided(data: np.ndarray, offset: int, axes: Axes, dtype: np.dtype, where: str) -> np.ndarray:
    """A view of bytes as ``dtype``, without a copy: ``offset`` bits and all strides must be whole bytes."""
    dims = _dims(axes)
    if 0 in dims:
        return new_array(dims, dtype, where)
    # The stride of a single element is never used, and may be larger than NumPy's integers.
    strides = [axis.stride // 8 if axis.size > 1 else dtype.itemsize for axis in axes]
    return np.ndarray(dims, dtype, data, offset // 8, strides)


def whole_bytes(offset: int, axes: Axes, width: int) -> bool:
    """Whether every element starts and ends at a byte's edge."""
    return not (offset % 8 or width % 8 or any(axis.stride % 8 and axis.size > 1 for axis in axes))


def _phases(offset: int, axes: Axes) -> Iterator[tuple[tuple[slice, ...], int, Axes]]:
    for place, axis in enumerate(axes):
        if axis.stride % 8 == 0 or axis.size == 1:
            continue
        period = 8 // math.gcd(axis.stride, 8)
        for phase in range(min(period, axis.size)):
            regular = Axis(-(-(axis.size - phase) // period), axis.stride * period)
            rest = (*axes[:place], regular, *axes[place + 1 :])
            for index, start, whole in _phases(offset + phase * axis.stride, rest):
                yield (*index[:place], slice(phase, None, period), *index[place + 1 :]), start, whole
        return
    yield (slice(None),) * len(axes), offset, axes


def unpack(data: np.ndarray, offset: int, axes: Axes, width: int, where: str) -> np.ndarray:
    """Components of ``width`` bits as the smallest unsigned type that holds them; wider than 64, as bytes on a last axis."""
    if width > 64:
        return _unpack_bytes(data, offset, axes, width, where)
    out = new_array(_dims(axes), np.dtype(f"<u{container_bits(width) // 8}"), where)
    if out.size and not native.unpack(data, offset, axes, width, out):
        unpack_numpy(data, offset, axes, width, out)
    return out


def unpack_numpy(data: np.ndarray, offset: int, axes: Axes, width: int, out: np.ndarray) -> None:
    """Fill ``out``, which has an element, in NumPy alone."""
    where, container = "", 8 * out.itemsize
    for index, start, whole in _phases(offset, axes):
        shift = start % 8
        value = strided(data, start, whole, np.dtype(np.uint8), where).astype(out.dtype) >> shift
        for byte in range(1, -(-(shift + width) // 8)):
            following = strided(data, start + 8 * byte, whole, np.dtype(np.uint8), where).astype(out.dtype)
            value |= following << (8 * byte - shift)
        out[index] = value & (2**width - 1) if width < container else value


def _unpack_bytes(data: np.ndarray, offset: int, axes: Axes, width: int, where: str) -> np.ndarray:
    full, rest = divmod(width, 8)
    out = new_array((*_dims(axes), full + (rest > 0)), np.dtype(np.uint8), where)
    out[..., :full] = unpack(data, offset, (*axes, Axis(full, 8)), 8, where)
    if rest:
        out[..., full] = unpack(data, offset + 8 * full, axes, rest, where)
    return out


def pack(data: np.ndarray, offset: int, axes: Axes, width: int, values: np.ndarray) -> None:
    """Write ``values``, unsigned and at most ``width`` bits each, and no bit beside them: the reverse of ``unpack``."""
    if values.size == 0:
        return
    if width > 64:
        full, rest = divmod(width, 8)
        pack(data, offset, (*axes, Axis(full, 8)), 8, values[..., :full])
        if rest:
            pack(data, offset + 8 * full, axes, rest, values[..., full])
        return
    for index, start, whole in _phases(offset, axes):
        shift, part = start % 8, values[index]
        for byte in range(-(-(shift + width) // 8)):
            target = strided(data, start + 8 * byte, whole, np.dtype(np.uint8), "")
            bits = (part << shift if byte == 0 else part >> (8 * byte - shift)).astype(np.uint8)
            keep = ~((2**width - 1) << shift >> 8 * byte) & 0xFF
            target[...] = target & np.uint8(keep) | bits if keep else bits


def pack_leaves(root: Node, values: Sequence[Any], where: str) -> np.ndarray:
    """UINT8[root.nbytes] from the values of its leaves without constants, in declaration order."""
    data = np.zeros(root.nbytes, np.uint8)
    places = [leaf for leaf in leaves(root) if leaf.constant is None]
    for leaf, value in zip(places, values, strict=True):
        here = f"{where}: leaf {leaf.path!r}" if leaf.path else where
        array = np.asarray(value)
        if array.size != math.prod(leaf.shape) or array.shape[array.ndim - len(leaf.shape) + 1 :] != leaf.shape[1:]:
            raise ShapeError(f"{here} has shape {list(array.shape)}; expected {list(leaf.shape)}")
        pack(data, leaf.offset, leaf.axes, leaf.bits, codes_of(array.reshape(leaf.shape), leaf, here))
    return data


def codes_of(array: np.ndarray, leaf: Leaf, where: str) -> np.ndarray:
    """The bits of each element as an unsigned integer (as bytes on a last axis when wider than 64).

    Raises ``PayloadError`` for a value that the leaf's bits do not hold.
    """
    if leaf.scalar is not None:
        return _scalar_codes(array, leaf.scalar, where)
    target = leaf.elem_type.numpy
    if array.dtype.kind not in "iub":
        raise PayloadError(f"{where} is of dtype {array.dtype}; a component of {leaf.bits} bits takes unsigned integers")
    limit = 2 ** min(leaf.bits, 64) - 1 if leaf.bits <= 64 else 255
    if array.size and (int(array.min()) < 0 or int(array.max()) > limit):
        raise PayloadError(f"{where} has values from {array.min()} to {array.max()}; its bits hold 0 to {limit}")
    if leaf.bits > 64 and leaf.bits % 8 and array.size and int(array[..., -1].max()) >> leaf.bits % 8:
        raise PayloadError(f"{where} has bits set past its width of {leaf.bits} bits")
    return array.astype(target)


def _scalar_codes(array: np.ndarray, scalar: ScalarType, where: str) -> np.ndarray:
    cast = np.array(array, scalar.numpy, order="C")
    if scalar.name.startswith(("INT", "UINT", "BOOL")) and not np.array_equal(cast.astype(array.dtype), array):
        raise PayloadError(f"{where} has values that {scalar.name} does not hold")
    if scalar.bits == 128:
        return cast[..., None].view(np.uint8)
    codes = cast.view(np.dtype(f"<u{cast.dtype.itemsize}"))
    return codes & (2**scalar.bits - 1) if scalar.bits < 8 else codes
