"""Session: a model loaded, packed and ready to run; the storage contract is enforced at every run."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tenonnx._native import default_threads
from tenonnx.cache import Cache, CacheSpec, Extent, PagedCache, PageTable, address, extent, owned, planned_bytes
from tenonnx.errors import BindingError, ImmutableStorageError, ShapeError, UnsupportedError
from tenonnx.runtime.binding import InputSpec, bind_dims, named_inputs, output_arrays, split_cache
from tenonnx.runtime.executable import Executable
from tenonnx.runtime.paged import PagedInputs, TableSpec
from tenonnx.runtime.preparation import Preparation
from tenonnx.runtime.weights import Weights
from tenonnx.shapes import SymMap, SymSequence, SymTensor
from tenonnx.shapes.symbols import Symbol, pages_of
from tenonnx.structs.quantizations import Quantizations

_PLANS_KEPT = 64


class Session:
    """Run a model on this CPU.

    ``model`` is a path to an .onnx file, or a ModelProto (``data_root`` then names the folder of its external data).
    ``threads`` is a number or "auto" (all processors this process may use). ``engine="native"`` refuses operators without a
    native kernel instead of leaving them to onnxruntime. ``formats="strict"`` refuses weights that map to no compute layout
    instead of decoding them at load.

    ``packs`` says what becomes of stored weights in kernels' layouts: "auto" maps those that fit this host and whose source
    is unchanged, and packs the rest in memory; "write" first stores what the model file lacks; "off" passes all over.
    Content that was verified on this machine before is known by the state of its file; ``strict=True`` hashes it again.
    ``session.packs`` lists the verdict on every stored pack.

    Raises ``PayloadError`` when the model or its data cannot be read, ``CheckError`` with every finding when the model
    breaks the storage contract, ``UnsupportedError`` when an option or operator has no way to run.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Any,
        threads: int | str = "auto",
        packs: str = "auto",
        engine: str = "auto",
        formats: str = "any",
        data_root: str | os.PathLike[str] | None = None,
        strict: bool = False,
    ) -> None:
        _option("packs", packs, ("auto", "write", "off"))
        _option("engine", engine, ("auto", "native"))
        _option("formats", formats, ("any", "strict"))
        self._native_only = engine == "native"
        self.threads = _thread_count(threads)
        preparation = Preparation(packs, strict, self.threads)
        if isinstance(model, (str, os.PathLike)):
            prepared = preparation.of_path(Path(model), data_root)
        else:
            prepared = preparation.of_model(model, data_root)
        self.model = prepared.model
        self.packs = prepared.packs.verdicts
        self._watched = list(prepared.packs.files.values())
        self._planner = prepared.planner
        self._weights = Weights(prepared.planner, prepared.root, self.threads, formats, prepared.packs)
        self._specs = self._input_specs()
        self._lock = threading.Lock()
        self._executables: OrderedDict[tuple[Any, ...], Executable] = OrderedDict()
        self._updates = self._find_updates()
        self._paged = PagedInputs(self._planner, self._specs)

    @property
    def metadata(self) -> dict[str, str]:
        """The model's metadata_props."""
        return {entry.key: entry.value for entry in self.model.metadata_props}

    @property
    def inputs(self) -> dict[str, Symbol]:
        """Name and declared type of every graph input."""
        return {name: spec.symbol for name, spec in self._specs.items()}

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights as kernels read them."""
        return self._weights.nbytes

    def _input_specs(self) -> dict[str, Any]:
        specs: dict[str, Any] = {}
        quantizations = Quantizations(self.model)
        mutable = set(self._planner.aliases.mutable_inputs)
        for name, symbol in self._planner.inference.inputs.items():
            if isinstance(symbol, (SymSequence, SymMap)):
                allowed = tuple(quantizations[index] for index in getattr(pages_of(symbol), "allowed", ()))
                specs[name] = TableSpec(name, symbol, name in mutable, allowed)
                continue
            if not isinstance(symbol, SymTensor):
                raise UnsupportedError(f"input {name!r}: {symbol} cannot be bound in this version; expected a tensor")
            specs[name] = InputSpec(name, symbol, name in mutable)
        return specs

    # ---- Caches

    def _find_updates(self) -> dict[str, tuple[int, int, str]]:
        """(axis, batch_axis, position) of the update of each READ_WRITE input that has one."""
        from tenonnx.shapes.operators import update_axes, updates

        found: dict[str, tuple[int, int, str]] = {}
        scope = self._planner.index.main
        for position in updates(scope):
            node = scope.nodes[position]
            symbol = self._specs.get(self._planner.aliases.root(node.input[0]))
            if isinstance(symbol, InputSpec) and symbol.symbol.dims is not None and symbol.name not in found:
                axes = update_axes(node, len(symbol.symbol.dims), scope.describe(position))
                found[symbol.name] = (*axes, node.input[2])
        return found

    def cache_specs(self, context: int, dims: Mapping[str, int] | None = None) -> dict[str, CacheSpec]:
        """Type and dimensions of each cache for ``context`` positions; a batch symbol is 1 unless ``dims`` says more."""
        if not isinstance(context, (int, np.integer)) or context < 1:
            raise ShapeError(f"context {context!r}: expected a positive number of positions")
        specs: dict[str, CacheSpec] = {}
        for name, spec in self._specs.items():
            if not spec.mutable or isinstance(spec, TableSpec):
                continue
            if name not in self._updates or spec.symbol.dims is None:
                raise UnsupportedError(
                    f"input {name!r}: no CacheUpdate says along which axis it grows; allocate and bind it yourself"
                )
            axis, batch_axis, _ = self._updates[name]
            shape = []
            for index, dim in enumerate(spec.symbol.dims):
                value = (dims or {}).get(dim, dim) if isinstance(dim, str) else dim
                if index == axis and (isinstance(value, str) or value is None):
                    value = int(context)
                elif index == batch_axis and (isinstance(value, str) or value is None):
                    value = 1
                if not isinstance(value, int):
                    raise ShapeError(f"input {name!r}: dimension {index} ({dim}) is not known; give it with dims=")
                shape.append(value)
            if shape[axis] < context:
                raise ShapeError(
                    f"context {context}: input {name!r} is declared with a capacity of {shape[axis]}; ask for at most that"
                )
            specs[name] = CacheSpec(spec.symbol.elem_type, tuple(shape), axis)
        if not specs:
            raise UnsupportedError("the model declares no READ_WRITE input, so it has no cache; run it without one")
        return specs

    def cache_bytes(self, context: int, dims: Mapping[str, int] | None = None) -> int:
        """Bytes that ``new_cache(context)`` would allocate: nothing for paged caches, which grow by the page."""
        if self._paged.tables:
            return 0
        return planned_bytes(self.cache_specs(context, dims))

    def new_cache(self, context: int, policy: Any = None, dims: Mapping[str, int] | None = None) -> Cache | PagedCache:
        """All caches of the model for ``context`` positions: in one allocation, or in pages that come as tokens do.

        ``policy`` says which formats pages have, and is for a model with paged caches alone: a Policy, or a pair for K and V.
        Raises ``CapacityError`` when it cannot be allocated, ``ShapeError`` when a dimension is not known.
        """
        if self._paged.tables:
            if isinstance(context, bool) or not isinstance(context, (int, np.integer)) or context < 1:
                raise ShapeError(f"context {context!r}: expected a positive number of positions")
            return PagedCache(self._paged.new_pool(), policy, int(context))
        if policy is not None:
            raise UnsupportedError(f"policy {policy!r}: this model's caches are dense; a policy needs a model with paged caches")
        return Cache(self.cache_specs(context, dims))

    # ---- Runs

    def run(
        self,
        inputs: Mapping[str, Any],
        out: Mapping[str, np.ndarray] | None = None,
        *,
        cache: Cache | PagedCache | None = None,
    ) -> dict[str, Any]:
        """Run once and return every graph output by name; an updated cache is the caller's own array.

        A READ_WRITE input takes ``writable(array)``, or all of them come from ``cache``, which also feeds ``position`` and
        moves its valid length on success. ``out`` gives arrays for outputs to be written into. Whatever fails is raised
        before any byte of a cache is written.

        Raises ``BindingError`` and its kin, ``ShapeError`` or ``CapacityError`` naming the input, and ``PayloadError`` when
        the file of the packs in use was changed in place.
        """
        given, cache = split_cache(inputs, cache)
        if isinstance(cache, PagedCache):
            with self._paged.step(cache, self._specs, given) as fed:
                return self._bind(given, fed, out, cache)
        return self._bind(given, {} if cache is None else {**self._cache_arrays(cache), **self._positions(cache)}, out, cache)

    def _bind(
        self,
        given: Mapping[str, Any],
        fed: Mapping[str, Any],
        out: Mapping[str, np.ndarray] | None,
        cache: Cache | PagedCache | None,
    ) -> dict[str, Any]:
        named_inputs(self._specs, given, set(fed))
        arrays: dict[str, np.ndarray] = {}
        tables: dict[str, PageTable] = {}
        reads: list[Extent] = []
        writes: list[Extent] = [] if cache is None else [cache.extent]
        for name, spec in self._specs.items():
            if isinstance(spec, TableSpec):
                tables[name] = fed[name] if name in fed else spec.bound(given[name])
            elif name in fed:
                arrays[name] = fed[name]
            elif spec.mutable:
                arrays[name] = spec.write(given[name])
                writes.append(extent(name, arrays[name]))
            else:
                arrays[name] = spec.read(given[name])
                reads.append(extent(name, arrays[name]))
        return self._execute(arrays, tables, reads, writes, out, cache)

    def _execute(
        self,
        arrays: dict[str, np.ndarray],
        tables: dict[str, PageTable],
        reads: list[Extent],
        writes: list[Extent],
        out: Mapping[str, np.ndarray] | None,
        cache: Cache | PagedCache | None,
    ) -> dict[str, Any]:
        for file in self._watched:
            file.check()
        self._paged.reserve(tables, arrays)
        arrays |= {name: table.descriptors for name, table in tables.items()}
        executable = self._executable(arrays)
        plan = executable.plan
        bound = self._paged.bind(plan, tables, arrays, cached=cache is not None)
        arrays |= bound.descriptors
        if cache is None:
            writes = [*writes, *self._paged.extents(plan, bound, arrays)]
        try:
            results = self._computed(executable, arrays, reads, writes, out, cache)
        except BaseException:
            bound.undo()
            raise
        self._paged.finish(plan, bound, arrays)
        return {name: tables.get(value, value) if isinstance(value, str) else value for name, value in results.items()}

    def _computed(
        self,
        executable: Executable,
        arrays: Mapping[str, np.ndarray],
        reads: list[Extent],
        writes: list[Extent],
        out: Mapping[str, np.ndarray] | None,
        cache: Cache | PagedCache | None,
    ) -> dict[str, Any]:
        """Every graph output; a table of pages by the name of its input."""
        plan = executable.plan
        results = output_arrays(plan, out)
        if out:
            writes = writes + [extent(f"out[{name!r}]", results[name]) for name in out]
        if cache is None or out:
            self._refuse_initializers(writes)
        known = cache.addresses if isinstance(cache, Cache) else {}
        slots = [
            address(results[slot.name]) if slot.is_output else known.get(slot.name) or address(arrays[slot.name])
            for slot in plan.slots
        ]
        with owned(writes, reads):
            rows = executable.run(slots)
            if isinstance(cache, Cache):
                cache.advance(cache.length + rows)
        values = {slot.value: slot.name for slot in plan.slots}
        return {
            name: results[name] if name in results else self._input_of(values[plan.values[index].root], arrays)
            for name, index in plan.outputs
        }

    def _input_of(self, name: str, arrays: Mapping[str, np.ndarray]) -> np.ndarray | str:
        return name if name in self._paged.tables else arrays[name]

    def _executable(self, arrays: Mapping[str, np.ndarray]) -> Executable:
        shapes = {name: array.shape for name, array in arrays.items()}
        key = tuple(shapes[name] for name in self._specs)
        with self._lock:
            if key in self._executables:
                self._executables.move_to_end(key)
                return self._executables[key]
        tables = {name: shapes.pop(name)[0] for name in self._paged.tables}
        dims = bind_dims(self._specs, shapes)
        plan = self._planner.plan(dims, shapes=shapes, tables=tables)
        steps = (*plan.steps, *(plan.once.steps if plan.once is not None else ()))
        foreign = next((step.label for step in steps if step.kernel is None), None)
        if foreign is not None and self._native_only:
            raise UnsupportedError(f'{foreign}: has no native kernel; engine="auto" lets onnxruntime run it')
        made = Executable(plan, self._weights, self._planner.index, self.threads)
        with self._lock:
            made = self._executables.setdefault(key, made)
            while len(self._executables) > _PLANS_KEPT:
                self._executables.popitem(last=False)
        return made

    def _refuse_initializers(self, writes: list[Extent]) -> None:
        for mine in writes:
            weight = self._weights.overlapping(mine)
            if weight is not None:
                raise ImmutableStorageError(
                    f"{mine.name!r} is bound to the storage of initializer {weight.name!r}, which is never written; "
                    "allocate an array for it"
                )

    def _cache_arrays(self, cache: Cache) -> dict[str, np.ndarray]:
        for name, spec in self._specs.items():
            if not spec.mutable:
                continue
            array = cache.arrays.get(name)
            if array is None or array.dtype != spec.dtype or array.ndim != len(spec.symbol.dims or ()):
                raise BindingError(
                    f"the cache has no tensor that fits input {name!r} ({spec.symbol}); make it with this session's new_cache()"
                )
        return cache.arrays

    def _positions(self, cache: Cache) -> dict[str, np.ndarray]:
        """The graph inputs that say where caches are written, each filled with the valid length."""
        fed: dict[str, np.ndarray] = {}
        for root, (_, batch_axis, name) in self._updates.items():
            spec = self._specs.get(name)
            if spec is None or name in fed:
                continue
            dims = spec.symbol.dims or ()
            batch = cache.specs[root].dims[batch_axis]
            fed[name] = np.full(tuple(dim if isinstance(dim, int) else batch for dim in dims), cache.length, np.int64)
        return fed


def _option(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UnsupportedError(f"{name}={value!r}: expected one of {', '.join(known)}")


def _thread_count(threads: int | str) -> int:
    if threads == "auto":
        return default_threads()
    if isinstance(threads, bool) or not isinstance(threads, (int, np.integer)) or not 1 <= threads <= 256:
        raise UnsupportedError(f'threads={threads!r}: expected "auto" or a number from 1 to 256')
    return int(threads)
