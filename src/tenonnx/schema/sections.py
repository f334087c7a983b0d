"""A serialized ModelProto in two parts: the portable model, and the packs that may be dropped from it.

Packs are the fields ``devices`` and ``compiled_tensors``. Here they are cut off and put on by bytes: the portable part stays
what it was to the last bit, and it can be read even where the packs behind it are damaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from tenonnx.schema.messages import ModelProto

_PACKS = tuple(ModelProto.DESCRIPTOR.fields_by_name[name].number for name in ("devices", "compiled_tensors"))
_TAGS = tuple(bytes((number << 3 & 0x7F | 0x80 | 2, number >> 4)) for number in _PACKS)  # as written, of two bytes
_FIXED = {1: 8, 5: 4}  # bytes of a value by wire type
_VARINT, _LENGTH = 0, 2


class _Field(NamedTuple):
    number: int
    begin: int
    end: int


def _varint(data: Any, at: int) -> tuple[int, int]:
    """(value, where it ends); ``ValueError`` where there is none."""
    value = 0
    for count in range(10):
        if at + count >= len(data):
            break
        byte = int(data[at + count])
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, at + count + 1
    raise ValueError("no varint")


def _fields(data: Any) -> Iterator[_Field]:
    """The outermost fields of a message, in order, up to the end or to the first that is malformed."""
    at = 0
    while at < len(data):
        try:
            tag, end = _varint(data, at)
            if tag & 7 == _VARINT:
                _, end = _varint(data, end)
            elif tag & 7 == _LENGTH:
                length, end = _varint(data, end)
                end += length
            else:
                end += _FIXED[tag & 7]
        except (ValueError, KeyError):
            return
        if end > len(data):
            return
        yield _Field(tag >> 3, at, end)
        at = end


def portable(data: bytes) -> bytes:
    """A serialized model without its packs, all other bytes as they are."""
    packs = [field for field in _fields(data) if field.number in _PACKS]
    kept, at = [], 0
    for field in packs:
        kept.append(data[at : field.begin])
        at = field.end
    return b"".join((*kept, data[at:])) if packs else data


def before_packs(data: bytes) -> bytes | None:
    """What stands before the first pack, whatever follows; None where no pack is to be seen.

    Packs follow everything else, so this is the portable part of a model whose packs are damaged.
    """
    at = 0
    for field in _fields(data):
        if field.number in _PACKS or _nearly_device(data[field.begin : field.begin + 2]):
            return data[: field.begin]
        at = field.end
    head = data[at : at + 2]  # of what cannot be skipped
    return data[:at] if head in _TAGS or _nearly_device(head) else None


def _nearly_device(head: bytes) -> bool:
    """Whether these bytes are the tag of a device cut short, or with one bit flipped: no field of onnx begins like that."""
    if len(head) == 1:
        return head == _TAGS[0][:1]
    return len(head) == 2 and (int.from_bytes(head) ^ int.from_bytes(_TAGS[0])).bit_count() == 1
