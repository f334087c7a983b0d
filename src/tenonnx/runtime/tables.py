"""A graph input that is a table of pages, and what may be bound to it."""

from __future__ import annotations

from typing import Any

from tenonnx.cache import PageSpec, PageTable, Writable
from tenonnx.errors import BindingError, ImmutableStorageError, PageError, ShapeError, UnsupportedError
from tenonnx.shapes.symbols import SymMap, SymSequence, pages_of, plain_pages
from tenonnx.structs.formats_pages import page_format
from tenonnx.structs.quantizations import Quantizations, same_format


class TableSpec:
    """A graph input that is a sequence or map of pages. Of a map, the keys are the ids of the table."""

    __slots__ = ("allowed", "mutable", "name", "pages", "symbol")

    def __init__(self, name: str, symbol: SymSequence | SymMap, mutable: bool, quantizations: Quantizations) -> None:
        pages, plain = pages_of(symbol), plain_pages(symbol)
        if pages is None:
            raise UnsupportedError(
                f"input {name!r}: {symbol} cannot be bound in this version; expected a sequence, or a map with INT64 keys, of "
                "quantized pages or of tensors of FLOAT, FLOAT16 or BFLOAT16"
            )
        allowed = (page_format(plain, 1),) if plain else tuple(quantizations[index] for index in pages.allowed)
        self.name, self.symbol, self.mutable, self.pages, self.allowed = name, symbol, mutable, pages, allowed

    def spec(self) -> PageSpec:
        """Element type and concrete dims of a page."""
        dims = self.pages.dims or ()
        if not dims or not all(isinstance(dim, int) for dim in dims):
            raise ShapeError(f"input {self.name!r}: its pages have dims {list(dims)}; declare every dimension as a number")
        return PageSpec(self.pages.elem_type, tuple(dim for dim in dims if isinstance(dim, int)))

    def bound(self, value: Any) -> PageTable:
        """The caller's table, with every page of a type that the model admits; opted in for this call where it is changed."""
        if not self.mutable and isinstance(value, Writable):
            raise BindingError(
                f"input {self.name!r}: the model declares it READ_ONLY; pass the table itself, not writable(table)"
            )
        if self.mutable and not isinstance(value, Writable):
            raise ImmutableStorageError(
                f"input {self.name!r}: the model declares it READ_WRITE and the run would change its pages; "
                f"found a plain {type(value).__name__}: pass writable(table), or a PagedCache"
            )
        table = value.array if isinstance(value, Writable) else value
        if not isinstance(table, PageTable):
            raise BindingError(f"input {self.name!r}: expected a PageTable, found {type(table).__name__}")
        self.check(table)
        return table

    def check(self, table: PageTable) -> None:
        """Refuse a table whose pages are not what the model declares."""
        if table.spec != self.spec():
            raise ShapeError(f"input {self.name!r}: expected pages of {self.spec()}, found {table.spec}")
        if not self.allowed:
            return
        for number, page in enumerate(table):
            if page is not None and not any(same_format(page.format, format) for format in self.allowed):
                names = ", ".join(format.name for format in self.allowed)
                raise PageError(f"input {self.name!r}: page {number} has format {page.format.name}; the model admits {names}")
