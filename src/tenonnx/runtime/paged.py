"""Binding of paged caches: tables and their pages at each run, and the graph inputs that a PagedCache feeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import numpy as np

from tenonnx.cache import Extent, Page, PagedCache, PagePool, PageTable
from tenonnx.errors import (
    BindingError,
    CapacityError,
    PageError,
    SharedStorageError,
    UnsupportedError,
)
from tenonnx.plan import ExecutionPlan, PageWrite, Planner
from tenonnx.runtime.binding import Call, bind_dims
from tenonnx.runtime.tables import TableSpec
from tenonnx.shapes.paged import is_stacked, paged_nodes
from tenonnx.shapes.symbols import SymTensor
from tenonnx.structs.formats_pages import page_format


@dataclass
class Bound:
    """The tables of one run: what kernels read of each, and what must live until it is over."""

    tables: dict[str, PageTable]
    descriptors: dict[str, np.ndarray]
    created: list[tuple[PageTable, int]]
    shadows: dict[tuple[str, int], np.ndarray]  # FLOAT stand-ins of pages that kernels do not read, by table and id
    read: list[tuple[str, Page]]  # of READ_ONLY tables: they live on though the caller frees them

    def undo(self) -> None:
        """Free the pages that this run made."""
        for table, page in reversed(self.created):
            table.remove(page)


class PagedInputs:
    """What a model's operators over pages ask of its graph inputs."""

    def __init__(self, planner: Planner, specs: Mapping[str, Any]) -> None:
        self._planner = planner
        self.tables: dict[str, TableSpec] = {name: spec for name, spec in specs.items() if isinstance(spec, TableSpec)}
        self.mutable = {name: spec for name, spec in self.tables.items() if spec.mutable}  # those of a PagedCache
        scope = planner.index.main
        self._updates = [scope.nodes[position] for position in paged_nodes(scope, "PagedCacheUpdate")]
        attention = [scope.nodes[position] for position in paged_nodes(scope, "PagedAttention")]
        self._ids = {node.input[1] for node in self._updates} & set(specs)
        self._positions = {node.input[3] for node in self._updates} & set(specs)
        own = [node for node in attention if planner.aliases.root(node.input[1]) in self.mutable]
        self._page_tables = {node.input[3] for node in own} & set(specs)
        self._lengths = {node.input[4] for node in own} & set(specs)
        self._named_pages = {node.input[1] for node in self._updates} | {node.input[3] for node in attention}
        self._value_tables = list(dict.fromkeys(planner.aliases.root(node.input[2]) for node in own if not is_stacked(node)))
        self._rows: dict[tuple[Any, ...], int] = {}
        self._pools: WeakSet[PagePool] = WeakSet()  # that fit this model

    @property
    def fed(self) -> tuple[str, ...]:
        """The graph inputs that a PagedCache fills beside its tables."""
        return tuple(self._ids | self._positions | self._page_tables | self._lengths)

    def new_pool(self) -> PagePool:
        """Empty tables for every READ_WRITE table of the model."""
        tables = {}
        for name, spec in self.mutable.items():
            fresh = spec.allowed[0] if spec.allowed else page_format("F16", spec.spec().size)
            tables[name] = PageTable(spec.spec(), fresh, spec.allowed)
        return PagePool(tables, self._value_tables)

    # ---- A PagedCache feeds tables, ids, positions and lengths

    @contextmanager
    def step(self, cache: PagedCache, specs: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[Call]:
        """The bindings of one run over ``given``, with what the cache feeds; its length moves when the block ends well."""
        if cache.pool not in self._pools:
            self._check_pool(cache.pool)
            self._pools.add(cache.pool)
        with cache.step(self._new_rows(specs, given)) as step:
            call = Call()
            call.tables.update(cache.pool.tables)
            call.writes.append(cache.extent)
            for names, value in (
                (self._ids, step.page_id),
                (self._positions, step.position),
                (self._page_tables, step.page_table),
                (self._lengths, step.lengths),
            ):
                for name in names:
                    call.feed(name, value)
            yield call

    def _check_pool(self, pool: PagePool) -> None:
        if set(pool.tables) != set(self.mutable):
            raise BindingError("the cache has other tables than the model; make it with this session's new_cache()")
        for name, spec in self.mutable.items():
            if pool.tables[name].spec != spec.spec():
                raise BindingError(f"input {name!r}: the cache has pages of {pool.tables[name].spec}, expected {spec.spec()}")

    def _new_rows(self, specs: Mapping[str, Any], given: Mapping[str, Any]) -> int:
        """How many tokens a run over these inputs appends, from the shapes that they imply."""
        shapes = {name: np.shape(value) for name, value in given.items() if name in specs and name not in self.tables}
        key = tuple(sorted(shapes.items()))
        if key not in self._rows:
            context = self._planner.context(bind_dims(specs, shapes), shapes)
            found = {
                symbol.dims[-2]
                for node in self._updates
                if isinstance(symbol := context[node.input[2]], SymTensor) and symbol.dims
            }
            rows = found.pop() if len(found) == 1 else None
            if not isinstance(rows, int):
                raise UnsupportedError(
                    "how many tokens this run adds is not known from its inputs' shapes; bind tables, ids and positions yourself"
                )
            if len(self._rows) > 256:
                self._rows.clear()
            self._rows[key] = rows
        return self._rows[key]

    # ---- Pages of one run

    def reserve(self, call: Call) -> None:
        """Room for the descriptors of every page that the run may make, so that none moves when it is made."""
        named = sum(call.arrays[name].size for name in self._ids if name in call.arrays)
        for name, table in call.tables.items():
            if name in self.mutable:
                table.reserve(len(table) + named)
            call.feed(name, table.descriptors)

    def bind(self, plan: ExecutionPlan, call: Call, cached: bool) -> Bound:
        """Check every update, then make the pages that are missing: all rows, layers and pages before the first byte.

        ``cached``: a PagedCache has done both already.
        """
        tables, arrays = call.tables, call.arrays
        updates = () if cached else plan.page_writes
        wanted = [(write, tables[write.root], *self._named(write, arrays)) for write in updates]
        for write, table, ids, position in wanted:
            if ids is not None and position is not None:
                _check_write(write, table, ids, position)
        bound = Bound(tables, {name: table.descriptors for name, table in tables.items()}, [], {}, [])
        try:
            for write, table, ids, position in wanted:
                for page in () if ids is None or position is None else _used(write, ids, position):
                    if table.missing(page):
                        table.create(page)
                        bound.created.append((table, page))
            self._refuse_shared(tables)
            self._shadow(bound, arrays)
            for name, descriptors in bound.descriptors.items():
                call.feed(name, descriptors)
            if not cached:
                call.writes += self._extents(plan, bound, arrays)
            for name in bound.tables.keys() - self.mutable.keys():
                bound.read += [(name, page) for page in bound.tables[name] if page is not None]
            call.reads += [Extent(name, page.address, page.address + page.nbytes) for name, page in bound.read]
        except BaseException:
            bound.undo()
            raise
        return bound

    def _refuse_shared(self, tables: Mapping[str, PageTable]) -> None:
        """A table that the run changes cannot be one that it only reads as well."""
        changed = {id(tables[name]): name for name in self.mutable if name in tables}
        for name in tables.keys() - self.mutable.keys():
            if id(tables[name]) in changed:
                other = changed[id(tables[name])]
                raise SharedStorageError(
                    f"input {name!r} is bound to the table of READ_WRITE input {other!r}; give it one of its own"
                )

    def _extents(self, plan: ExecutionPlan, bound: Bound, arrays: Mapping[str, np.ndarray]) -> Iterator[Extent]:
        """The pages that the run writes, as storage that no other running call may touch."""
        seen = set()
        for write in plan.page_writes:
            ids, position = self._named(write, arrays)
            table = bound.tables[write.root]
            every = range(len(table)) if ids is None or position is None else _used(write, ids, position)
            for number in every:
                if (write.root, number) not in seen and not table.missing(number):
                    seen.add((write.root, number))
                    page = table[number]
                    yield Extent(f"{write.root}[{number}]", page.address, page.address + page.nbytes)

    def finish(self, plan: ExecutionPlan, bound: Bound, arrays: Mapping[str, np.ndarray]) -> None:
        """Encode the rows that kernels wrote into stand-ins of pages whose format they do not write; then write them all."""
        made = []
        for write in plan.page_writes if bound.shadows else ():
            ids, position = self._named(write, arrays)
            if ids is None or position is None:
                continue
            for order, number in enumerate(_used(write, ids, position)):
                shadow = bound.shadows.get((write.root, number))
                if shadow is not None:
                    begin = max(0, position - order * write.tokens)
                    end = min(write.tokens, position + write.rows - order * write.tokens)
                    page = bound.tables[write.root][number]
                    made.append((page, page.encoded_tokens(shadow, begin, end), begin, end))
        for page, encoded, begin, end in made:
            page.write_tokens(encoded, begin, end)

    def _named(self, write: PageWrite, arrays: Mapping[str, np.ndarray]) -> tuple[list[int] | None, int | None]:
        """Ids and position of an update where they are known before the run, as graph inputs or initializers."""
        ids, position = (self._known(name, arrays) for name in (write.page_id, write.position))
        return ids, None if position is None else position[0]

    def _known(self, name: str, arrays: Mapping[str, np.ndarray]) -> list[int] | None:
        if name in arrays:
            found: list[int] = np.asarray(arrays[name]).reshape(-1).tolist()
            return found
        from tenonnx.shapes.operators import known_integers

        return known_integers(self._planner.index.main, name) or None

    def _shadow(self, bound: Bound, arrays: Mapping[str, np.ndarray]) -> None:
        """Stand-ins for pages that go through their decoder; the table that kernels read is a copy then."""
        mixed = {name: table for name, table in bound.tables.items() if table.foreign}
        if not mixed:
            return
        known = self._named_pages <= arrays.keys()
        used = {page for name in self._named_pages if known for page in arrays[name].reshape(-1).tolist()}
        for name, table in mixed.items():
            bound.descriptors[name] = bound.descriptors[name].copy()
            for number in table.foreign & used if known else table.foreign:
                decoded = np.ascontiguousarray(table[number].decode(), np.float32)
                bound.shadows[name, number] = decoded
                bound.descriptors[name][number] = decoded.ctypes.data, 0, 1, decoded.nbytes


def _used(write: PageWrite, ids: list[int], position: int) -> list[int]:
    """The ids that the rows reach."""
    return ids[: -(-(position + write.rows) // write.tokens)] if write.rows else []


def _check_write(write: PageWrite, table: PageTable, ids: list[int], position: int) -> None:
    if not 0 <= position < write.tokens:
        raise CapacityError(
            f"{write.label}: position {position} is outside the first page of {write.tokens} tokens. Nothing was written"
        )
    if position + write.rows > len(ids) * write.tokens:
        raise CapacityError(
            f"{write.label}: position {position} + {write.rows} new rows pass the {len(ids)} pages of {write.tokens} tokens that "
            "page_id names; name more pages. Nothing was written"
        )
    used = _used(write, ids, position)
    if len(set(used)) != len(used):
        raise PageError(f"{write.label}: page_id {ids} names a page twice. Nothing was written")
    length = len(table)  # as the pages that this run appends make it
    for page in used:
        if page == length:
            length += 1
        elif table.missing(page):
            continue
        elif not 0 <= page < length:
            raise PageError(
                f"{write.label}: page {page} is unknown; the table has {len(table)} pages, and only the next id appends. "
                "Nothing was written"
            )
        elif page < len(table) and not table[page].token_writable:
            raise PageError(
                f"{write.label}: page {page} has format {table[page].format.name}, written by whole pages alone; requantize it. "
                "Nothing was written"
            )
