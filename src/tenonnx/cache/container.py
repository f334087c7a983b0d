"""The files of saved caches: a header that is checked before it is believed, then payloads with a digest each.

magic, length of the header as UINT64 little-endian, BLAKE2b of the header (32 bytes), header (JSON), payloads
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from tenonnx.errors import OptionError, PayloadError
from tenonnx.schema.atomic import replacing
from tenonnx.schema.places import as_path

DIGEST = 32
_LONGEST_HEADER = 1 << 30

T = TypeVar("T")


def digest(*parts: Any) -> bytes:
    """BLAKE2b of contiguous buffers, one after the other."""
    state = hashlib.blake2b(digest_size=DIGEST)
    for part in parts:
        state.update(part)
    return state.digest()


def noted(note: Any) -> dict[str, Any]:
    """A caller's note as a part of a header, absent without one; ``OptionError`` for one that JSON does not hold."""
    try:
        json.dumps(note)
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(f"note: is not JSON: {error}; give texts, numbers, lists and dicts of them") from error
    return {} if note is None else {"note": note}


def write(path: str | os.PathLike[str], magic: bytes, header: Any, payloads: Iterable[Any]) -> None:
    """Write contiguous buffers behind their header, without a copy; an existing file is replaced whole or not at all.

    A symbolic link stays, and the file that it names is written.
    """
    place = as_path(path, "saved cache")
    if place.is_symlink():
        place = Path(os.path.realpath(place))
    text = json.dumps(header, separators=(",", ":")).encode()
    with replacing(place) as stream:
        stream.write(magic + len(text).to_bytes(8, "little") + digest(text) + text)
        for payload in payloads:
            stream.write(payload)


def opened(path: str | os.PathLike[str]) -> BinaryIO:
    """A file to read; ``PayloadError`` where it cannot be."""
    found = as_path(path, "saved cache")
    try:
        if found.exists() and not (found.is_file() or found.is_dir()):  # a pipe would be waited for
            raise PayloadError(f"{path}: is not a regular file; name the one that was saved")
        return found.open("rb")
    except OSError as error:
        raise PayloadError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise PayloadError(f"{path!r}: cannot be the name of a file: {error}") from error


def begins_with(path: str | os.PathLike[str], magic: bytes) -> bool:
    """Whether a file is of the kind that ``magic`` marks."""
    with opened(path) as stream:
        return stream.read(len(magic)) == magic


def read_header(stream: BinaryIO, magic: bytes, what: str, where: str, parse: Callable[[Any], T]) -> T:
    """The header as ``parse`` understands it; ``PayloadError`` for another file, a cut or damaged header, or one that
    ``parse`` raises ValueError and its like for.
    """
    if stream.read(len(magic)) != magic:
        raise PayloadError(
            f"{where}: is no saved {what} of this version; a model with pages loads what one with pages saved, and a dense one "
            "what a dense one did"
        )
    length, expected = int.from_bytes(stream.read(8), "little"), stream.read(DIGEST)
    if length > _LONGEST_HEADER or length > os.fstat(stream.fileno()).st_size:
        raise PayloadError(f"{where}: its header of {length} bytes does not fit the file; it is truncated or damaged")
    text = stream.read(length)
    if digest(text) != expected:
        raise PayloadError(f"{where}: its header is damaged: the digest differs")
    try:
        return parse(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise PayloadError(f"{where}: its header is unsound: {error}") from error


def check_rest(stream: BinaryIO, wanted: int, where: str) -> None:
    """``PayloadError`` where the payloads are not as many bytes as the header tells."""
    found = os.fstat(stream.fileno()).st_size - stream.tell()
    if found != wanted:
        raise PayloadError(f"{where}: has {found:,} bytes behind its header, which tells {wanted:,}; save the cache again")


def read_into(stream: BinaryIO, target: Any, where: str) -> None:
    """Fill a contiguous array from a stream, without a copy; ``PayloadError`` where the file ends before."""
    view = memoryview(target).cast("B") if target.nbytes else memoryview(b"")
    if view.nbytes and stream.readinto(view) != view.nbytes:  # type: ignore[attr-defined]  # BinaryIO does not declare it
        raise PayloadError(f"{where} is cut short; the file is truncated: save the cache again")


def refuse_more(stream: BinaryIO, where: str) -> None:
    """``PayloadError`` for bytes behind the last payload."""
    if stream.read(1):
        raise PayloadError(f"{where}: has bytes after its last part; save the cache again")
