"""Formats of the three values -1, 0 and 1 times a scale."""

from __future__ import annotations

from typing import Any

import numpy as np

from tenonnx.structs.builder import bits, structure
from tenonnx.structs.formats import Format
from tenonnx.structs.formats_linear import codes, column, components, interleaved, reciprocal, rounded
from tenonnx.structs.scalars import f16, f32, u8

_POWERS = np.array([1, 3, 9, 27, 81], np.uint8)


def _digits(packed: Any, count: int) -> Any:
    """The first ``count`` base-3 digits of fractions of 256, most significant first, as FLOAT[N, count · bytes].

    Multiplying by 3^k mod 256 drops the first k digits; the next one is the integral part of three times the fraction.
    """
    shifted = packed[:, None, :] * _POWERS[:count, None]
    return np.floor(shifted.reshape(-1, count * packed.shape[1]).astype(np.float32) * np.float32(3 / 256))


def _tq1_0(x: Any) -> Any:
    digits = np.concatenate((_digits(x.qs[:, :32], 5), _digits(x.qs[:, 32:], 5), _digits(x.qh, 4)), axis=1)
    return column(x.d) * (digits - 1)


def _trits(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """FLOAT16 scale and digits 0, 1, 2 of the values, each rounded to a multiple of the largest magnitude."""
    largest = np.abs(x).max(axis=1, keepdims=True)
    return largest[:, 0].astype(np.float16), (rounded(x * reciprocal(largest)) + 1).astype(np.uint8)


def _quantize_tq1_0(x: np.ndarray) -> dict[str, Any]:
    d, trits = _trits(x)

    def packed(part: np.ndarray, count: int) -> np.ndarray:
        weights = 3 ** (4 - np.arange(count))
        number = (part.reshape(len(part), count, part.shape[1] // count) * weights[:, None]).sum(axis=1)
        return ((number * 256 + 242) // 243).astype(np.uint8)  # the least fraction of 256 with these digits of 243

    qs = np.concatenate((packed(trits[:, :160], 5), packed(trits[:, 160:240], 5)), axis=1)
    return {"d": d, "qs": qs, "qh": packed(trits[:, 240:], 4)}


def _quantize_tq2_0(x: np.ndarray) -> dict[str, Any]:
    d, trits = _trits(x)
    return {"d": d, "qs": components(trits, ("q0", "q1", "q2", "q3"), 32)}


def _bitnet(x: Any) -> Any:
    return column(x.scale) * (interleaved(x.qs.leaves()[::-1], 32).astype(np.float32) - 1)


FORMATS = {
    fmt.name: fmt
    for fmt in (
        Format("TQ1_0", structure("TQ1_0", qs=u8[48], qh=u8[4], d=f16), (256,), _tq1_0, _quantize_tq1_0),
        Format(
            "TQ2_0",
            structure("TQ2_0", qs=bits(q0=2, q1=2, q2=2, q3=2)[64], d=f16),
            (256,),
            lambda x: column(x.d) * (codes(x.qs, 32).astype(np.float32) - 1),
            _quantize_tq2_0,
        ),
        # The codes of BitNet's I2_S: the first of four runs of 32 in the highest bits. A BitLinear has one scale per tensor,
        # which each block repeats, so that a block stands for its weights without the rest.
        Format("BITNET", structure("BITNET", scale=f32, qs=bits(q3=2, q2=2, q1=2, q0=2)[32]), (128,), _bitnet),
    )
}
