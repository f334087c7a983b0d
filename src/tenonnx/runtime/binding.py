"""What one run binds: inputs checked against their types, caches against their contract, outputs given or allocated."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakKeyDictionary

import numpy as np

from tenonnx import dtypes
from tenonnx._native import Buffer
from tenonnx.cache import Cache, Extent, PagedCache, PageTable, Writable, address, extent
from tenonnx.errors import AliasError, BindingError, ImmutableStorageError, ShapeError
from tenonnx.plan import ExecutionPlan
from tenonnx.plan.types import Slot
from tenonnx.shapes import SymTensor

if TYPE_CHECKING:
    from tenonnx.runtime.executable import Executable, Template

_NAMES_SHOWN = 8


class InputSpec:
    """One graph input: its declared type, and whether the model declares it READ_WRITE."""

    __slots__ = ("dtype", "mutable", "name", "symbol")

    def __init__(self, name: str, symbol: SymTensor, mutable: bool) -> None:
        self.name = name
        self.symbol = symbol
        self.mutable = mutable
        self.dtype = dtypes.scalar(symbol.elem_type, f"input {name!r}").numpy

    def _typed(self, array: np.ndarray) -> np.ndarray:
        if array.dtype != self.dtype:
            raise ShapeError(f"input {self.name!r}: expected {self.symbol} ({self.dtype}), found dtype {array.dtype}; convert it")
        dims = self.symbol.dims
        if dims is not None and len(dims) != array.ndim:
            raise ShapeError(f"input {self.name!r}: expected {self.symbol}, found shape {list(array.shape)}")
        return array

    def read(self, value: Any) -> np.ndarray:
        """A read-only input as a contiguous array; Python numbers stand for scalars."""
        if isinstance(value, Writable):
            raise BindingError(
                f"input {self.name!r}: the model declares it READ_ONLY; pass the array itself, not writable(array)"
            )
        if type(value) is not np.ndarray and hasattr(value, "filled"):  # np.ma itself loads when first named
            raise BindingError(f"input {self.name!r}: found a masked array, whose mask would be lost; pass filled(value) of it")
        if isinstance(value, (bool, int, float)) and not isinstance(value, np.generic):
            value = self._scalar(value)
        if not isinstance(value, (np.ndarray, np.generic)):
            raise BindingError(f"input {self.name!r}: expected a NumPy array of {self.symbol}, found {type(value).__name__}")
        array = self._typed(np.asarray(value))
        if array.flags.c_contiguous and array.flags.aligned:
            return array
        return np.require(array, requirements=["C", "A"])

    def _scalar(self, value: bool | int | float) -> np.ndarray:
        try:
            return np.asarray(value, self.dtype if np.dtype(type(value)).kind == self.dtype.kind else None)
        except OverflowError as error:
            raise BindingError(f"input {self.name!r}: {value} is no {self.symbol}; pass a number that fits it") from error

    def write(self, value: Any) -> np.ndarray:
        """A READ_WRITE input: the caller's own storage, opted in for this call."""
        if not isinstance(value, Writable):
            raise ImmutableStorageError(
                f"input {self.name!r}: the model declares it READ_WRITE and the run would change it; "
                f"found a plain {type(value).__name__}: pass writable(array), or a Cache"
            )
        array = value.array
        if not array.flags.writeable:
            raise ImmutableStorageError(f"input {self.name!r}: the array has become read-only; bind a writable array")
        return self._typed(array)


def bind_dims(specs: Mapping[str, InputSpec], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The symbols' values that input shapes imply; ``ShapeError`` naming both inputs where they disagree."""
    dims: dict[str, tuple[int, str]] = {}
    for name, shape in shapes.items():
        for axis, (have, want) in enumerate(zip(shape, specs[name].symbol.dims or (), strict=False)):
            if isinstance(want, int) and have != want:
                raise ShapeError(f"input {name!r}: expected {specs[name].symbol}, found shape {list(shape)}")
            if not isinstance(want, str):
                continue
            value, first = dims.setdefault(want, (have, name))
            if value != have:
                raise ShapeError(
                    f"input {name!r}: dimension {axis} ({want}) is {have}, but input {first!r} has {want} = {value}; "
                    "give both the same length"
                )
    return {symbol: value for symbol, (value, _) in dims.items()}


class BoundCache:
    """A Cache that fits a session. Its tensors lie where they lie, so a run looks at none of them again."""

    def __init__(self, cache: Cache, shapes: tuple[tuple[int, ...], ...], positions: Mapping[str, tuple[int, ...]]) -> None:
        self.arrays = cache.arrays
        self.shapes = shapes  # of all tensors, in the session's order
        self.positions = positions  # shapes of the inputs that say where new rows go
        self._addresses = cache.addresses
        self._templates: WeakKeyDictionary[Executable, Template] = WeakKeyDictionary()

    def template(self, executable: Executable) -> Template:
        """The part of a run's bindings that the cache settles; made once."""
        made = self._templates.get(executable)
        if made is None:
            made = self._templates[executable] = executable.template(self.arrays, self._addresses)
        return made


class Call:
    """What one run binds: arrays or tables of pages by input, and the storage that it writes and reads."""

    __slots__ = ("addresses", "arrays", "cache", "length", "reads", "tables", "writes")

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}  # but for those of a cache
        self.addresses: dict[str, int] = {}
        self.tables: dict[str, PageTable] = {}
        self.reads: list[Extent] = []
        self.writes: list[Extent] = []
        self.cache: BoundCache | None = None
        self.length = 0  # of the cache

    def feed(self, name: str, array: np.ndarray) -> None:
        """An input that the runtime made for this run alone."""
        self.arrays[name] = array
        self.addresses[name] = address(array)

    def take(self, specs: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        """The caller's values for the inputs that nothing feeds; every input is named once, and none is unknown."""
        cached: Mapping[str, np.ndarray] = {} if self.cache is None else self.cache.arrays
        count = len(given) + len(cached) + len(self.arrays) + len(self.tables)
        fed = self.arrays, self.tables, cached
        if count != len(specs) or any(name not in specs or any(name in part for part in fed) for name in given):
            _refuse_names(specs, given, {name for part in fed for name in part})
        for name, value in given.items():
            spec = specs[name]
            if not isinstance(spec, InputSpec):
                self.tables[name] = spec.bound(value)
                continue
            array = spec.write(value) if spec.mutable else spec.read(value)
            place = extent(name, array)
            (self.writes if spec.mutable else self.reads).append(place)
            self.arrays[name] = array
            self.addresses[name] = place.begin

    def array(self, name: str) -> np.ndarray:
        """The array of one input."""
        return self.arrays[name] if self.cache is None or name in self.arrays else self.cache.arrays[name]

    def template(self, executable: Executable) -> Template:
        """What is settled before this run's own arrays are: everything of a cache."""
        return executable.bare if self.cache is None else self.cache.template(executable)


def _refuse_names(specs: Mapping[str, Any], given: Mapping[str, Any], fed: set[str]) -> NoReturn:
    for name in given:
        if name not in specs:
            raise BindingError(f"the model has no input {name!r}; its inputs are {_named(specs)}")
        if name in fed:
            raise BindingError(
                f"input {name!r}: the cache provides it, and it is given as well; leave it out, or bind arrays yourself"
            )
    missing = [name for name in specs if name not in given and name not in fed]
    raise BindingError(f"missing inputs: {_named(missing)}; the model takes {_named(specs)}")


def _named(names: Collection[str]) -> str:
    """The names, or the first of many: each layer of a decoder has two inputs."""
    shown = list(names)[:_NAMES_SHOWN]
    return ", ".join(shown) + (f", … ({len(names)} in all, listed by session.inputs)" if len(names) > len(shown) else "")


def output_arrays(
    plan: ExecutionPlan, slots: Iterable[tuple[int, Slot]], out: Mapping[str, np.ndarray] | None
) -> dict[str, np.ndarray]:
    """An array for each of ``slots``, the graph outputs that own their storage: the caller's, or a new one."""
    if not isinstance(out or {}, Mapping):
        raise BindingError(f"out: expected arrays by output name, found {type(out).__name__}")
    given = dict(out or {})
    arrays: dict[str, np.ndarray] = {}
    for _, slot in slots:
        row = plan.values[slot.value]
        dtype = dtypes.BY_NUMBER[row.elem_type].numpy
        array = given.pop(slot.name, None)
        if array is None:
            array = Buffer(slot.nbytes, "output").array().view(dtype).reshape(row.dims)
        elif not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != row.dims:
            found = f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
            raise BindingError(f"out[{slot.name!r}]: expected {dtype}{list(row.dims)}, found {found}")
        elif not (array.flags.writeable and array.flags.c_contiguous and array.flags.aligned):
            raise ImmutableStorageError(f"out[{slot.name!r}]: expected a writable contiguous aligned array; allocate one")
        arrays[slot.name] = array
    names = {name for name, _ in plan.outputs} if given else set()
    for name in given:
        if name in names:
            raise AliasError(f"out[{name!r}]: this output has the storage of the cache bound as its input; leave it out")
        raise BindingError(f"out[{name!r}]: the model has no such output; its outputs are {', '.join(sorted(names))}")
    return arrays


def split_cache(inputs: Mapping[str, Any], cache: Cache | PagedCache | None) -> tuple[dict[str, Any], Cache | PagedCache | None]:
    """The inputs apart from a cache, which may be given by keyword or as one of the values."""
    if not isinstance(inputs, Mapping):
        raise BindingError(f"inputs: expected values by input name, found {type(inputs).__name__}")
    caches = {id(value): value for value in inputs.values() if isinstance(value, (Cache, PagedCache))}
    plain = {name: value for name, value in inputs.items() if id(value) not in caches} if caches else dict(inputs)
    if cache is not None:
        if not isinstance(cache, (Cache, PagedCache)):
            raise BindingError(f"cache: expected what session.new_cache() gives, found {type(cache).__name__}")
        caches[id(cache)] = cache
    if len(caches) > 1:
        raise BindingError("two Cache objects are given; one run updates one cache")
    return plain, next(iter(caches.values()), None)
