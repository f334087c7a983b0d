"""Declaring a format in a model: its block type and F once, and one root per shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tenonnx.errors import CheckError
from tenonnx.schema.domains import FORMATS_DOMAIN, VERSION
from tenonnx.structs import functions
from tenonnx.structs.builder import to_proto
from tenonnx.structs.formats import Format
from tenonnx.structs.physical import Tensor


def declare(model: Any, format: Format, shape: Sequence[int]) -> int:
    """The index in ``model.struct_types`` of the root for a tensor of ``shape``, declared on first use.

    With it the model gets the format's block type, its decoder among ``model.functions``, and the imports that these need.
    Raises ``ShapeError`` when a block does not divide the shape, and ``CheckError`` when the model holds another function
    under the decoder's name.
    """
    format.grid(shape)
    _add_function(model, format.function)
    if format.encoder is not None:
        _add_function(model, format.encoder)
    _import(model, "", functions.OPSET)
    _import(model, FORMATS_DOMAIN, VERSION)
    block = None if isinstance(format.block_type, Tensor) else _index_of(model, to_proto(format.block_type))
    return _index_of(model, format.array(shape, block))


def _index_of(model: Any, declaration: Any) -> int:
    for index, known in enumerate(model.struct_types):
        if known.name == declaration.name and known == declaration:
            return index
    model.struct_types.append(declaration)
    return len(model.struct_types) - 1


def _import(model: Any, domain: str, version: int) -> None:
    if all(entry.domain != domain for entry in model.opset_import):
        model.opset_import.add(domain=domain, version=version)


def _add_function(model: Any, function: Any) -> None:
    for known in model.functions:
        if (known.domain, known.name, known.overload) == (function.domain, function.name, function.overload):
            if known != function:
                name = f"{function.domain}.{function.name}"
                raise CheckError(f"function {name} of the model is not this version's decoder; rename one of the two")
            return
    model.functions.append(function)
