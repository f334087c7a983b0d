"""A pool of pages that several sequences draw from: page ids with a count of their owners, one table for each cache input."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Mapping, Sequence

from tenonnx.cache.pages import PageTable
from tenonnx.errors import PageError


class PagePool:
    """Page ids are common to all tables: id i is one page in each of them, for the same tokens.

    ``value_tables`` name what a policy for V alone is about. ``lock`` is held by whoever changes the
    pool; a run holds it only while it takes its pages, not while it computes.
    """

    def __init__(self, tables: Mapping[str, PageTable], value_tables: Sequence[str] = ()) -> None:
        sizes = {table.spec.tokens for table in tables.values()}
        if len(sizes) != 1:
            raise PageError(f"pages of {sorted(sizes)} tokens in one pool; all tables need pages of as many tokens")
        self.tables = dict(tables)
        self.value_tables = tuple(value_tables)
        self.tokens = sizes.pop()
        self.lock = threading.RLock()
        self._owners: list[int] = []
        self._free: list[int] = []

    @property
    def nbytes(self) -> int:
        """Bytes of all pages of all tables."""
        return sum(table.nbytes for table in self.tables.values())

    @property
    def pages(self) -> int:
        """Ids in use."""
        return len(self._owners) - len(self._free)

    def owners(self, page: int) -> int:
        """How many sequences hold a page; 0 for one that is free."""
        return self._owners[page] if 0 <= page < len(self._owners) else 0

    def create(self, formats: Mapping[str, str]) -> int:
        """A new page for one owner, in every table, in the format that each is given; freed ids are used first.

        Where one allocation fails those made before are freed again, and the pool is as it was.
        """
        with self.lock:
            return self._taken(lambda name, page: self.tables[name].create(page, formats[name]))

    def copy(self, page: int) -> int:
        """A new page with the content and formats of another."""
        with self.lock:
            self._require(page)
            return self._taken(lambda name, new: self.tables[name].copy_page(page, new))

    def _taken(self, make: Callable[[str, int], object]) -> int:
        page = self._free[0] if self._free else len(self._owners)
        made: list[PageTable] = []
        try:
            for name, table in self.tables.items():
                make(name, page)
                made.append(table)
        except BaseException:
            for table in made:
                table.remove(page)
            raise
        if self._free:
            heapq.heappop(self._free)
            self._owners[page] = 1
        else:
            self._owners.append(1)
        return page

    def share(self, pages: Sequence[int]) -> None:
        """One more owner for each page."""
        with self.lock:
            for page in pages:
                self._require(page)
            for page in pages:
                self._owners[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """One owner less for each page; what nobody owns is freed. ``PageError`` for a page that is free already."""
        with self.lock:
            for page in pages:
                self._require(page)
            for page in pages:
                self._owners[page] -= 1
                if self._owners[page] == 0:
                    for table in self.tables.values():
                        table.remove(page)
                    heapq.heappush(self._free, page)

    def _require(self, page: int) -> None:
        if self.owners(page) == 0:
            raise PageError(f"page {page} is free; it was released before, or never existed")
