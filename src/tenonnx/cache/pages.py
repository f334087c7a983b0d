"""Pages, each with storage and a format of its own, and the tables that name them.

Nothing moves a payload but a change of format: a table that grows copies its descriptors (32 bytes a page), never a page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tenonnx.cache.ownership import allocated
from tenonnx.errors import PageError
from tenonnx.layouts.pages import DESCRIPTOR, MAX_PAGE_TOKENS, page_kind
from tenonnx.shapes.symbols import PLAIN_PAGES
from tenonnx.structs import Format
from tenonnx.structs.formats_pages import family, page_format, token_writable
from tenonnx.structs.quantizations import same_format

_UINT8 = 2
_F32 = page_format("F32", 1)
_SMALLEST_TABLE = 16  # descriptors


class PageSpec(NamedTuple):
    """What all pages of one table decode to: an element type, and dims [..., tokens, size of a row]."""

    elem_type: int
    dims: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return self.dims[-2]

    @property
    def size(self) -> int:
        return self.dims[-1]

    @property
    def rows(self) -> int:
        return math.prod(self.dims[:-1])

    def format(self, format: Format | str) -> Format:
        """A format for rows of this size; ``ShapeError`` where its blocks do not divide a page."""
        found = page_format(format, self.size) if isinstance(format, str) else format
        found.grid(self.dims)
        return found

    def nbytes(self, format: Format | str) -> int:
        """Bytes of a page in this format."""
        found = self.format(format)
        return found.blocks(self.dims) * found.nbytes


class Page:
    """One page: UINT8 ``data`` in a native allocation of exactly its blocks, and the ``format`` that they are in."""

    __slots__ = ("_buffer", "data", "format", "spec")

    def __init__(self, spec: PageSpec, format: Format) -> None:
        self._buffer = allocated(spec.nbytes(format), "page", "free pages, or choose a smaller format")
        self.spec, self.format = spec, format
        self.data: np.ndarray = self._buffer.array()

    @property
    def address(self) -> int:
        return int(self._buffer.address)

    @property
    def nbytes(self) -> int:
        return int(self._buffer.nbytes)

    @property
    def token_writable(self) -> bool:
        """Whether single tokens can be written: no block spans several, and the format has an encoder."""
        return token_writable(self.format)

    def decode(self) -> np.ndarray:
        """FLOAT of the page's dims."""
        kind = page_kind(self.format)
        if kind is None:
            return self.format.decode(self.data, self.spec.dims)
        out = np.empty(self.spec.dims, np.float32)
        _recode(self.data, kind, out.reshape(-1).view(np.uint8), page_kind(_F32), self.spec)
        return out

    def encode(self, values: np.ndarray) -> None:
        """Write the whole page from FLOAT of its dims."""
        kind = page_kind(self.format)
        if kind is None:
            self.data[:] = self.format.encode(values)
        else:
            source = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint8)
            _recode(source, page_kind(_F32), self.data, kind, self.spec)

    def encoded_tokens(self, values: np.ndarray, begin: int, end: int) -> np.ndarray:
        """UINT8[rows, tokens, bytes]: tokens [begin, end) of FLOAT of the page's dims, in its format; nothing is written."""
        part = np.ascontiguousarray(values[..., begin:end, :], np.float32)
        return self.format.encode(part).reshape(math.prod(self.spec.dims[:-2]), end - begin, -1)

    def write_tokens(self, encoded: np.ndarray, begin: int, end: int) -> None:
        """Write tokens [begin, end), and no byte beside them."""
        self.data.reshape(len(encoded), self.spec.tokens, -1)[:, begin:end] = encoded

    def copy(self) -> Page:
        """The same content in storage of its own."""
        made = Page(self.spec, self.format)
        made.data[:] = self.data
        return made

    def recode(self, format: Format) -> Page:
        """The content in another format: this page, encoded again in place, where the bytes are as many; else a new one."""
        if format is self.format:
            return self
        same_size = self.spec.nbytes(format) == self.nbytes
        source, target = page_kind(self.format), page_kind(format)
        if source is not None and target is not None:
            made = self if same_size and _row_bytes(self.format) == _row_bytes(format) else Page(self.spec, format)
            _recode(self.data, source, made.data, target, self.spec)
        else:
            values = self.decode()
            made = self if same_size else Page(self.spec, format)
            made.format = format
            made.encode(values)
        made.format = format
        return made


def _row_bytes(format: Format) -> tuple[int, int]:
    """Bytes per element as a fraction: rows of equal bytes can be recoded one over the other."""
    common = math.gcd(format.nbytes, format.elements)
    return format.nbytes // common, format.elements // common


def _recode(source: np.ndarray, kind: Any, target: np.ndarray, to: Any, spec: PageSpec) -> None:
    from tenonnx._native import run_kernel

    rows = ((array.ctypes.data, _UINT8, [array.size], [1]) for array in (source, target))
    run_kernel("recode_page", [next(rows)], [next(rows)], [*kind, *to, spec.rows, spec.size], threads=1)


class PageTable:
    """The pages behind one sequence of quantized tensors, by id; None where an id was freed.

    ``allowed`` are the formats that the model's type admits, empty for any; ``new_format`` is the one of pages that a run
    creates. ``descriptors`` is what kernels read: INT64[capacity, 4], grown by doubling.
    """

    def __init__(self, spec: PageSpec, new_format: Format | str = "F16", allowed: Sequence[Format] = ()) -> None:
        if len(spec.dims) < 2 or not 1 <= spec.tokens <= MAX_PAGE_TOKENS:
            raise PageError(f"pages of dims {list(spec.dims)}: expected [..., tokens, size] with 1 to {MAX_PAGE_TOKENS} tokens")
        self.spec = spec
        self.allowed = tuple(allowed)
        self.new_format = self.admitted(new_format)
        self.pages: list[Page | None] = []
        self.descriptors = np.zeros((_SMALLEST_TABLE, DESCRIPTOR), np.int64)
        self.foreign: set[int] = set()  # ids of pages whose format no kernel knows

    def admitted(self, format: Format | str) -> Format:
        """The format for this table's rows; by name one of the known ones, or one that the model itself declares.

        Raises ``PageError`` where the model's type does not admit it.
        """
        declared = (known for known in self.allowed if known.name == format and page_kind(known) is None)
        found = self.spec.format(next(declared, format))
        if self.allowed and not any(same_format(found, known) for known in self.allowed):
            names = ", ".join(known.name for known in self.allowed)
            raise PageError(f"format {found.name}: the model admits {names} for these pages; choose one of them")
        return found

    def __len__(self) -> int:
        return len(self.pages)

    def __iter__(self) -> Iterator[Page | None]:
        return iter(self.pages)

    def __getitem__(self, page: int) -> Page:
        """The page of an id; ``PageError`` where there is none."""
        found = self.pages[page] if 0 <= page < len(self.pages) else None
        if found is None:
            raise PageError(
                f"page {page}: the table has no such page; its ids are 0 to {len(self.pages) - 1}, freed ones excepted"
            )
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of all pages."""
        return sum(page.nbytes for page in self.pages if page is not None)

    def missing(self, page: int) -> bool:
        """Whether an id may be given a new page: freed, or the next one."""
        return page == len(self.pages) or (0 <= page < len(self.pages) and self.pages[page] is None)

    def create(self, page: int, format: Format | str | None = None) -> Page:
        """Allocate exactly that page, zeroed; ``PageError`` for an id that is taken or further than the next."""
        if not self.missing(page):
            raise PageError(f"page {page}: cannot be created: it exists, or is not the next of {len(self.pages)}")
        made = Page(self.spec, self.new_format if format is None else self.admitted(format))
        if page == len(self.pages):
            self.pages.append(None)
            self.reserve(page + 1)
        self._set(page, made)
        return made

    def reserve(self, count: int) -> None:
        """Room for the descriptors of ``count`` pages. Runs under way keep the array that they have bound."""
        while len(self.descriptors) < count:
            self.descriptors = np.concatenate([self.descriptors, np.zeros_like(self.descriptors)])

    def remove(self, page: int) -> None:
        """Free one page; its id may be used again."""
        _ = self[page]
        self._set(page, None)
        while self.pages and self.pages[-1] is None:
            self.pages.pop()

    def requantize(self, page: int, format: Format | str) -> None:
        """Bring one page into another format; no other page is touched."""
        self._set(page, self[page].recode(self.admitted(format)))

    def copy_page(self, page: int, target: int) -> None:
        """Make ``target`` a copy of a page, in storage of its own."""
        made = self.create(target, self[page].format)
        made.data[:] = self[page].data

    def _set(self, page: int, content: Page | None) -> None:
        self.pages[page] = content
        self.descriptors[page] = 0
        self.foreign.discard(page)
        if content is not None:
            kind = page_kind(content.format)
            if kind is None:
                self.foreign.add(page)
            # A kind that no kernel knows keeps them off a page that goes through its decoder.
            self.descriptors[page] = content.address, *(kind or (-1, 0)), content.nbytes

    # ---- As messages

    @classmethod
    def from_proto(cls, container: Any, model: Any, known: Iterable[Format] = (), **options: Any) -> PageTable:
        """The pages of a SequenceProto or MapProto of quantized or ordinary tensors; the keys of a map, INT64, are the ids.

        Raises ``PayloadError`` or ``CheckError`` where one is unsound.
        """
        from tenonnx.cache import page_messages

        saved = page_messages.read(container, model, known)
        if saved.plain:
            options.setdefault("new_format", PLAIN_PAGES[saved.spec.elem_type])
        table = cls(saved.spec, **options)
        for number, format, content in saved.pages:
            table.pages += [None] * (number - len(table.pages))
            table.reserve(number + 1)
            table.create(number, format).data[:] = content
        return table

    def to_proto(self, model: Any, name: str = "", *, keyed: bool = False, plain: bool = False) -> Any:
        """A SequenceProto of the pages, or with ``keyed`` a MapProto by id; ``model`` gains the quantizations that it refers to.

        With ``plain`` the pages are ordinary tensors. Raises ``PageError`` for a page in another format than theirs then, and in
        a sequence for an id that was freed.
        """
        from tenonnx.cache import page_messages

        return page_messages.write(self, model, name, keyed, plain)

    def formats(self) -> list[str | None]:
        """The format of each page by the name that people ask for it, None for a freed one."""
        return [None if page is None else family(page.format) for page in self.pages]

    def __repr__(self) -> str:
        return f"PageTable({len(self.pages)} pages of {list(self.spec.dims)}, {self.nbytes:,} bytes)"
