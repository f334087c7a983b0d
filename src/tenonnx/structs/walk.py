"""The one walk over a declared type: every message of it with its place, in declaration order, references not followed."""

from __future__ import annotations

from typing import Any, NamedTuple

from tenonnx.structs.physical import MAX_DEPTH, MAX_FIELDS, TypeLimit

MAX_PARTS = 4 * MAX_FIELDS  # messages of one declaration


class Part(NamedTuple):
    """One StructTypeProto or TypeProto of a declaration.

    ``kind`` is the name of the oneof's field that is set: array, structure, bit_packing, type_index for a structured type,
    tensor_type and its kin for any other, None where nothing is set. ``children`` are positions in the walk: the element of an
    array, the fields of a structure that have a type.
    """

    where: str
    message: Any
    kind: str | None
    structured: bool
    level: int  # 0 is the declaration itself
    children: list[int]


def walk(declaration: Any, where: str) -> list[Part]:
    """The parts of a declaration, parents before children; ``TypeLimit`` where it is too deep or too large to read."""
    parts: list[Part] = []
    # Each entry: message, is it a StructTypeProto, place, level, the children of its parent.
    pending: list[tuple[Any, bool, str, int, list[int]]] = [(declaration, True, where, 0, [])]
    while pending:
        message, structured, place, level, siblings = pending.pop()
        if not structured and message.WhichOneof("value") == "struct_type":
            message, structured, place = message.struct_type, True, f"{place}.struct_type"
        if level > MAX_DEPTH:
            raise TypeLimit(f"{place}: it nests more than {MAX_DEPTH} levels deep; flatten the type")
        if len(parts) + len(pending) > MAX_PARTS:
            raise TypeLimit(f"{place}: the declaration has more than {MAX_PARTS} parts; use arrays")
        kind = message.WhichOneof("kind" if structured else "value")
        if kind == "structure" and len(message.structure.field) > MAX_FIELDS:
            raise TypeLimit(f"{place}: it has {len(message.structure.field)} fields, more than {MAX_FIELDS}; use arrays")
        if kind == "bit_packing" and len(message.bit_packing.component) > MAX_FIELDS:
            raise TypeLimit(
                f"{place}: it has {len(message.bit_packing.component)} components, more than {MAX_FIELDS}; use arrays"
            )
        children: list[int] = []
        siblings.append(len(parts))
        parts.append(Part(place, message, kind, structured, level, children))
        if kind == "array":
            pending.append((message.array.element_type, False, f"{place}.array.element_type", level + 1, children))
        elif kind == "structure":
            fields = [
                (field.type, False, f"{place}.structure.field[{index}].type", level + 1, children)
                for index, field in enumerate(message.structure.field)
                if field.HasField("type")
            ]
            pending.extend(reversed(fields))
    return parts
