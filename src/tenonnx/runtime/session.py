"""Session: a model loaded, packed and ready to run; the storage contract is enforced at every run."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tenonnx._native import Arenas, default_threads
from tenonnx.cache import Cache, CacheSpec, Extent, PagedCache, address, extent, owned, planned_bytes
from tenonnx.collection import uncollected
from tenonnx.errors import ConcurrentUseError, ImmutableStorageError, UnsupportedError
from tenonnx.plan.fusion import chosen
from tenonnx.runtime.binding import Call, InputSpec, bind_dims, output_arrays, split_cache
from tenonnx.runtime.dense import DenseInputs, positive
from tenonnx.runtime.executable import Executable
from tenonnx.runtime.paged import PagedInputs
from tenonnx.runtime.preparation import Preparation
from tenonnx.runtime.region import Regions
from tenonnx.runtime.tables import TableSpec
from tenonnx.runtime.weights import Weights
from tenonnx.shapes import SymMap, SymSequence, SymTensor
from tenonnx.shapes.symbols import Symbol
from tenonnx.structs.quantizations import Quantizations

_PLANS_KEPT = 64


class Session:
    """Run a model on this CPU.

    ``model`` is a path to an .onnx file, or a ModelProto (``data_root`` then names the folder of its external data).
    ``threads`` is a number or "auto" (all processors this process may use). ``engine="native"`` refuses operators without a
    native kernel instead of leaving them to onnxruntime; ``engine="onnxruntime"`` leaves it every operator that it has, and
    refuses a model at load whose caches it would copy. ``formats="strict"`` refuses weights that map to no compute layout
    instead of decoding them at load.

    ``packs`` says what becomes of stored weights in kernels' layouts: "auto" maps those that fit this host and whose source
    is unchanged, and packs the rest in memory; "write" first stores what the model file lacks; "off" passes all over.
    Content that was verified on this machine before is known by the state of its file; ``strict=True`` hashes it again.
    ``session.packs`` lists the verdict on every stored pack.

    ``fusions`` are the rewrites that join steps of a plan, "all", "none" or some of their names (``plan.fusion.FUSIONS``):
    none changes a bit of a result.

    Raises ``PayloadError`` when the model or its data cannot be read, ``CheckError`` with every finding when the model
    breaks the storage contract, ``UnsupportedError`` when an option or operator has no way to run.

    Examples:
        >>> import numpy as np
        >>> import onnx
        >>> from tenonnx import Session
        >>> session = Session(onnx.parser.parse_model('''
        ...     <ir_version: 10, opset_import: ["": 21]>
        ...     double (float[n] x) => (float[n] y) { y = Add (x, x) }'''))
        >>> session.inputs
        {'x': SymTensor(elem_type=1, dims=('n',))}
        >>> session.run({"x": np.arange(3, dtype=np.float32)})["y"].tolist()
        [0.0, 2.0, 4.0]
    """

    @uncollected()
    def __init__(
        self,
        model: str | os.PathLike[str] | Any,
        threads: int | str = "auto",
        packs: str = "auto",
        engine: str = "auto",
        formats: str = "any",
        data_root: str | os.PathLike[str] | None = None,
        strict: bool = False,
        fusions: str | Collection[str] = "all",
    ) -> None:
        _option("packs", packs, ("auto", "write", "off"))
        _option("engine", engine, ("auto", "native", "onnxruntime"))
        _option("formats", formats, ("any", "strict"))
        self._engine = engine
        self._fusions = chosen(fusions)
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
        if engine == "onnxruntime":
            _ = self._planner.runnable  # refuses a cache that would be copied
        self._weights = Weights(prepared.planner, prepared.root, self.threads, formats, prepared.packs)
        self._regions = Regions(prepared.planner.index, self.threads)
        self._specs = self._input_specs()
        self._arenas = Arenas()
        self._lock = threading.Lock()
        self._executables: OrderedDict[tuple[Any, ...], Executable] = OrderedDict()
        self._dense = DenseInputs(self._planner, self._specs)
        self._paged = PagedInputs(self._planner, self._specs)
        self._rest = tuple(name for name in self._specs if not self._dense.has(name))

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
                specs[name] = TableSpec(name, symbol, name in mutable, quantizations)
                continue
            if not isinstance(symbol, SymTensor):
                raise UnsupportedError(f"input {name!r}: {symbol} cannot be bound in this version; expected a tensor")
            specs[name] = InputSpec(name, symbol, name in mutable)
        return specs

    # ---- Caches

    @property
    def fed_inputs(self) -> tuple[str, ...]:
        """The graph inputs that say where a cache's new rows go, filled by the cache that ``run`` is given."""
        return (*self._dense.fed, *self._paged.fed)

    def cache_specs(self, context: int, dims: Mapping[str, int] | None = None) -> dict[str, CacheSpec]:
        """Type and dimensions of each cache for ``context`` positions; a batch symbol is 1 unless ``dims`` says more.

        Raises ``ShapeError`` for a context that the model's declared capacity does not hold or a dimension that is not known,
        ``UnsupportedError`` where no operator says how a cache grows.
        """
        return self._dense.specs(context, dims)

    def cache_bytes(self, context: int, dims: Mapping[str, int] | None = None) -> int:
        """Bytes that ``new_cache(context)`` would allocate: nothing for paged caches, which grow by the page."""
        if self._paged.mutable:
            return 0
        return planned_bytes(self.cache_specs(context, dims))

    def new_cache(
        self, context: int, policy: Any = None, dims: Mapping[str, int] | None = None, *, limit: int | None = None
    ) -> Cache | PagedCache:
        """All caches of the model for ``context`` positions: in one allocation, or in pages that come as tokens do.

        ``policy`` says which formats pages have, and is for a model with paged caches alone: a Policy, or a pair for K and V.
        ``limit`` is in bytes, and for dense caches: what would take more is refused before anything is allocated.
        Raises ``CapacityError`` past the limit or when it cannot be allocated, ``ShapeError`` when a dimension is not known.
        """
        if self._paged.mutable:
            if limit is not None:
                raise UnsupportedError(f"limit={limit!r}: this model's caches are paged; bound their bytes with a Budget policy")
            return PagedCache(self._paged.new_pool(), policy, positive(context))
        if policy is not None:
            raise UnsupportedError(
                f"policy {policy!r}: this model's caches are dense, and a policy is for pages; if it is from a GGUF, convert it "
                "with the option paged"
            )
        return Cache(self.cache_specs(context, dims), limit)

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
            with self._paged.step(cache, self._specs, given) as call:
                return self._bind(call, given, out, cache)
        return self._bind(Call() if cache is None else self._dense.call(cache), given, out, cache)

    def _bind(
        self, call: Call, given: Mapping[str, Any], out: Mapping[str, np.ndarray] | None, cache: Cache | PagedCache | None
    ) -> dict[str, Any]:
        call.take(self._specs, given)
        for file in self._watched:
            file.check()
        if not call.tables:
            return self._computed(self._executable(call), call, out, cache)
        self._paged.reserve(call)
        executable = self._executable(call)
        bound = self._paged.bind(executable.plan, call, cached=isinstance(cache, PagedCache))
        try:
            results = self._computed(executable, call, out, cache)
            self._paged.finish(executable.plan, bound, call.arrays)
        except BaseException:
            bound.undo()
            raise
        return results | {name: call.tables[root] for name, root in executable.results if root in call.tables}

    def _computed(
        self, executable: Executable, call: Call, out: Mapping[str, np.ndarray] | None, cache: Cache | PagedCache | None
    ) -> dict[str, Any]:
        """Every graph output; of a table of pages, its descriptors."""
        made = output_arrays(executable.plan, executable.output_slots, out)
        if out:
            call.writes += [extent(f"out[{name!r}]", made[name]) for name in out]
        if cache is None or out:
            self._refuse_initializers(call.writes)
        settled = call.template(executable)
        slots = settled.slots.copy()
        for name, where in call.addresses.items():
            number = executable.input_slots.get(name)
            if number is not None:
                slots[number] = where
        for number, slot in executable.output_slots:
            slots[number] = address(made[slot.name])
        with owned(call.writes, call.reads):
            if isinstance(cache, Cache) and cache.length != call.length:
                raise ConcurrentUseError("the cache: another call has changed its length since this one began; run again")
            rows = executable.run(slots)
            if isinstance(cache, Cache):
                cache.advance(call.length + rows)
        results = settled.results.copy()
        for name, root in settled.others:
            results[name] = made[name] if root is None else call.arrays[root]
        return results

    def _executable(self, call: Call) -> Executable:
        key = self._dense.shapes(call), tuple(call.arrays[name].shape for name in self._rest)
        with self._lock:
            if key in self._executables:
                self._executables.move_to_end(key)
                return self._executables[key]
        shapes = {name: call.array(name).shape for name in self._specs}
        tables = {name: shapes.pop(name)[0] for name in self._paged.tables}
        dims = bind_dims(self._specs, shapes)
        plan = self._planner.plan(dims, shapes=shapes, tables=tables, engine=self._engine, fusions=self._fusions)
        steps = (*plan.steps, *(plan.once.steps if plan.once is not None else ()))
        foreign = next((step.label for step in steps if step.kernel is None), None)
        if foreign is not None and self._engine == "native":
            raise UnsupportedError(f'{foreign}: has no native kernel; engine="auto" lets onnxruntime run it')
        made = Executable(plan, self._weights, self._regions, self.threads, self._arenas)
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


def _option(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UnsupportedError(f"{name}={value!r}: expected one of {', '.join(known)}")


def _thread_count(threads: int | str) -> int:
    if threads == "auto":
        return default_threads()
    if isinstance(threads, bool) or not isinstance(threads, (int, np.integer)) or not 1 <= threads <= 256:
        raise UnsupportedError(f'threads={threads!r}: expected "auto" or a number from 1 to 256')
    return int(threads)
