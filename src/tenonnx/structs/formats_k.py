"""The K-quants of GGUF: 256 elements under a FLOAT16 scale, in groups of 16 or 32 with small integer scales of their own.

Layouts: ``block_q2_K`` to ``block_q6_K`` in ggml's ``ggml-common.h``. The ``gguf`` package has no encoder for these.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tenonnx.structs.builder import bits, structure
from tenonnx.structs.formats import Format
from tenonnx.structs.formats_linear import codes, column
from tenonnx.structs.scalars import f16, i8

_NIBBLES = bits(lo=4, hi=4)[128]
_CRUMBS = bits(q0=2, q1=2, q2=2, q3=2)[64]
_BITS = bits(b0=1, b1=1, b2=1, b3=1, b4=1, b5=1, b6=1, b7=1)[32]
# Eight scales and eight minima of six bits: four of each whole, then the low halves of the others, whose top bits lie above.
_HEADER = {
    "d": f16,
    "dmin": f16,
    "scales": bits(sc=6, sch=2)[4],
    "mins": bits(m=6, mh=2)[4],
    "rest": bits(scl=4, ml=4)[4],
}


def _scaled(factor: Any, values: Any, groups: int, offset: Any = None) -> Any:
    """``factor · values - offset`` with FLOAT[N, groups] factors over FLOAT[N, 256] values."""
    product = factor[:, :, None] * values.reshape(-1, groups, 256 // groups)
    return (product if offset is None else product - offset[:, :, None]).reshape(-1, 256)


def _q2_k(x: Any) -> Any:
    scales = column(x.d) * x.scales.sc.astype(np.float32)
    minima = column(x.dmin) * x.scales.mn.astype(np.float32)
    return _scaled(scales, codes(x.qs, 32).astype(np.float32), 16, minima)


def _q3_k(x: Any) -> Any:
    scales = codes(x.scales_lo, 8) | codes(x.scales_hi, 4) << 4
    # A high bit of 1 stands for an offset of 0.
    values = codes(x.qs, 32).astype(np.float32) - 4 * (1 - codes(x.hmask, 32).astype(np.float32))
    return _scaled(column(x.d) * (scales.astype(np.float32) - 32), values, 16)


def _affine_k(x: Any, values: Any) -> Any:
    """Q4_K and Q5_K alike."""
    scales = np.concatenate((x.scales.sc, x.rest.scl | x.scales.sch << 4), axis=1)
    minima = np.concatenate((x.mins.m, x.rest.ml | x.mins.mh << 4), axis=1)
    factors = [column(d) * small.astype(np.float32) for d, small in ((x.d, scales), (x.dmin, minima))]
    return _scaled(factors[0], values.astype(np.float32), 8, factors[1])


def _q6_k(x: Any) -> Any:
    values = (codes(x.ql, 64) | codes(x.qh, 32) << 4).astype(np.float32) - 32
    return _scaled(column(x.d) * x.scales.astype(np.float32), values, 16)


FORMATS = {
    fmt.name: fmt
    for fmt in (
        Format("Q2_K", structure("Q2_K", scales=bits(sc=4, mn=4)[16], qs=_CRUMBS, d=f16, dmin=f16), (256,), _q2_k),
        Format(
            "Q3_K",
            structure(
                "Q3_K",
                hmask=_BITS,
                qs=_CRUMBS,
                scales_lo=bits(lo=4, hi=4)[8],
                scales_hi=bits(q0=2, q1=2, q2=2, q3=2)[4],
                d=f16,
            ),
            (256,),
            _q3_k,
        ),
        Format("Q4_K", structure("Q4_K", **_HEADER, qs=_NIBBLES), (256,), lambda x: _affine_k(x, codes(x.qs, 32))),
        Format(
            "Q5_K",
            structure("Q5_K", **_HEADER, qh=_BITS, qs=_NIBBLES),
            (256,),
            lambda x: _affine_k(x, codes(x.qs, 32) | codes(x.qh, 32) << 4),
        ),
        Format("Q6_K", structure("Q6_K", ql=_NIBBLES, qh=_CRUMBS, scales=i8[16], d=f16), (256,), _q6_k),
    )
}
