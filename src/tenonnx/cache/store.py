"""A paged cache as a file: a header with the digest of each page, then the pages as they lie in memory.

    b"TENONNXPAGES\\x01", length of the header as UINT64 little-endian, BLAKE2b of the header (32 bytes), header (JSON), payloads

The header tells the tables by name with element type and dims, and the pages in order with format, bytes and digest for each.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from tenonnx.errors import PayloadError, TenonnxError
from tenonnx.schema.atomic import replacing
from tenonnx.structs.formats_pages import family

if TYPE_CHECKING:
    from tenonnx.cache.paged import PagedCache

_MAGIC = b"TENONNXPAGES\x01"
_DIGEST = 32
_LONGEST_HEADER = 1 << 30


@dataclass(frozen=True)
class SavedPages:
    """What a file holds, from its header alone: tokens valid and in a page, and per page the format and bytes of each table."""

    length: int
    tokens: int
    tables: dict[str, tuple[int, tuple[int, ...]]]  # name -> element type, dims of a page
    pages: list[dict[str, tuple[str, int, bytes]]]  # name -> format, bytes, digest

    @property
    def nbytes(self) -> int:
        return sum(nbytes for page in self.pages for _, nbytes, _ in page.values())


def _digest(data: Any) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST).digest()


def save(cache: PagedCache, path: str | os.PathLike[str]) -> None:
    """Write a cache's pages; each is read once, and nothing is copied."""
    tables = cache.pool.tables
    pages = [[table[page] for table in tables.values()] for page in cache.pages]
    header = {
        "length": cache.length,
        "tokens": cache.pool.tokens,
        "tables": {name: [table.spec.elem_type, *table.spec.dims] for name, table in tables.items()},
        "pages": [[[family(page.format), page.nbytes, _digest(page.data).hex()] for page in row] for row in pages],
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    with replacing(Path(path)) as stream:
        stream.write(_MAGIC + len(text).to_bytes(8, "little") + _digest(text) + text)
        for row in pages:
            for page in row:
                stream.write(page.data.data)


def read_header(path: str | os.PathLike[str]) -> SavedPages:
    """What a file says that it holds; its header is checked, its pages are not read. ``PayloadError`` for another file."""
    with _opened(path) as stream:
        return _header(stream, str(path))


def is_saved(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as one that ``save`` wrote."""
    with _opened(path) as stream:
        return stream.read(len(_MAGIC)) == _MAGIC


def read(cache: PagedCache, path: str | os.PathLike[str]) -> tuple[list[int], int]:
    """New pages of the cache's pool with a file's content, and its length; on any error none of them is left."""
    pool, made = cache.pool, list[int]()
    with _opened(path) as stream:
        saved = _header(stream, str(path))
        wanted = {name: (table.spec.elem_type, table.spec.dims) for name, table in pool.tables.items()}
        if saved.tokens != pool.tokens or saved.tables != wanted:
            raise PayloadError(f"{path}: holds pages of another model or page size; load it into a cache of the same model")
        if saved.length > cache.capacity:
            raise PayloadError(
                f"{path}: holds {saved.length} tokens, the cache takes {cache.capacity}; make one for a longer context"
            )
        try:
            for number, page in enumerate(saved.pages):
                made.append(pool.create({name: format for name, (format, _, _) in page.items()}))
                for name, (_, nbytes, digest) in page.items():
                    _fill(pool.tables[name][made[-1]].data, stream, nbytes, digest, f"{path}: page {number} of {name!r}")
            if stream.read(1):
                raise PayloadError(f"{path}: has bytes after its last page; save the cache again")
        except TenonnxError as error:
            pool.release(made)
            raise PayloadError(str(error)) from error
        except BaseException:
            pool.release(made)
            raise
    return made, saved.length


def _fill(target: np.ndarray, stream: BinaryIO, nbytes: int, digest: bytes, where: str) -> None:
    if nbytes != target.size:
        raise PayloadError(f"{where} has {nbytes} bytes; its format takes {target.size}")
    if _read_into(stream, target) != nbytes:
        raise PayloadError(f"{where} is cut short; the file is truncated: save the cache again")
    if _digest(target) != digest:
        raise PayloadError(f"{where} is not what was saved: its digest differs; the file is damaged")


def _read_into(stream: BinaryIO, target: np.ndarray) -> int:
    """Bytes read from a stream into an array, without a copy."""
    return stream.readinto(target.data)  # type: ignore[attr-defined]  # BinaryIO does not declare it


def _opened(path: str | os.PathLike[str]) -> BinaryIO:
    try:
        return open(path, "rb")
    except OSError as error:
        raise PayloadError(f"{path}: cannot be read: {error.strerror}") from error


def _header(stream: BinaryIO, where: str) -> SavedPages:
    if stream.read(len(_MAGIC)) != _MAGIC:
        raise PayloadError(f"{where}: is no saved paged cache of this version")
    length, digest = int.from_bytes(stream.read(8), "little"), stream.read(_DIGEST)
    if length > _LONGEST_HEADER or length > os.fstat(stream.fileno()).st_size:
        raise PayloadError(f"{where}: its header of {length} bytes does not fit the file; it is truncated or damaged")
    text = stream.read(length)
    if _digest(text) != digest:
        raise PayloadError(f"{where}: its header is damaged: the digest differs")
    try:
        return _parsed(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise PayloadError(f"{where}: its header is unsound: {error}") from error


def _parsed(header: Any) -> SavedPages:
    """The header as typed values; raises ValueError and its like for one that no ``save`` wrote."""
    length, tokens = int(header["length"]), int(header["tokens"])
    tables = {str(name): (int(kind), tuple(map(int, dims))) for name, (kind, *dims) in header["tables"].items()}
    pages = [
        {
            name: (str(format), int(nbytes), bytes.fromhex(digest))
            for name, (format, nbytes, digest) in zip(tables, row, strict=True)
        }
        for row in header["pages"]
    ]
    if tokens < 1 or not 0 <= length <= tokens * len(pages) or len(pages) > -(-length // tokens):
        raise ValueError(f"{length} tokens in {len(pages)} pages of {tokens}")
    return SavedPages(length, tokens, tables, pages)
