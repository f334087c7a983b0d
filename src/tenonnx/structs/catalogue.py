"""The known formats by name. Nothing is built before it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np

from tenonnx.errors import UnsupportedError
from tenonnx.structs import functions
from tenonnx.structs.builder import bits, structure
from tenonnx.structs.formats import Format
from tenonnx.structs.physical import Tensor
from tenonnx.structs.scalars import bf16, f16, f32, i8


def _column(scale: np.ndarray) -> np.ndarray:
    return scale.astype(np.float32)[:, None]


def _reciprocal(scale: np.ndarray) -> np.ndarray:
    """1 / scale, and 0 where the scale is 0: a block of equal values has codes of 0."""
    with np.errstate(divide="ignore"):
        return np.where(scale == 0, np.float32(0), np.float32(1) / scale)


def _nibbles(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Element i in the low half of byte i, element i + 16 in its high half."""
    return codes[:, :16], codes[:, 16:]


def _codes(lo: np.ndarray, hi: np.ndarray) -> np.ndarray:
    return np.concatenate((lo, hi), axis=1).astype(np.float32)


def _scalar(name: str, node: Tensor) -> Format:
    dtype = node.scalar.numpy
    return Format(name, node, (), functions.CAST, lambda values: values.astype(np.float32), lambda values: [values.astype(dtype)])


def _q4_0() -> Format:
    def quantize(x: np.ndarray) -> list[np.ndarray]:
        # The value of largest magnitude, with its sign, becomes code 0, which stands for -8.
        largest = np.take_along_axis(x, np.abs(x).argmax(axis=1, keepdims=True), axis=1)
        scale = largest / np.float32(-8)
        # One rounding in double precision stands for the fused multiply-add of the reference.
        codes = np.trunc((x.astype(np.float64) * _reciprocal(scale).astype(np.float64) + 8.5).astype(np.float32))
        return [scale[:, 0].astype(np.float16), *_nibbles(codes.clip(0, 15).astype(np.uint8))]

    block = structure("Q4_0", d=f16, qs=bits(lo=4, hi=4)[16])
    return Format("Q4_0", block, (32,), functions.Q4_0, lambda d, lo, hi: _column(d) * (_codes(lo, hi) - np.float32(8)), quantize)


def _q4_1() -> Format:
    def quantize(x: np.ndarray) -> list[np.ndarray]:
        minimum = x.min(axis=1, keepdims=True)
        scale = (x.max(axis=1, keepdims=True) - minimum) / np.float32(15)
        steps = (x - minimum).astype(np.float64) * _reciprocal(scale).astype(np.float64)
        codes = np.trunc((steps + 0.5).astype(np.float32)).clip(0, 15).astype(np.uint8)
        return [scale[:, 0].astype(np.float16), minimum[:, 0].astype(np.float16), *_nibbles(codes)]

    block = structure("Q4_1", d=f16, m=f16, qs=bits(lo=4, hi=4)[16])
    return Format("Q4_1", block, (32,), functions.Q4_1, lambda d, m, lo, hi: _column(d) * _codes(lo, hi) + _column(m), quantize)


def _q8_0() -> Format:
    def quantize(x: np.ndarray) -> list[np.ndarray]:
        scale = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
        steps = x * _reciprocal(scale)
        rounded = np.copysign(np.floor(np.abs(steps) + np.float32(0.5)), steps)  # halves away from zero
        return [scale[:, 0].astype(np.float16), rounded.astype(np.int8)]

    block = structure("Q8_0", d=f16, qs=i8[32])
    return Format("Q8_0", block, (32,), functions.Q8_0, lambda d, qs: _column(d) * qs.astype(np.float32), quantize)


_BUILDERS: dict[str, Callable[[], Format]] = {
    "F32": lambda: _scalar("F32", f32),
    "F16": lambda: _scalar("F16", f16),
    "BF16": lambda: _scalar("BF16", bf16),
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q8_0": _q8_0,
}


@cache
def _built(name: str) -> Format:
    return _BUILDERS[name]()


class Catalogue:
    """Formats by name, in any case: ``catalogue["Q4_1"]``. Iterating gives the names."""

    def __getitem__(self, name: str) -> Format:
        if name.upper() not in _BUILDERS:
            raise UnsupportedError(f"{name!r} is no known format; known are {', '.join(_BUILDERS)}")
        return _built(name.upper())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.upper() in _BUILDERS

    def __iter__(self) -> Iterator[str]:
        return iter(_BUILDERS)

    def __len__(self) -> int:
        return len(_BUILDERS)


catalogue = Catalogue()
