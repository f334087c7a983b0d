"""Rules on ordinary tensors: what a model stores is what its dims and element types say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tenonnx.check.diagnostics import Diagnostic
from tenonnx.errors import TenonnxError
from tenonnx.schema.external import DataRoot
from tenonnx.schema.files import payloads
from tenonnx.schema.messages import TensorProto
from tenonnx.schema.payload import is_external, tensor_array


def check_tensors(model: Any, data_root: DataRoot | None = None) -> Iterator[Diagnostic]:
    """Every tensor whose payload does not fit; external bytes are looked at only with a ``data_root``."""
    for value in payloads(model):
        if not isinstance(value, TensorProto) or (data_root is None and is_external(value)):
            continue
        where = f"tensor {value.name!r}"
        try:
            tensor_array(value, data_root or DataRoot(None), where)
        except TenonnxError as error:
            yield Diagnostic("error", "invalid", "tensor-is-exact", where, str(error))
