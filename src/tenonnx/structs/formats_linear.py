"""Plain floats, and the block formats of GGUF with one scale, and perhaps a minimum, per block.

Layouts: ``block_q4_0`` and its kin in ggml's ``ggml-common.h``. Encoders give the bytes that the ``gguf`` package gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tenonnx.structs.builder import bits, structure
from tenonnx.structs.formats import Format
from tenonnx.structs.physical import Tensor
from tenonnx.structs.scalars import bf16, f16, f32, i8


def column(scale: Any) -> Any:
    """One factor per block as FLOAT[N, 1]."""
    return scale.astype(np.float32)[:, None]


def interleaved(parts: Sequence[Any], run: int) -> Any:
    """Parts of a block in the order of elements: a run of the first, a run of the second, …, and so on from the start again."""
    total = len(parts) * parts[0].shape[1]
    return np.stack([part.reshape(-1, part.shape[1] // run, run) for part in parts], axis=2).reshape(-1, total)


def codes(packing: Any, run: int) -> Any:
    """The components of a packing interleaved, those of the least significant bits first.

    Nibbles in runs of 16 of a block of 32 are what GGUF calls split: the low halves first, then the high ones.
    """
    return interleaved(packing.leaves(), run)


def components(values: np.ndarray, names: tuple[str, ...], run: int) -> dict[str, np.ndarray]:
    """The reverse of ``codes``: UINT8 components by name from [N, elements]."""
    blocks, each = len(values), values.shape[1] // len(names)
    parts = values.astype(np.uint8).reshape(blocks, each // run, len(names), run)
    return {name: parts[:, :, place].reshape(blocks, each) for place, name in enumerate(names)}


def nibbles(values: np.ndarray, run: int = 16) -> dict[str, np.ndarray]:
    """The low four bits of codes as components ``lo`` and ``hi``."""
    return components(values & 15, ("lo", "hi"), run)


def reciprocal(scale: np.ndarray) -> np.ndarray:
    """1 / scale, and 0 where the scale is 0: a block of equal values has codes of 0."""
    with np.errstate(divide="ignore"):
        return np.where(scale == 0, np.float32(0), np.float32(1) / scale)


def rounded(x: np.ndarray) -> np.ndarray:
    """To the nearest integer, halves away from zero."""
    return np.copysign(np.floor(np.abs(x) + np.float32(0.5)), x)


def _scalar(name: str, node: Tensor) -> Format:
    dtype = node.scalar.numpy
    return Format(name, node, (), lambda values: values.astype(np.float32), lambda values: [values.astype(dtype)])


def _symmetric(x: np.ndarray, half: int) -> tuple[np.ndarray, np.ndarray]:
    """Scale and codes where the value of largest magnitude, with its sign, becomes code 0, which stands for -half."""
    largest = np.take_along_axis(x, np.abs(x).argmax(axis=1, keepdims=True), axis=1)
    scale = largest / np.float32(-half)
    # One rounding in double precision stands for the fused multiply-add of the reference.
    found = np.trunc((x.astype(np.float64) * reciprocal(scale).astype(np.float64) + (half + 0.5)).astype(np.float32))
    return scale[:, 0].astype(np.float16), found.clip(0, 2 * half - 1).astype(np.uint8)


def _affine(x: np.ndarray, largest: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scale, minimum and codes from 0 to ``largest`` between the least and the greatest value."""
    minimum = x.min(axis=1, keepdims=True)
    scale = (x.max(axis=1, keepdims=True) - minimum) / np.float32(largest)
    steps = (x - minimum).astype(np.float64) * reciprocal(scale).astype(np.float64)
    found = np.trunc((steps + 0.5).astype(np.float32)).clip(0, largest).astype(np.uint8)
    return scale[:, 0].astype(np.float16), minimum[:, 0].astype(np.float16), found


def _quantize_q4_0(x: np.ndarray) -> dict[str, Any]:
    d, q = _symmetric(x, 8)
    return {"d": d, "qs": nibbles(q)}


def _quantize_q4_1(x: np.ndarray) -> dict[str, Any]:
    d, m, q = _affine(x, 15)
    return {"d": d, "m": m, "qs": nibbles(q)}


def _quantize_q5_0(x: np.ndarray) -> dict[str, Any]:
    d, q = _symmetric(x, 16)
    return {"d": d, "qh": {"h": q >> 4}, "qs": nibbles(q)}


def _quantize_q5_1(x: np.ndarray) -> dict[str, Any]:
    d, m, q = _affine(x, 31)
    return {"d": d, "m": m, "qh": {"h": q >> 4}, "qs": nibbles(q)}


def _quantize_q8_0(x: np.ndarray) -> dict[str, Any]:
    scale = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    return {"d": scale[:, 0].astype(np.float16), "qs": rounded(x * reciprocal(scale)).astype(np.int8)}


def _four(x: Any) -> Any:
    return codes(x.qs, 16).astype(np.float32)


def _five(x: Any) -> Any:
    return (codes(x.qs, 16) | x.qh.h << 4).astype(np.float32)


_NIBBLES = bits(lo=4, hi=4)[16]
_HIGH = bits(h=1)[32]

FORMATS = {
    fmt.name: fmt
    for fmt in (
        _scalar("F32", f32),
        _scalar("F16", f16),
        _scalar("BF16", bf16),
        Format("Q4_0", structure("Q4_0", d=f16, qs=_NIBBLES), (32,), lambda x: column(x.d) * (_four(x) - 8), _quantize_q4_0),
        Format(
            "Q4_1",
            structure("Q4_1", d=f16, m=f16, qs=_NIBBLES),
            (32,),
            lambda x: column(x.d) * _four(x) + column(x.m),
            _quantize_q4_1,
        ),
        Format(
            "Q5_0",
            structure("Q5_0", d=f16, qh=_HIGH, qs=_NIBBLES),
            (32,),
            lambda x: column(x.d) * (_five(x) - 16),
            _quantize_q5_0,
        ),
        Format(
            "Q5_1",
            structure("Q5_1", d=f16, m=f16, qh=_HIGH, qs=_NIBBLES),
            (32,),
            lambda x: column(x.d) * _five(x) + column(x.m),
            _quantize_q5_1,
        ),
        Format(
            "Q8_0", structure("Q8_0", d=f16, qs=i8[32]), (32,), lambda x: column(x.d) * x.qs.astype(np.float32), _quantize_q8_0
        ),
        # A bit of 1 stands for +d, of 0 for -d.
        Format(
            "Q1_0",
            structure("Q1_0", d=f16, qs=bits(sign=1)[128]),
            (128,),
            lambda x: column(x.d) * (2 * x.qs.sign.astype(np.float32) - 1),
        ),
    )
}
