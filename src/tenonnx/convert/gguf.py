"""A bounded reader of GGUF files: metadata, and where each tensor's bytes lie. No tensor byte is read.

Layout (little-endian, versions 2 and 3):
    header   "GGUF", version u32, tensors u64, entries u64
    entry    key string, kind u32, value            a string is its length u64 and that many bytes of UTF-8
    tensor   name string, rank u32, dims u64[rank], type u32, offset u64
    data     from the next multiple of general.alignment (32); offsets count from there, dims from the innermost
Every length and count is compared with the bytes that remain before anything is read or allocated.
"""

from __future__ import annotations

import math
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tenonnx.convert.metadata import Metadata
from tenonnx.convert.tensor_types import TENSOR_TYPES, BlockSize
from tenonnx.errors import PayloadError, UnsupportedError
from tenonnx.schema.external import map_file

_MAGIC = b"GGUF"
_HEADER = struct.Struct("<4sIQQ")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_SCALARS: dict[int, np.dtype[Any]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_MIN_ENTRY = 8 + 4 + 1  # bytes of the shortest key-value entry
_MIN_TENSOR = 8 + 4 + 4 + 8
_MAX_RANK = 4
_MAX_NESTING = 4  # arrays of arrays
_SPLIT_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


class GgufTensor(NamedTuple):
    """Where a tensor's bytes lie: ``nbytes`` at ``offset`` of ``file``; ``shape`` is row-major, [rows, columns]."""

    name: str
    shape: tuple[int, ...]
    format: str
    offset: int
    nbytes: int
    file: Path


@dataclass(frozen=True)
class Gguf:
    """A GGUF model: the metadata of its first file and the tensors of all its files, in their order."""

    files: tuple[Path, ...]  # resolved
    metadata: Metadata
    tensors: dict[str, GgufTensor]


class _Reader:
    """Takes values off the front of a mapped file; ``PayloadError`` where the file ends before the value does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = map_file(path).data
        self.view = memoryview(self.data)  # type: ignore[arg-type]
        self.position = 0

    @property
    def remaining(self) -> int:
        return self.data.size - self.position

    def need(self, nbytes: int, what: str) -> None:
        if nbytes > self.remaining:
            raise PayloadError(
                f"{self.path}: {what} takes {nbytes} bytes at byte {self.position}, but only {self.remaining} remain; "
                "the file is truncated or damaged: fetch it again"
            )

    def fail(self, what: str) -> PayloadError:
        return PayloadError(f"{self.path}: {what}; the file is damaged or no GGUF: fetch it again")

    def fields(self, layout: struct.Struct, what: str) -> tuple[Any, ...]:
        self.need(layout.size, what)
        self.position += layout.size
        return layout.unpack_from(self.view, self.position - layout.size)

    def strings(self, count: int, what: str) -> list[str]:
        """``count`` strings: one plain loop, since a vocabulary has 10^5 of them."""
        self.need(8 * count, f"{what} of {count} strings")
        view, position, size, length_of = self.view, self.position, self.data.size, _U64.unpack_from
        texts = []
        try:
            for _ in range(count):
                start = position + 8
                if start > size:
                    break
                position = start + length_of(view, position)[0]
                if position > size:
                    break
                texts.append(str(view[start:position], "utf-8"))
        except UnicodeDecodeError as error:
            raise self.fail(f"string {len(texts)} of {what} is not UTF-8") from error
        if len(texts) != count:
            raise PayloadError(f"{self.path}: string {len(texts)} of {what} runs past the end of the file; fetch it again")
        self.position = position
        return texts

    def value(self, kind: int, what: str) -> Any:
        """A metadata value: int, float, bool, str, a NumPy array of numbers, a list of str, or a list of such."""
        if kind == _STRING:
            return self.strings(1, what)[0]
        if kind == _ARRAY:
            return self.array(what, _MAX_NESTING)
        return self.numbers(kind, 1, what)[0].item()

    def array(self, what: str, nesting: int) -> Any:
        (kind,), (count,) = self.fields(_U32, what), self.fields(_U64, what)
        if kind == _STRING:
            return self.strings(count, what)
        if kind != _ARRAY:
            return self.numbers(kind, count, what)
        if nesting == 0:
            raise self.fail(f"{what} nests arrays more than {_MAX_NESTING} deep")
        self.need(12 * count, f"{what} of {count} arrays")
        return [self.array(what, nesting - 1) for _ in range(count)]

    def numbers(self, kind: int, count: int, what: str) -> np.ndarray:
        dtype = _SCALARS.get(kind)
        if dtype is None:
            raise self.fail(f"{what} has value kind {kind}; known are 0 to 12")
        nbytes = dtype.itemsize * count
        self.need(nbytes, what)
        data = self.data[self.position : self.position + nbytes]
        self.position += nbytes
        if kind == _BOOL and (data > 1).any():
            raise self.fail(f"{what} is a boolean of value {data.max()}; expected 0 or 1")
        return data.view(dtype)


def _counts(reader: _Reader) -> tuple[int, int]:
    """Tensors and metadata entries that the header announces."""
    if bytes(reader.view[:4]) != _MAGIC:
        raise PayloadError(f"{reader.path}: is no GGUF file: it does not begin with the bytes GGUF")
    _, version, tensors, entries = reader.fields(_HEADER, "the header")
    if version & 0xFFFF == 0:
        raise UnsupportedError(f"{reader.path}: is a big-endian GGUF; only little-endian files are read: convert it again")
    if version not in (2, 3):
        raise UnsupportedError(f"{reader.path}: is GGUF version {version}; versions 2 and 3 are read: convert it again")
    reader.need(_MIN_ENTRY * entries, f"metadata of {entries} entries")
    reader.need(_MIN_TENSOR * tensors, f"a list of {tensors} tensors")
    return tensors, entries


def _metadata(reader: _Reader, entries: int) -> Metadata:
    metadata = Metadata(reader.path)
    for number in range(entries):
        key = reader.strings(1, f"the key of metadata entry {number}")[0]
        if key in metadata:
            raise reader.fail(f"metadata key {key!r} stands twice")
        (kind,) = reader.fields(_U32, f"the kind of {key!r}")
        metadata[key] = reader.value(kind, f"metadata {key!r}")
    return metadata


def _tensor_entry(reader: _Reader, number: int) -> tuple[str, tuple[int, ...], BlockSize, int]:
    """Name, row-major shape, type and offset within the data section."""
    name = reader.strings(1, f"the name of tensor {number}")[0]
    where = f"tensor {name!r}"
    (rank,) = reader.fields(_U32, where)
    if rank > _MAX_RANK:
        raise reader.fail(f"{where} has {rank} dimensions; at most {_MAX_RANK} are allowed")
    dims = reader.fields(struct.Struct(f"<{rank}Q"), where)
    (number_of_type,), (offset,) = reader.fields(_U32, where), reader.fields(_U64, where)
    kind = TENSOR_TYPES.get(number_of_type)
    if kind is None:
        known = ", ".join(size.name for size in TENSOR_TYPES.values())
        raise UnsupportedError(f"{reader.path}: {where} has type number {number_of_type}; known types are {known}")
    columns = dims[0] if rank else 1
    if columns % kind.elements:
        raise reader.fail(f"{where} has rows of {columns} elements, which blocks of {kind.elements} ({kind.name}) do not divide")
    return name, tuple(reversed(dims)), kind, offset


def _read_file(path: Path) -> tuple[Metadata, list[GgufTensor]]:
    reader = _Reader(path)
    count, entries = _counts(reader)
    metadata = _metadata(reader, entries)
    listed = [_tensor_entry(reader, number) for number in range(count)]
    alignment = metadata.integer("general.alignment", 32)
    if alignment <= 0 or alignment & (alignment - 1):
        raise reader.fail(f"general.alignment is {alignment}; expected a power of two")
    start = reader.position + -reader.position % alignment
    tensors = []
    for name, shape, kind, offset in listed:
        nbytes = math.prod(shape) // kind.elements * kind.nbytes
        if offset % alignment:
            raise reader.fail(f"tensor {name!r} begins at offset {offset}, no multiple of the alignment {alignment}")
        if nbytes > reader.data.size - start - offset:
            raise PayloadError(
                f"{path}: tensor {name!r} ({kind.name} {list(shape)}) takes {nbytes} bytes at byte {start + offset}, "
                f"but the file holds {reader.data.size}; it is truncated or damaged: fetch it again"
            )
        tensors.append(GgufTensor(name, shape, kind.name, start + offset, nbytes, path))
    return metadata, tensors


def resolved(path: str | os.PathLike[str]) -> Path:
    """``path`` without symbolic links; unlike ``Path.resolve``, a loop of them is left to whoever opens it."""
    return Path(os.path.realpath(path))


def _parts(path: Path, count: int) -> list[Path]:
    """All files of a split model, by the name of one of them."""
    match = _SPLIT_NAME.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        raise PayloadError(
            f"{path}: is one of {count} parts but not named -00001-of-{count:05d}.gguf or alike; give the parts their names back"
        )
    parts = [path.with_name(f"{match['stem']}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    for part in parts:
        if not part.exists():
            raise PayloadError(f"{part}: is missing; a model in {count} parts needs all of them beside each other")
    return parts


def is_gguf(path: Path) -> bool:
    """By name, or by content: files in a download cache often lie under a digest, without a suffix."""
    if path.suffix.lower() == ".gguf":
        return True
    return path.is_file() and bytes(map_file(path).data[:4]) == _MAGIC


def read(path: str | os.PathLike[str]) -> Gguf:
    """Read a GGUF file, with all parts of it when it is one of ``-00001-of-000NN.gguf``.

    Raises ``PayloadError`` for a file that is truncated, damaged or incomplete, and ``UnsupportedError`` for a version
    or tensor type that is not known.
    """
    path, file = Path(path), resolved(path)
    try:
        file.name.encode()
    except UnicodeEncodeError as error:
        raise UnsupportedError(
            f"{path}: its name is not UTF-8, in which a model names the file of its weights; give it another name"
        ) from error
    metadata, tensors = _read_file(file)
    count = metadata.integer("split.count", 0)
    if count <= 1:
        return Gguf((file,), metadata, _by_name(tensors))
    files = tuple(resolved(part) for part in _parts(path, count))  # the names count before links are resolved
    first, tensors = metadata, []
    for number, file in enumerate(files):
        metadata, found = _read_file(file)
        if (metadata.integer("split.no"), metadata.integer("split.count")) != (number, count):
            raise PayloadError(f"{file}: is not part {number + 1} of {count} as its name says; fetch the parts again")
        first = metadata if number == 0 else first
        tensors += found
    expected = first.integer("split.tensors.count")
    if len(tensors) != expected:
        raise PayloadError(f"{path}: its {count} parts hold {len(tensors)} tensors, but announce {expected}; fetch them again")
    return Gguf(files, first, _by_name(tensors))


def _by_name(tensors: list[GgufTensor]) -> dict[str, GgufTensor]:
    by_name: dict[str, GgufTensor] = {}
    for tensor in tensors:
        if tensor.name in by_name:
            raise PayloadError(f"{tensor.file}: tensor {tensor.name!r} stands twice; the file is damaged: fetch it again")
        by_name[tensor.name] = tensor
    return by_name
