"""The fixed-width ONNX scalar types: their numbers, widths in bits, and NumPy dtypes."""

from __future__ import annotations

from typing import NamedTuple

import ml_dtypes
import numpy as np

from tenonnx.errors import ShapeError, UnsupportedError


class ScalarType(NamedTuple):
    """One fixed-width ONNX element type; ``bits`` is its width inside a packed value."""

    name: str
    number: int  # TensorProto.DataType
    bits: int
    numpy: np.dtype


def _scalar(name: str, number: int, bits: int, numpy: object) -> ScalarType:
    return ScalarType(name, number, bits, np.dtype(numpy))  # type: ignore[call-overload]


# Little-endian throughout, as the specification's physical rules demand of every multi-byte value.
SCALARS: tuple[ScalarType, ...] = (
    _scalar("FLOAT", 1, 32, "<f4"),
    _scalar("UINT8", 2, 8, "u1"),
    _scalar("INT8", 3, 8, "i1"),
    _scalar("UINT16", 4, 16, "<u2"),
    _scalar("INT16", 5, 16, "<i2"),
    _scalar("INT32", 6, 32, "<i4"),
    _scalar("INT64", 7, 64, "<i8"),
    _scalar("BOOL", 9, 8, "?"),
    _scalar("FLOAT16", 10, 16, "<f2"),
    _scalar("DOUBLE", 11, 64, "<f8"),
    _scalar("UINT32", 12, 32, "<u4"),
    _scalar("UINT64", 13, 64, "<u8"),
    _scalar("COMPLEX64", 14, 64, "<c8"),
    _scalar("COMPLEX128", 15, 128, "<c16"),
    _scalar("BFLOAT16", 16, 16, ml_dtypes.bfloat16),
    _scalar("FLOAT8E4M3FN", 17, 8, ml_dtypes.float8_e4m3fn),
    _scalar("FLOAT8E4M3FNUZ", 18, 8, ml_dtypes.float8_e4m3fnuz),
    _scalar("FLOAT8E5M2", 19, 8, ml_dtypes.float8_e5m2),
    _scalar("FLOAT8E5M2FNUZ", 20, 8, ml_dtypes.float8_e5m2fnuz),
    _scalar("UINT4", 21, 4, ml_dtypes.uint4),
    _scalar("INT4", 22, 4, ml_dtypes.int4),
    _scalar("FLOAT4E2M1", 23, 4, ml_dtypes.float4_e2m1fn),
    _scalar("FLOAT8E8M0", 24, 8, ml_dtypes.float8_e8m0fnu),
    _scalar("UINT2", 25, 2, ml_dtypes.uint2),
    _scalar("INT2", 26, 2, ml_dtypes.int2),
    _scalar("FLOAT6E2M3", 27, 6, ml_dtypes.float6_e2m3fn),
    _scalar("FLOAT6E3M2", 28, 6, ml_dtypes.float6_e3m2fn),
)

BY_NUMBER: dict[int, ScalarType] = {scalar.number: scalar for scalar in SCALARS}
BY_NAME: dict[str, ScalarType] = {scalar.name: scalar for scalar in SCALARS}
STRING = 8  # the one ONNX element type of no fixed width


def scalar(elem_type: int, where: str = "value") -> ScalarType:
    """The fixed-width type of a ``TensorProto.DataType`` number; ``UnsupportedError`` for any other."""
    found = BY_NUMBER.get(elem_type)
    if found is None:
        raise UnsupportedError(f"{where}: element type {elem_type} has no fixed width; use one of {', '.join(BY_NAME)}")
    return found


def of_numpy(dtype: np.dtype, where: str = "value") -> ScalarType:
    """The ONNX type of a NumPy dtype; ``ShapeError`` for a dtype that ONNX does not have."""
    native = dtype.newbyteorder("<") if dtype.kind in "iufc" else dtype
    for candidate in SCALARS:
        if candidate.numpy == native:
            return candidate
    raise ShapeError(f"{where}: ONNX has no element type for a NumPy array of dtype {dtype}; convert it first")
