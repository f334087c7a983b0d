"""A paged cache as a file: a header with the digest of each page, then the pages as they lie in memory.

    b"TENONNXPAGES\\x01", length of the header as UINT64 little-endian, BLAKE2b of the header (32 bytes), header (JSON), payloads

The header tells the tables by name with element type and dims, and the pages in order with format, bytes and digest for each.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from tenonnx.cache import container
from tenonnx.errors import PayloadError, TenonnxError
from tenonnx.structs.formats_pages import family

if TYPE_CHECKING:
    from tenonnx.cache.paged import PagedCache

_MAGIC = b"TENONNXPAGES\x01"


@dataclass(frozen=True)
class SavedPages:
    """What a file holds, from its header alone: tokens valid and in a page, and per page the format and bytes of each table."""

    length: int
    tokens: int
    tables: dict[str, tuple[int, tuple[int, ...]]]  # name -> element type, dims of a page
    pages: list[dict[str, tuple[str, int, bytes]]]  # name -> format, bytes, digest
    note: Any = None  # what was saved beside the pages

    @property
    def nbytes(self) -> int:
        return sum(nbytes for page in self.pages for _, nbytes, _ in page.values())


def save(cache: PagedCache, path: str | os.PathLike[str], note: Any = None) -> None:
    """Write a cache's pages; each is read once, and nothing is copied."""
    tables = cache.pool.tables
    pages = [[table[page] for table in tables.values()] for page in cache.pages]
    header = {
        "length": cache.length,
        "tokens": cache.pool.tokens,
        "tables": {name: [table.spec.elem_type, *table.spec.dims] for name, table in tables.items()},
        "pages": [[[family(page.format), page.nbytes, container.digest(page.data).hex()] for page in row] for row in pages],
        **container.noted(note),
    }
    container.write(path, _MAGIC, header, (page.data.data for row in pages for page in row))


def read_header(path: str | os.PathLike[str]) -> SavedPages:
    """What a file says that it holds; its header is checked, its pages are not read. ``PayloadError`` for another file
    and for one of another size.
    """
    with container.opened(path) as stream:
        saved = _header(stream, str(path))
        container.check_rest(stream, saved.nbytes, str(path))
    return saved


def is_saved(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as one that ``save`` wrote."""
    return container.begins_with(path, _MAGIC)


def read(cache: PagedCache, path: str | os.PathLike[str]) -> tuple[list[int], int]:
    """New pages of the cache's pool with a file's content, and its length; on any error none of them is left."""
    pool, made = cache.pool, list[int]()
    with container.opened(path) as stream:
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
            container.refuse_more(stream, str(path))
        except TenonnxError as error:
            pool.release(made)
            raise PayloadError(str(error)) from error
        except BaseException:
            pool.release(made)
            raise
    return made, saved.length


def _fill(target: np.ndarray, stream: BinaryIO, nbytes: int, expected: bytes, where: str) -> None:
    if nbytes != target.size:
        raise PayloadError(f"{where} has {nbytes} bytes; its format takes {target.size}")
    container.read_into(stream, target, where)
    if container.digest(target) != expected:
        raise PayloadError(f"{where} is not what was saved: its digest differs; the file is damaged")


def _header(stream: BinaryIO, where: str) -> SavedPages:
    return container.read_header(stream, _MAGIC, "paged cache", where, _parsed)


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
    if any(nbytes < 0 for page in pages for _, nbytes, _ in page.values()):
        raise ValueError("a page has a negative number of bytes")
    if tokens < 1 or not 0 <= length <= tokens * len(pages) or len(pages) > -(-length // tokens):
        raise ValueError(f"{length} tokens in {len(pages)} pages of {tokens}")
    return SavedPages(length, tokens, tables, pages, header.get("note"))
