"""What shape inference knows of a value: element type and dimensions, each a number, a symbol's name, or unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from tenonnx import dtypes

Dim = int | str | None


@dataclass(frozen=True)
class SymTensor:
    """A tensor; ``dims`` is None when even the rank is unknown."""

    elem_type: int  # TensorProto.DataType, 0 when unknown
    dims: tuple[Dim, ...] | None

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The dimensions when every one is a number, else None."""
        if self.dims is None or not {*map(type, self.dims)} <= {int}:
            return None
        return cast("tuple[int, ...]", self.dims)

    def __str__(self) -> str:
        known = dtypes.BY_NUMBER.get(self.elem_type)
        dims = "?" if self.dims is None else ", ".join("?" if dim is None else str(dim) for dim in self.dims)
        return f"{known.name if known else 'UNKNOWN'}[{dims}]"


@dataclass(frozen=True)
class SymStruct:
    """A structured value: the index of its declaration in ``ModelProto.struct_types``, None for any."""

    type_index: int | None


@dataclass(frozen=True)
class SymSequence:
    """A sequence whose elements share one type."""

    element: Symbol | None


@dataclass(frozen=True)
class SymMap:
    """A map from keys of one scalar type to values of one type."""

    key_type: int
    value: Symbol | None


@dataclass(frozen=True)
class SymOptional:
    """A value that may be absent."""

    element: Symbol | None


@dataclass(frozen=True)
class SymQuantizedTensor:
    """A quantized page: the logical element type and shape that every allowed quantization decodes to."""

    elem_type: int
    dims: tuple[Dim, ...] | None
    allowed: tuple[int, ...]  # indices into ModelProto.quantizations, empty for any


Symbol = SymTensor | SymStruct | SymSequence | SymMap | SymOptional | SymQuantizedTensor


_INT64 = 7
PLAIN_PAGES = {1: "F32", 10: "F16", 16: "BF16"}  # element types of ordinary tensors that may be pages, and their page format


def pages_of(symbol: Symbol | None) -> SymQuantizedTensor | None:
    """The pages that a sequence, or a map with INT64 keys, holds: quantized or ordinary tensors. None for any other value."""
    held = symbol.element if isinstance(symbol, SymSequence) else None
    if isinstance(symbol, SymMap) and symbol.key_type == _INT64:
        held = symbol.value
    if isinstance(held, SymTensor) and held.elem_type in PLAIN_PAGES:
        return SymQuantizedTensor(held.elem_type, held.dims, ())
    return held if isinstance(held, SymQuantizedTensor) else None


def plain_pages(symbol: Symbol | None) -> str | None:
    """The one format of pages that are ordinary tensors, None for quantized ones."""
    held = symbol.element if isinstance(symbol, SymSequence) else symbol.value if isinstance(symbol, SymMap) else None
    return PLAIN_PAGES.get(held.elem_type) if isinstance(held, SymTensor) else None


def dims_of(shape: Any) -> tuple[Dim, ...]:
    """The dimensions of a TensorShapeProto."""
    return tuple([_dim(dim) for dim in shape.dim])


def _dim(dim: Any) -> Dim:
    kind = dim.WhichOneof("value")
    return dim.dim_value if kind == "dim_value" else dim.dim_param or None if kind == "dim_param" else None


def symbol_of(type_proto: Any) -> Symbol | None:
    """The symbol of a TypeProto; None for a type that says nothing or has no symbol (opaque, sparse)."""
    kind = type_proto.WhichOneof("value")
    value: Any = getattr(type_proto, kind) if kind else None
    if kind == "tensor_type":
        return SymTensor(value.elem_type, dims_of(value.shape) if value.HasField("shape") else None)
    if kind == "struct_type":
        return SymStruct(value.type_index if value.WhichOneof("kind") == "type_index" else None)
    if kind == "sequence_type":
        return SymSequence(symbol_of(value.elem_type))
    if kind == "optional_type":
        return SymOptional(symbol_of(value.elem_type))
    if kind == "map_type":
        return SymMap(value.key_type, symbol_of(value.value_type))
    if kind == "quantized_tensor_type":
        dims = dims_of(value.shape) if value.HasField("shape") else None
        return SymQuantizedTensor(value.elem_type, dims, tuple(value.allowed_quantized_type))
    return None
