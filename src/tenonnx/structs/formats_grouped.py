"""The group formats of ONNX models and of PyTorch checkpoints, scales and zero points in each block beside its codes.

INT4 and INT8: the codes of ``com.microsoft::MatMulNBits`` along one row [N, K], FLOAT scale, zero point.
GPTQ4 and AWQ4: a group of rows by the 8 columns that share one INT32, of a matrix [K, N] (AutoGPTQ's first checkpoint format,
whose zero points are stored less one; AutoAWQ's GEMM format, whose columns lie in the order 0 2 4 6 1 3 5 7).
FP8: 128 values under one FLOAT scale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tenonnx.structs.builder import bits, structure
from tenonnx.structs.formats import Format
from tenonnx.structs.formats_linear import codes, column, nibbles, reciprocal
from tenonnx.structs.physical import BitPacking, Tensor
from tenonnx.structs.scalars import f8e4m3fn, f8e5m2, f16, f32, u8

_GROUPS = (32, 64, 128)


def _quantize_int(largest: int, pack: Callable[[np.ndarray], Any]) -> Callable[[np.ndarray], dict[str, Any]]:
    def quantize(x: np.ndarray) -> dict[str, Any]:
        """Between the least and the greatest value, 0 included: off by at most half a scale, of (greatest - least) / largest."""
        wide = x.astype(np.float64)
        low, high = (end.clip(*limits) for end, limits in ((wide.min(axis=1), (None, 0)), (wide.max(axis=1), (0, None))))
        scale = ((high - low) / largest).astype(np.float32)
        steps = reciprocal(scale.astype(np.float64))
        # Where the scale is so small that it is rounded by much, more steps would fit than there are codes.
        zero_point = np.rint(-low * steps).clip(0, largest)
        found = np.rint(wide * steps[:, None]) + zero_point[:, None]
        return {
            "scale": scale,
            "zero_point": zero_point.astype(np.uint8),
            "qs": pack(found.clip(0, largest).astype(np.uint8)),
        }

    return quantize


def _int(x: Any, values: Any) -> Any:
    return column(x.scale) * (values.astype(np.float32) - column(x.zero_point))


def _matmul_nbits(group: int) -> Iterator[Format]:
    name = f"INT4_{group}"
    block = structure(name, scale=f32, zero_point=u8, qs=bits(lo=4, hi=4)[group // 2])
    yield Format(name, block, (group,), lambda x: _int(x, codes(x.qs, 1)), _quantize_int(15, lambda q: nibbles(q, 1)))
    name = f"INT8_{group}"
    block = structure(name, scale=f32, zero_point=u8, qs=u8[group])
    yield Format(name, block, (group,), lambda x: _int(x, x.qs), _quantize_int(255, lambda q: q))


def _nibbles_of(order: tuple[int, ...], dimension: int) -> BitPacking:
    """An INT32 of eight nibbles, each named after the element that it holds."""
    return bits(**{f"n{place}": 4 for place in order})[dimension]


def _in_order(packing: Any) -> Any:
    """The eight nibbles of each INT32 by their names: UINT8[N, dimension, 8]."""
    return np.stack([packing[f"n{place}"] for place in range(8)], axis=2)


def _gptq(x: Any, group: int) -> Any:
    # Eight rows share an INT32 of qweight, eight columns one of qzeros.
    rows = _in_order(x.qweight).reshape(-1, group // 8, 8, 8).transpose(0, 1, 3, 2).reshape(-1, group, 8)
    zeros = (_in_order(x.qzeros) + 1) & 15
    return x.scales.astype(np.float32)[:, None, :] * (rows.astype(np.float32) - zeros.astype(np.float32))


def _awq(x: Any) -> Any:
    values = _in_order(x.qweight).astype(np.float32) - _in_order(x.qzeros).astype(np.float32)
    return x.scales.astype(np.float32)[:, None, :] * values


def _checkpoint(group: int) -> Iterator[Format]:
    plain, awq = tuple(range(8)), (0, 2, 4, 6, 1, 3, 5, 7)
    # GPTQ: the INT32s of eight columns, for each eight rows.
    block = structure(f"GPTQ4_{group}", scales=f16[8], qzeros=_nibbles_of(plain, 1), qweight=_nibbles_of(plain, group))
    yield Format(f"GPTQ4_{group}", block, (group, 8), lambda x: _gptq(x, group))
    block = structure(f"AWQ4_{group}", scales=f16[8], qzeros=_nibbles_of(awq, 1), qweight=_nibbles_of(awq, group))
    yield Format(f"AWQ4_{group}", block, (group, 8), _awq)


def _fp8(name: str, kind: Tensor, largest: float) -> Format:
    dtype = kind.scalar.numpy

    def quantize(x: np.ndarray) -> dict[str, Any]:
        """The largest magnitude becomes the largest finite value; each value is off by at most half a unit in its last place."""
        scale = np.abs(x).max(axis=1, keepdims=True) / np.float32(largest)
        steps = x.astype(np.float64) * reciprocal(scale.astype(np.float64))
        return {"scale": scale[:, 0], "values": steps.clip(-largest, largest).astype(dtype)}

    block = structure(name, scale=f32, values=kind[128])
    return Format(name, block, (128,), lambda x: column(x.scale) * x["values"].astype(np.float32), quantize)


FORMATS = {
    fmt.name: fmt
    for fmt in (
        *(fmt for group in _GROUPS for fmt in _matmul_nbits(group)),
        *(fmt for group in _GROUPS for fmt in _checkpoint(group)),
        _fp8("FP8_E4M3", f8e4m3fn, 448),
        _fp8("FP8_E5M2", f8e5m2, 57344),
    )
}
