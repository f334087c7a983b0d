"""Dense caches of a model: which graph inputs they are, how each grows, and what a Cache feeds to a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from tenonnx.cache import Cache, CacheSpec
from tenonnx.errors import BindingError, ShapeError, UnsupportedError
from tenonnx.plan import Planner
from tenonnx.runtime.binding import BoundCache, Call, InputSpec
from tenonnx.schema.domains import DOMAIN
from tenonnx.shapes.operators import POSITION_KEY, update_axes

_SCATTERS = {(DOMAIN, "CacheUpdate"), ("", "TensorScatter")}  # (cache, values, position), both with an axis
_GROUPED = ("com.microsoft", "GroupQueryAttention")  # caches [batch, heads, capacity, head size]


class Growth(NamedTuple):
    """Rows of a cache lie along ``axis``; ``position`` names the value that says where new ones go, "" for none."""

    axis: int
    batch_axis: int
    position: str


class DenseInputs:
    """What a model's operators over dense caches ask of its graph inputs."""

    def __init__(self, planner: Planner, specs: Mapping[str, Any]) -> None:
        self._specs: dict[str, InputSpec] = {
            name: spec for name, spec in specs.items() if isinstance(spec, InputSpec) and spec.mutable
        }
        self._growth = _growths(planner, self._specs)
        fed = {
            growth.position: root for root, growth in self._growth.items() if isinstance(specs.get(growth.position), InputSpec)
        }
        self._positions = {name: (specs[name].symbol.dims or (), root) for name, root in fed.items()}
        self._fitting: WeakKeyDictionary[Cache, BoundCache] = WeakKeyDictionary()

    def has(self, name: str) -> bool:
        """Whether a graph input is a dense cache."""
        return name in self._specs

    @property
    def fed(self) -> tuple[str, ...]:
        """The graph inputs that a Cache fills with its length."""
        return tuple(self._positions)

    def specs(self, context: int, dims: Mapping[str, int] | None) -> dict[str, CacheSpec]:
        """Type and dimensions of each cache for ``context`` positions."""
        context = positive(context)
        if not self._specs:
            raise UnsupportedError("the model declares no READ_WRITE input, so it has no cache; run it without one")
        return {name: self._spec(spec, context, dims or {}) for name, spec in self._specs.items()}

    def _spec(self, spec: InputSpec, context: int, dims: Mapping[str, int]) -> CacheSpec:
        growth = self._growth.get(spec.name)
        if growth is None or spec.symbol.dims is None:
            raise UnsupportedError(
                f"input {spec.name!r}: no operator that this version knows says along which axis it grows; "
                "allocate and bind it yourself"
            )
        unknown = {growth.batch_axis: 1, growth.axis: context}
        shape = []
        for index, dim in enumerate(spec.symbol.dims):
            value = dims.get(dim) if isinstance(dim, str) else dim
            if index == growth.axis and isinstance(dim, str) and value not in (None, context):
                raise ShapeError(f"context {context}: {dim} is given as {value}; leave one of the two out")
            value = unknown.get(index) if value is None else value
            if not isinstance(value, (int, np.integer)):
                raise ShapeError(
                    f"input {spec.name!r}: dimension {index} ({dim}) is not known; give its number, or declare it in the model"
                )
            if value < 0:
                raise ShapeError(f"input {spec.name!r}: dimension {index} ({dim}) is {value}; expected 0 or more")
            shape.append(int(value))
        if shape[growth.axis] < context:
            raise ShapeError(
                f"context {context}: input {spec.name!r} has a capacity of {shape[growth.axis]}; ask for at most that"
            )
        return CacheSpec(spec.symbol.elem_type, tuple(shape), growth.axis)

    def call(self, cache: Cache) -> Call:
        """A run's bindings, with what a cache provides: its tensors, and where new rows go."""
        call = Call()
        call.cache = bound = self._fitting.get(cache) or self._bound(cache)
        call.writes.append(cache.extent)
        call.length = cache.length
        for name, shape in bound.positions.items():
            position = np.empty(shape, np.int64)
            position.fill(call.length)
            call.feed(name, position)
        return call

    def _bound(self, cache: Cache) -> BoundCache:
        self._check(cache)
        positions = {}
        for name, (dims, root) in self._positions.items():
            batch = cache.specs[root].dims[self._growth[root].batch_axis]
            positions[name] = tuple(dim if isinstance(dim, int) else batch for dim in dims)
        shapes = tuple(cache.arrays[name].shape for name in self._specs)
        made = self._fitting[cache] = BoundCache(cache, shapes, positions)
        return made

    def shapes(self, call: Call) -> tuple[tuple[int, ...], ...]:
        """The shapes of all dense READ_WRITE inputs, in order."""
        return tuple(call.arrays[name].shape for name in self._specs) if call.cache is None else call.cache.shapes

    def _check(self, cache: Cache) -> None:
        """Refuse a cache whose tensors are not those of this model, or that has others."""
        for name, spec in self._specs.items():
            array = cache.arrays.get(name)
            if array is None or array.dtype != spec.dtype or array.ndim != len(spec.symbol.dims or ()):
                raise BindingError(
                    f"the cache has no tensor that fits input {name!r} ({spec.symbol}); make it with this session's new_cache()"
                )
        if more := cache.arrays.keys() - self._specs.keys():
            raise BindingError(
                f"the cache has more than the model: {', '.join(sorted(more))}; make it with this session's new_cache()"
            )


def positive(context: int) -> int:
    """A number of positions; ``ShapeError`` for anything that is none."""
    if isinstance(context, bool) or not isinstance(context, (int, np.integer)) or context < 1:
        raise ShapeError(f"context {context!r}: expected a positive number of positions")
    return int(context)


def _growths(planner: Planner, specs: Mapping[str, InputSpec]) -> dict[str, Growth]:
    """How each cache grows, from the first operator that writes it."""
    found: dict[str, Growth] = {}
    scope = planner.index.main
    for alias in planner.aliases.aliases:
        root = planner.aliases.root(alias.source)
        spec, node = specs.get(root), scope.nodes[alias.node]
        if spec is None or spec.symbol.dims is None or root in found:
            continue
        operator = node.domain.removeprefix("ai.onnx"), node.op_type
        if operator in _SCATTERS:
            axes = update_axes(node, len(spec.symbol.dims), scope.describe(alias.node))
            found[root] = Growth(*axes, node.input[2] if len(node.input) > 2 else "")
        elif operator == _GROUPED:
            # The operator has no port that says where it writes; its lengths are made from a graph input.
            positions = (entry.value for entry in node.metadata_props if entry.key == POSITION_KEY)
            found[root] = Growth(2, 0, next(positions, ""))
    return found
