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


def is_external(tensor: Any) -> bool:
    """Whether a TensorProto keeps its content in another file."""
    return tensor.data_location == TensorProto.EXTERNAL


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


def _external_array(tensor: Any, root: DataRoot, where: str) -> np.ndarray:
    if tensor.raw_data:
        raise PayloadError(f"{where}: has both raw_data and external_data; keep one")
    data = root.read(where, tensor.external_data)
    if dtypes.scalar(tensor.data_type, where).bits % 8:
        inline = onnx.TensorProto(data_type=tensor.data_type, dims=tensor.dims, raw_data=data.tobytes())
        return tensor_array(inline, root, where)
    return _whole_bytes(data, tensor, where)


def _whole_bytes(data: np.ndarray, tensor: Any, where: str) -> np.ndarray:
    """``data`` as the tensor's elements, when it is exactly as long as dims and element type say."""
    kind = dtypes.scalar(tensor.data_type, where)
    count = math.prod(tensor.dims)
    expected = count * kind.bits // 8
    if min(tensor.dims, default=0) < 0 or data.size != expected:
        raise PayloadError(f"{where}: dims {list(tensor.dims)} of {kind.name} take {expected} bytes, found {data.size}")
    return data.view(kind.numpy).reshape(tuple(tensor.dims))


def tensor_array(tensor: Any, root: DataRoot, where: str | None = None) -> np.ndarray:
    """A TensorProto as a read-only NumPy array: a view of the mapped file when its data is external.

    Raises ``PayloadError`` when the bytes do not fit dims and element type.
    """
    where = where or f"initializer {tensor.name!r}"
    if is_external(tensor):
        return _external_array(tensor, root, where)
    if tensor.HasField("raw_data") and tensor.data_type in dtypes.BY_NUMBER and dtypes.BY_NUMBER[tensor.data_type].bits % 8 == 0:
        return _whole_bytes(np.frombuffer(tensor.raw_data, np.uint8), tensor, where)
    try:
        array = numpy_helper.to_array(to_onnx(tensor))
    except (ValueError, TypeError, KeyError) as error:
        shape = f"dims {list(tensor.dims)} and element type {tensor.data_type}"
        raise PayloadError(f"{where}: its data does not fit {shape}: {error}") from error
    array = np.asarray(array)
    array.flags.writeable = False
    return array
