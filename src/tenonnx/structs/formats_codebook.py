"""Formats whose codes of four bits are places in a table of 16 values: IQ4, NormalFloat, and the FP4 of OCP and NVIDIA.

The table is a constant of the type. FP4 is a code and a table too, so that every engine runs it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tenonnx.structs.builder import bits, constant, structure
from tenonnx.structs.formats import Format
from tenonnx.structs.formats_linear import codes, column, nibbles
from tenonnx.structs.scalars import f8e4m3fn, f8e8m0, f16

# ``kvalues_iq4nl`` of ggml.
IQ4_VALUES = constant([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
# FP4 E2M1 (OCP Microscaling Formats 1.0, table 5): a sign, two bits of exponent, one of mantissa.
_E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
E2M1_VALUES = constant([*_E2M1, *(-value for value in _E2M1)], np.float32)


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
    )
}
