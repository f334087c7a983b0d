"""Formats whose codes of four bits are places in a table of 16 values: IQ4, NormalFloat, and the FP4 of OCP and NVIDIA.

The table is a constant of the type. FP4 is a code and a table too, so that every engine runs it.

MXFP4 and NVFP4 decode as OCP Microscaling Formats 1.0 and NVIDIA define their parts. The ``gguf`` package has the same bytes but
differs at the edges: it gives finite values for the MXFP4 scale 0xFF, which is NaN; +0 for the FP4 code 8, which is -0; and in
NVFP4 it ignores the sign of the FLOAT8E4M3FN scale and takes its NaN 0x7F for 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tenonnx.structs.builder import bits, constant, structure
from tenonnx.structs.formats import Format
from tenonnx.structs.formats_linear import codes, column, interleaved, nibbles, reciprocal
from tenonnx.structs.scalars import f8e4m3fn, f8e8m0, f16, f32

# ``kvalues_iq4nl`` of ggml.
IQ4_VALUES = constant([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
# FP4 E2M1 (OCP Microscaling Formats 1.0, table 5): a sign, two bits of exponent, one of mantissa.
_E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
E2M1_VALUES = constant([*_E2M1, *(-value for value in _E2M1)], np.float32)

# The quantiles of a normal distribution, scaled to [-1, 1] with an exact zero (QLoRA, appendix E).
NF4_VALUES = constant(
    [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
        -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
        0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
        0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ],
    np.float32,
)  # fmt: skip


def _iq4_nl(x: Any) -> Any:
    return column(x.d) * x.values[codes(x.qs, 16)].astype(np.float32)


def _iq4_xs(x: Any) -> Any:
    scales = (x.scales_lo.s | x.scales_hi.s << 4).astype(np.float32) - 32
    values = x.values[codes(x.qs, 16)].astype(np.float32)
    return ((column(x.d) * scales)[:, :, None] * values.reshape(-1, 8, 32)).reshape(-1, 256)


def _mxfp4(x: Any) -> Any:
    return column(x.e) * x.values[codes(x.qs, 16)]


def _nvfp4(x: Any) -> Any:
    values = x.values[codes(x.qs, 8)].reshape(-1, 4, 16)
    return (x.scales.astype(np.float32)[:, :, None] * values).reshape(-1, 64)


def _nf4(x: Any) -> Any:
    return column(x.absmax) * x.values[interleaved((x.qs.hi, x.qs.lo), 1)]


def _quantize_nf4(x: np.ndarray) -> dict[str, Any]:
    """The nearest value of the table: off by at most 0.152 times the block's largest magnitude, half the widest gap."""
    absmax = np.abs(x).max(axis=1, keepdims=True)
    table = NF4_VALUES.array
    nearest = np.searchsorted((table[1:] + table[:-1]) / 2, x * reciprocal(absmax)).astype(np.uint8)
    return {"absmax": absmax[:, 0], "qs": {"hi": nearest[:, ::2], "lo": nearest[:, 1::2]}}


def _quantize_mxfp4(x: np.ndarray) -> dict[str, Any]:
    """The exponent of the largest value less two, and the nearest of the 16 values, ties to the first: as ``gguf`` does it."""
    largest = np.abs(x).max(axis=1, keepdims=True)
    exponent = np.where(largest > 0, np.floor(np.log2(largest)) + np.float32(125), 0).clip(0, 254).astype(np.uint8)
    scale = np.ldexp(np.float32(1), exponent.astype(np.int32) - 127)
    nearest = np.abs(scale[..., None] * E2M1_VALUES.array - x[..., None]).argmin(axis=2)
    return {"e": exponent[:, 0].view(f8e8m0.scalar.numpy), "qs": nibbles(nearest)}


_NIBBLES = bits(lo=4, hi=4)

FORMATS = {
    fmt.name: fmt
    for fmt in (
        Format("IQ4_NL", structure("IQ4_NL", d=f16, qs=_NIBBLES[16], values=IQ4_VALUES), (32,), _iq4_nl),
        Format(
            "IQ4_XS",
            structure("IQ4_XS", d=f16, scales_hi=bits(s=2)[8], scales_lo=bits(s=4)[8], qs=_NIBBLES[128], values=IQ4_VALUES),
            (256,),
            _iq4_xs,
        ),
        Format("MXFP4", structure("MXFP4", e=f8e8m0, qs=_NIBBLES[16], values=E2M1_VALUES), (32,), _mxfp4, _quantize_mxfp4),
        Format("NVFP4", structure("NVFP4", scales=f8e4m3fn[4], qs=_NIBBLES[32], values=E2M1_VALUES), (64,), _nvfp4),
        # As bitsandbytes packs it: blocks of 64, the earlier of two elements in the high half of their byte.
        Format("NF4", structure("NF4", absmax=f32, qs=_NIBBLES[32], values=NF4_VALUES), (64,), _nf4, _quantize_nf4),
    )
}
