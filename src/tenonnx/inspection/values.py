"""One element of a structured initializer: its bytes, its fields, and what they stand for."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from tenonnx.errors import CheckError
from tenonnx.inspection.subject import Subject
from tenonnx.schema.payload import struct_payload
from tenonnx.structs.display import plain
from tenonnx.structs.layout import leaves
from tenonnx.structs.physical import Array, Node
from tenonnx.structs.view import View, view_node


@dataclass(frozen=True)
class Element:
    """``fields`` are all leaves by path, constants included; ``decoded`` is what the element stands for in a known format."""

    title: str
    node: Node
    payload: np.ndarray | None  # UINT8[n]; None where the element does not lie in whole bytes
    fields: dict[str, np.ndarray]
    decoded: np.ndarray | None


def element_of(subject: Subject, wanted: str) -> Element:
    """The element that ``NAME[i]`` names of a structured initializer; ``NAME`` alone is a value whose type is no array.

    Raises ``CheckError`` for a name or index that does not exist, and ``PayloadError`` for bytes that do not fit the type.
    """
    value, index = _find(subject, wanted)
    where = f"struct value {value.name!r}"
    node = subject.recognizer.types.of_value(value, where)
    payload = struct_payload(value, subject.folder, where)
    seen: Any = view_node(payload, node, where)
    if not isinstance(node, Array):
        if index is not None:
            raise CheckError(f"{where}: its type is no array; give --values {value.name} without an index")
        return Element(value.name, node, payload, _fields(node, seen), None)
    if index is None:
        raise CheckError(f"{where}: has {node.dimension} elements; name one, for example --values {value.name}[0]")
    if not -node.dimension <= index < node.dimension:
        raise CheckError(f"{where}: has {node.dimension} elements; {index} is none of them")
    index %= node.dimension
    element, bits = node.element, node.element.bits
    own = payload[index * bits // 8 : (index + 1) * bits // 8] if bits % 8 == 0 else None
    known = subject.recognizer(value.type) if value.type >= 0 else None
    decoded = known.format.decode(own, known.format.block_shape) if known is not None and own is not None else None
    return Element(f"{value.name}[{index}]", element, own, _fields(element, seen[index]), decoded)


def _find(subject: Subject, wanted: str) -> tuple[Any, int | None]:
    values = {value.name: value for value in subject.model.graph.struct_initializer}
    if wanted in values:
        return values[wanted], None
    found = re.fullmatch(r"(?P<name>.*)\[(?P<index>-?[0-9]{1,19})\]", wanted, re.DOTALL)
    name = found["name"] if found else wanted
    if name in values and found:
        return values[name], int(found["index"])
    if any(tensor.name == name for tensor in subject.model.graph.initializer):
        raise CheckError(f"{subject.name}: initializer {name!r} is a plain tensor and has no fields")
    known = ", ".join(list(values)[:4]) or "none"
    raise CheckError(f"{subject.name}: has no structured initializer {name!r}; it has {known}{', …' if len(values) > 4 else ''}")


def _fields(node: Node, seen: Any) -> dict[str, np.ndarray]:
    arrays = seen.leaves() if isinstance(seen, View) else (np.asarray(seen),)
    return {leaf.path or "value": array for leaf, array in zip(leaves(node), arrays, strict=True)}


def jsonable(array: np.ndarray) -> Any:
    """An array as numbers and lists that JSON holds; what is not finite, and complex numbers, as text."""
    return _jsonable(plain(array))


def _jsonable(value: Any) -> Any:
    if isinstance(value, list):
        return [_jsonable(part) for part in value]
    return value if not isinstance(value, complex) and math.isfinite(value) else str(value)
