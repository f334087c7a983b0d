"""A sequence in a pool of pages: its page ids, its length, and the policy by which its pages step down."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from tenonnx.cache.dense import kept_length
from tenonnx.cache.ownership import Extent, address
from tenonnx.cache.pages import PageSpec, PageTable
from tenonnx.cache.policy import PageState, Policy, Uniform, as_policy
from tenonnx.cache.pool import PagePool
from tenonnx.errors import CapacityError, ConcurrentUseError, PageError
from tenonnx.structs.formats_pages import family, token_writable

_SMALLEST_ROW = 16  # ids of a page table as a run binds it, doubled as needed: plans are made per size


@dataclass(frozen=True)
class Step:
    """What a run binds: the ids that its rows flow through, the place in the first, all ids padded with -1, the length after."""

    page_id: np.ndarray  # INT64[p]
    position: np.ndarray  # INT64[]
    page_table: np.ndarray  # INT64[1, capacity]
    lengths: np.ndarray  # INT64[1]
    rows: int


class PagedCache:
    """One sequence over a pool. Pass it to ``Session.run``: the run appends its rows, and ``length`` moves on success alone.

    ``policy`` is one Policy for all tables, or a pair, for K and for V; without one pages have the format that the tables give
    new ones; a text names one as on the command line. ``capacity`` bounds the length; nothing is allocated until tokens come.
    Ends by ``free``; a sequence that is dropped is freed as well.
    """

    def __init__(self, pool: PagePool, policy: Policy | tuple[Policy, Policy] | None = None, capacity: int = sys.maxsize) -> None:
        self.pool = pool
        self.capacity = capacity
        self.policy = policy if policy is not None else Uniform(family(next(iter(pool.tables.values())).new_format))
        self._groups = list(_groups(pool, self.policy))
        for chosen, tables in self._groups:
            for table in tables:
                table.admitted(chosen.new_format())
        self._ids: list[int] = []
        self._length = 0
        self._running = False
        self._freed = False
        self._place = np.zeros(8, np.int64)  # stands for this sequence among the bindings of running calls
        self._finalizer = weakref.finalize(self, pool.release, self._ids)
        self._finalizer.atexit = False

    # ---- What it holds

    @property
    def length(self) -> int:
        """Tokens that hold valid content."""
        return self._length

    @property
    def pages(self) -> tuple[int, ...]:
        """The ids of its pages, in order."""
        return tuple(self._ids)

    @property
    def nbytes(self) -> int:
        """Bytes of its pages; one that it shares counts whole."""
        return sum(self.cache_bytes_by_format().values())

    def cache_bytes_by_format(self) -> dict[str, int]:
        """Bytes of its pages by format."""
        found: Counter[str] = Counter()
        for table in self.pool.tables.values():
            for page in self._ids:
                found[family(table[page].format)] += table[page].nbytes
        return dict(found)

    def page_formats(self) -> list[dict[str, str]]:
        """For each page, oldest first, its format in each table."""
        return [{name: family(table[page].format) for name, table in self.pool.tables.items()} for page in self._ids]

    @property
    def extent(self) -> Extent:
        """What no two running calls may hold at once: the sequence itself."""
        begin = address(self._place)
        return Extent("cache", begin, begin + self._place.nbytes)

    # ---- Changing it between runs

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens and free the pages behind them; ``CapacityError`` when as many are not valid."""
        with self._changing():
            length = kept_length(length, self._length)
            self._drop(-(-length // self.pool.tokens))
            self._length = length

    def reset(self) -> None:
        """Forget all content and free all pages."""
        self.truncate(0)

    def free(self) -> None:
        """Give all pages back; anything but reading figures is refused from then on."""
        with self._changing():
            self._drop(0)
            self._length = 0
            self._freed = True

    def fork(self) -> PagedCache:
        """Another sequence that starts with the same tokens and shares their pages; costs one count for each page."""
        with self._changing():
            made = PagedCache(self.pool, self.policy, self.capacity)
            self.pool.share(self._ids)
            made._ids.extend(self._ids)
            made._length = self._length
            return made

    def prepare(self, rows: int = 1) -> None:
        """Make ready for ``rows`` more tokens: a boundary page that is shared is unshared, by one page allocated."""
        with self._changing():
            self._refuse_overflow(rows)
            if rows and self._boundary_shared:
                shared = self._ids[-1]
                self._ids[-1] = self.pool.copy(shared)
                self.pool.release([shared])

    def requantize(self, page: int, format: str, tables: Sequence[str] | None = None) -> None:
        """Bring one page into another format, in all tables or those named; ``page`` is an id of ``pages``.

        Raises ``PageError`` for a page that is not this sequence's or that another shares, or a format that is not admitted;
        a format whose blocks span several tokens is refused for a page that still takes tokens.
        """
        with self._changing():
            if page not in self._ids:
                raise PageError(f"page {page}: is none of this sequence's pages, {list(self._ids)}")
            if self.pool.owners(page) > 1:
                raise PageError(f"page {page}: is shared by {self.pool.owners(page)} sequences; requantize it before sharing it")
            chosen = [self.pool.tables[name] for name in tables or self.pool.tables]
            for table in chosen:  # all are refused before one is changed
                table.admitted(format)
            for table in chosen:
                table.requantize(page, format)

    # ---- Runs

    @contextmanager
    def step(self, rows: int) -> Iterator[Step]:
        """For the runtime: take the pages for ``rows`` more tokens, and keep them on success alone.

        Raises ``CapacityError`` past the capacity or a budget, ``PageError`` while the boundary page is shared, or cannot take
        single tokens; whatever is raised, in here or by the run, leaves pages and length as they were.
        """
        with self._changing():
            self._refuse_overflow(rows)
            first = self._length // self.pool.tokens
            self._check_boundary(rows)
            before = len(self._ids)
            try:
                self._append_pages(-(-(self._length + rows) // self.pool.tokens) - before)
                made = self._bound(first, rows)
            except BaseException:
                self._drop(before)
                raise
            self._running = True
        done = False
        try:
            yield made
            done = True
        finally:
            with self.pool.lock:
                self._running = False
                if done:
                    self._length += rows
                else:
                    self._drop(before)

    @property
    def _boundary_shared(self) -> bool:
        return self._length % self.pool.tokens != 0 and self.pool.owners(self._ids[-1]) > 1

    def _check_boundary(self, rows: int) -> None:
        if not rows or self._length % self.pool.tokens == 0:
            return
        page = self._ids[-1]
        if self._boundary_shared:
            raise PageError(f"page {page}: is shared by {self.pool.owners(page)} sequences; call prepare() before the run")
        for name, table in self.pool.tables.items():
            if page in table.foreign and not table[page].token_writable:
                raise PageError(
                    f"page {page} of {name!r}: format {table[page].format.name} is written by whole pages alone; "
                    "requantize it to a token-writable format"
                )

    def _append_pages(self, count: int) -> None:
        """New pages, once the policy has stepped old ones down to make room; of many, it may want the older in less as well."""
        if count <= 0:
            return
        formats: list[dict[str, str]] = [{} for _ in range(count)]
        for policy, tables in self._groups:
            wanted = self._settle(policy, tables, count)
            for name, table in self.pool.tables.items():
                if any(table is mine for mine in tables):
                    for page, format in zip(formats, wanted, strict=True):
                        page[name] = format
        for page in formats:
            self._ids.append(self.pool.create(page))

    def _settle(self, policy: Policy, tables: list[PageTable], count: int) -> list[str]:
        """Bring the pages into the formats that the policy wants; those of ``count`` new pages."""
        new, tokens, total = policy.new_format(), self.pool.tokens, len(self._ids) + count
        held = [family(tables[0][page].format) for page in self._ids]
        states = [PageState(name, (total - 1 - number) * tokens) for number, name in enumerate(held)]
        states += [PageState(new, 0)] * count
        wanted = policy.formats(states, lambda name: sum(table.spec.nbytes(name) for table in tables))
        for page, have, want in zip(self._ids, held, wanted, strict=False):
            if have != want and self.pool.owners(page) == 1:
                for table in tables:
                    table.requantize(page, want)
        # A run writes new pages token by token.
        return [want if token_writable(tables[0].admitted(want)) else new for want in wanted[len(held) :]]

    def _bound(self, first: int, rows: int) -> Step:
        end = -(-(self._length + rows) // self.pool.tokens)
        # A run of no rows still names a page: an empty list of ids would be another shape to plan for.
        ids = np.array(self._ids[first : max(end, first + 1)] or [0], np.int64)
        capacity = _SMALLEST_ROW
        while capacity < len(self._ids):
            capacity *= 2
        table = np.full((1, capacity), -1, np.int64)
        table[0, : len(self._ids)] = self._ids
        position = np.array(self._length % self.pool.tokens, np.int64)
        return Step(ids, position, table, np.array([self._length + rows], np.int64), rows)

    def _drop(self, keep: int) -> None:
        dropped = self._ids[keep:]
        del self._ids[keep:]  # in place: the finalizer holds this list
        self.pool.release(dropped)

    def _refuse_overflow(self, rows: int) -> None:
        if rows < 0:
            raise CapacityError(f"{rows} rows: expected 0 or more")
        if self._length + rows > self.capacity:
            raise CapacityError(
                f"{rows} more tokens do not fit: the cache was made for {self.capacity}, of which {self._length} are taken; "
                "truncate it, or make one for a longer context"
            )

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self.pool.lock:
            if self._freed:
                raise PageError("this sequence was freed; make a new one, or fork another before it is freed")
            if self._running:
                raise ConcurrentUseError("this sequence is bound by a call that is still running; wait for it, or fork it first")
            yield

    # ---- Files

    def save(self, path: Any, note: Any = None) -> None:
        """Write all pages, and a ``note`` that JSON holds, to a file; an existing one is replaced whole or not at all."""
        from tenonnx.cache.store import save

        with self._changing():
            save(self, path, note)

    def load(self, path: Any) -> None:
        """Replace the content by that of a file. ``PayloadError`` for a damaged or unfitting one, this sequence untouched."""
        from tenonnx.cache.store import read

        with self._changing():
            pages, length = read(self, path)
            self._drop(0)
            self._ids.extend(pages)
            self._length = length

    def __repr__(self) -> str:
        held = ", ".join(f"{name} {count:,}" for name, count in self.cache_bytes_by_format().items()) or "nothing"
        return f"PagedCache({self._length} tokens in {len(self._ids)} pages of {self.pool.tokens}; bytes: {held})"


def _groups(pool: PagePool, policy: Policy | tuple[Policy, Policy]) -> Iterator[tuple[Policy, list[PageTable]]]:
    """Which policy rules which tables."""
    if not isinstance(policy, tuple):
        yield as_policy(policy), list(pool.tables.values())
        return
    keys = [table for name, table in pool.tables.items() if name not in pool.value_tables]
    values = [pool.tables[name] for name in pool.value_tables]
    for chosen, tables in zip(policy, (keys, values), strict=True):
        if tables:
            yield as_policy(chosen), tables


__all__ = ["PageSpec", "PagedCache", "Step"]
