"""The payload bytes of tensors and structured values, inline or external, without a copy where there is a choice."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tenonnx import dtypes
from tenonnx.errors import PayloadError
from tenonnx.schema.external import DataRoot
from tenonnx.schema.messages import TensorProto, to_onnx

_MAX_RANK = 64  # of a NumPy array
_MAX_BYTES = 2**63 - 1
INLINE_FIELDS = tuple(
    field.name for field in TensorProto.DESCRIPTOR.fields if field.name.endswith("_data") and field.name != "external_data"
)


def is_external(value: Any) -> bool:
    """Whether a TensorProto or StructProto keeps its content in another file."""
    if isinstance(value, TensorProto):
        return bool(value.data_location == TensorProto.EXTERNAL)
    return bool(value.external_data)


def struct_payload(value: Any, root: DataRoot, where: str | None = None) -> np.ndarray:
    """UINT8[n], read-only: the payload of a StructProto; its length is not checked against its type here."""
    where = where or f"struct value {value.name!r}"
    if value.external_data:
        if value.HasField("raw_data"):
            raise PayloadError(f"{where}: has both raw_data and external_data; keep one")
        if not any(entry.key == "length" for entry in value.external_data):
            raise PayloadError(f"{where}: external_data has no length; a structured value states its exact size")
        return root.read(where, value.external_data)
    return np.frombuffer(value.raw_data, np.uint8)


def tensor_array(tensor: Any, root: DataRoot, where: str | None = None) -> np.ndarray:
    """A TensorProto as a read-only NumPy array: a view of the mapped file when its data is external.

    Raises ``PayloadError`` when the bytes do not fit dims and element type.
    """
    where = where or f"initializer {tensor.name!r}"
    _check_dims(tensor, where)
    if is_external(tensor):
        inline = [field for field in INLINE_FIELDS if _is_set(tensor, field)]
        if inline:
            raise PayloadError(f"{where}: has both {inline[0]} and external_data; keep one")
        return _elements(root.read(where, tensor.external_data), tensor, where)
    kind = dtypes.BY_NUMBER.get(tensor.data_type)
    if kind is not None and tensor.HasField("raw_data"):
        return _elements(np.frombuffer(tensor.raw_data, np.uint8), tensor, where)
    # onnx's own reader lets packed nibbles and pairs run on past the last element.
    if kind is not None and kind.bits in (2, 4) and len(tensor.int32_data) != _packed_bytes(tensor, kind):
        expected, found = _packed_bytes(tensor, kind), len(tensor.int32_data)
        raise PayloadError(f"{where}: dims {list(tensor.dims)} of {kind.name} take {expected} bytes of int32_data, found {found}")
    return _decoded(to_onnx(tensor), where)


def raw_bytes(value: Any) -> bytes | None:
    """The inline payload of a TensorProto or StructProto in the form of raw_data; None where there is none to move.

    That is external content, strings (which have no such form), and a value without any payload field.
    """
    if is_external(value):
        return None
    if value.HasField("raw_data"):
        return bytes(value.raw_data)
    if not isinstance(value, TensorProto) or value.data_type == dtypes.STRING:
        return None
    if not any(_is_set(value, field) for field in INLINE_FIELDS):
        return None
    return bytes(numpy_helper.from_array(tensor_array(value, DataRoot(None))).raw_data)


def _is_set(tensor: Any, field: str) -> bool:
    return bool(tensor.HasField(field) if field == "raw_data" else len(getattr(tensor, field)))


def _check_dims(tensor: Any, where: str) -> None:
    """Dims that NumPy and the kernels can address, whatever the payload is."""
    dims = list(tensor.dims)
    if tensor.HasField("segment"):
        raise PayloadError(f"{where}: is one segment of a larger tensor, which ONNX has no way to join; store it whole")
    if min(dims, default=0) < 0:
        raise PayloadError(f"{where}: dims {dims} hold a negative one; a stored tensor has concrete dims")
    if len(dims) > _MAX_RANK:
        raise PayloadError(f"{where}: has {len(dims)} dims; at most {_MAX_RANK} are supported")
    # The dims other than zero too: an empty array of [0, 2^62] elements has strides that wrap.
    if math.prod(dim for dim in dims if dim) > _MAX_BYTES // 16:
        raise PayloadError(f"{where}: dims {dims} are more elements than memory can address; the model is damaged")


def _packed_bytes(tensor: Any, kind: dtypes.ScalarType) -> int:
    return -(-math.prod(tensor.dims) * kind.bits // 8)


def _elements(data: np.ndarray, tensor: Any, where: str) -> np.ndarray:
    """``data`` as the tensor's elements, when it is exactly as long as dims and element type say."""
    kind = dtypes.scalar(tensor.data_type, where)
    expected = _packed_bytes(tensor, kind)
    if data.size != expected:
        raise PayloadError(
            f"{where}: dims {list(tensor.dims)} of {kind.name} take {expected} bytes, found {data.size}; "
            "the data is truncated or of another tensor"
        )
    if kind.bits % 8:
        return _decoded(onnx.TensorProto(data_type=tensor.data_type, dims=tensor.dims, raw_data=data.tobytes()), where)
    if kind.name == "BOOL" and data.max(initial=0) > 1:
        raise PayloadError(f"{where}: holds a BOOL byte of {data.max()}; expected 0 or 1")
    if data.ctypes.data % kind.numpy.itemsize:
        data = data.copy()  # an offset that splits elements: NumPy copes with it, kernels do not
        data.flags.writeable = False
    return data.view(kind.numpy).reshape(tuple(tensor.dims))


def _decoded(stock: Any, where: str) -> np.ndarray:
    """The elements of a stock TensorProto that needs unpacking or conversion."""
    try:
        array = np.asarray(numpy_helper.to_array(stock))
    except (ValueError, TypeError, KeyError) as error:
        shape = f"dims {list(stock.dims)} and element type {stock.data_type}"
        raise PayloadError(f"{where}: its data does not fit {shape}: {error}") from error
    array.flags.writeable = False
    return array
