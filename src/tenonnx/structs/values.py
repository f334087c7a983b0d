"""Structured values of a graph against their static types: a StructProto, and sequences, maps and optionals of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tenonnx.errors import CheckError, PayloadError, UnsupportedError
from tenonnx.schema.external import DataRoot, parse_external
from tenonnx.schema.messages import MapProto, OptionalProto, SequenceProto, StructProto
from tenonnx.structs.reader import INLINE, Types, types_of

_Item = tuple[Any, Any, str]  # a value, its type, and its place


def check_value(
    value: Any, type: Any, struct_types: Types | Sequence[Any], data_root: DataRoot | None = None, where: str = "value"
) -> None:
    """Refuse a value that is not of ``type``, the TypeProto of a graph's input, output or initializer.

    A structured value is a StructProto; a sequence a SequenceProto or a list, a map a MapProto or a dict, an optional an
    OptionalProto, None or the value itself. ``struct_type`` with a type_index takes values of that declaration alone, without
    a kind those of any concrete type, and the payload must be exactly as long as the type says. External bytes are looked at
    only with a ``data_root``. Raises ``CheckError`` for another type, ``PayloadError`` for the payload, and
    ``UnsupportedError`` for a type that holds no structured values.
    """
    types = types_of(struct_types)
    pending: list[_Item] = [(value, type, where)]
    while pending:
        value, declared, place = pending.pop()
        kind = declared.WhichOneof("value")
        if kind == "struct_type":
            _check_struct(value, declared.struct_type, types, data_root, place)
        elif kind in _INSIDE:
            pending.extend(_INSIDE[kind](value, getattr(declared, kind), place))
        else:
            raise UnsupportedError(f"{place}: type {kind or 'unset'} holds no structured values; check it as what it is")


def _check_struct(value: Any, static: Any, types: Types, data_root: DataRoot | None, where: str) -> None:
    if not isinstance(value, StructProto):
        raise CheckError(f"{where}: expected a StructProto, found {_described(value)}")
    wanted = static.WhichOneof("kind")
    if wanted not in (None, "type_index"):
        raise CheckError(f"{where}: its static type declares its own {wanted}; name a declaration by type_index")
    node = types.of_value(value, where)
    if wanted and value.type != static.type_index:
        found = "an inline type" if value.type == INLINE else f"type {value.type}"
        raise CheckError(f"{where}: it has {found}; expected struct_types[{static.type_index}], the one that is declared")
    length = _payload_length(value, data_root, where)
    if length != node.nbytes:
        raise PayloadError(f"{where}: its type takes {node.nbytes} bytes, found {length}; it is truncated or of another type")


def _payload_length(value: Any, data_root: DataRoot | None, where: str) -> int:
    if not value.external_data:
        return len(value.raw_data)
    if value.HasField("raw_data"):
        raise PayloadError(f"{where}: has both raw_data and external_data; keep one")
    length = parse_external(where, value.external_data).length
    if length is None:
        raise PayloadError(f"{where}: external_data has no length; a structured value states its exact size")
    if data_root is not None:
        data_root.read(where, value.external_data)
    return length


def _in_sequence(value: Any, declared: Any, where: str) -> Iterator[_Item]:
    if isinstance(value, SequenceProto):
        _same_type(value, declared.elem_type, where)
        value = _elements(value, where)
    if not isinstance(value, (list, tuple)):
        raise CheckError(f"{where}: expected a SequenceProto or a list, found {_described(value)}")
    for place, element in enumerate(value):
        yield element, declared.elem_type, f"{where}[{place}]"


def _in_map(value: Any, declared: Any, where: str) -> Iterator[_Item]:
    if isinstance(value, MapProto):
        keys = list(value.string_keys) or list(value.keys)
        elements = _elements(value.values, where)
        if value.key_type != declared.key_type:
            raise CheckError(f"{where}: its keys are of type {value.key_type}; expected {declared.key_type}")
        if len(keys) != len(elements) or len(set(keys)) != len(keys):
            raise CheckError(f"{where}: {len(elements)} values for {len(set(keys))} keys; each value needs a key of its own")
        _same_type(value.values, declared.value_type, where)
        value = dict(zip(keys, elements, strict=True))
    if not isinstance(value, Mapping):
        raise CheckError(f"{where}: expected a MapProto or a dict, found {_described(value)}")
    for key, element in value.items():
        yield element, declared.value_type, f"{where}[{key!r}]"


def _in_optional(value: Any, declared: Any, where: str) -> Iterator[_Item]:
    if isinstance(value, OptionalProto):
        _same_type(value, declared.elem_type, where)
        set_fields = [name for name in _OPTIONAL if value.HasField(name)]
        if len(set_fields) > 1:
            raise CheckError(f"{where}: it holds {' and '.join(set_fields)}; an optional holds one value or none")
        value = getattr(value, set_fields[0]) if set_fields else None
    if value is not None:
        yield value, declared.elem_type, where


_INSIDE = {"sequence_type": _in_sequence, "map_type": _in_map, "optional_type": _in_optional}
_OPTIONAL = ("struct_value", "sequence_value", "map_value", "optional_value")
_LISTS = ("struct_values", "sequence_values", "map_values", "optional_values")


def _elements(sequence: Any, where: str) -> list[Any]:
    filled = [name for name in _LISTS if len(getattr(sequence, name))]
    if len(filled) > 1:
        raise CheckError(f"{where}: it holds {' and '.join(filled)}; a sequence holds values of one kind")
    return list(getattr(sequence, filled[0])) if filled else []


def _same_type(value: Any, declared: Any, where: str) -> None:
    """What a container says of its elements agrees with its static type."""
    if value.HasField("value_type") and value.value_type != declared:
        raise CheckError(f"{where}: its value_type is not the declared type of its elements; set both to the same")


def _described(value: Any) -> str:
    return f"a {type(value).__name__}"
