"""What the operators of this domain ask of their inputs' types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tenonnx.errors import CapacityError, ShapeError
from tenonnx.schema.domains import DOMAIN
from tenonnx.schema.graph import Scope, attributes
from tenonnx.shapes.symbols import SymTensor

INT64, BOOL = 7, 9
POSITION_KEY = "tenonnx.position"  # node metadata: the graph input that says where an operator without such a port writes
Lookup = Callable[[str], Any]


def updates(scope: Scope) -> Iterator[int]:
    """Positions of the CacheUpdate nodes of a scope."""
    for position, node in enumerate(scope.nodes):
        if node.domain == DOMAIN and node.op_type == "CacheUpdate":
            yield position


def check_merge(scope: Scope, position: int, lookup: Lookup) -> None:
    """The rule of an If's output: a condition BOOL of one element, and branches that agree in type and rank."""
    node, where = scope.nodes[position], scope.describe(position)
    condition, then, other = (lookup(name) for name in node.input)
    if (
        not isinstance(condition, SymTensor)
        or condition.elem_type != BOOL
        or any(dim not in (1, None) for dim in condition.dims or ())
    ):
        raise ShapeError(f"{where}: condition {node.input[0]!r} is {condition}; expected BOOL[]")
    if isinstance(then, SymTensor) and isinstance(other, SymTensor):
        ranks = then.dims is None or other.dims is None or len(then.dims) == len(other.dims)
        if then.elem_type != other.elem_type or not ranks:
            raise ShapeError(f"{where}: {node.output[0]!r} is {then} in one branch and {other} in the other; make them alike")


def update_axes(node: Any, rank: int, where: str) -> tuple[int, int]:
    """(axis, batch_axis) of an update, counted from the front; ``ShapeError`` when outside the cache's rank."""
    given = attributes(node)
    axes = []
    for name, default in (("axis", -2), ("batch_axis", 0)):
        axis = given.get(name, default)
        if not -rank <= axis < rank:
            raise ShapeError(f"{where}: {name} {axis} is outside a cache of rank {rank}; expected {-rank}..{rank - 1}")
        axes.append(axis % rank)
    return axes[0], axes[1]


def dims_agree(a: Any, b: Any) -> bool:
    """Whether two dimensions can be equal."""
    return not (isinstance(a, int) and isinstance(b, int)) or a == b


def check_update(scope: Scope, position: int, lookup: Lookup) -> None:
    """The rule of CacheUpdate (cache, values, position): types equal, dims equal but along ``axis``, a fitting position.

    ``position + values.dims[axis] <= cache.dims[axis]`` is checked when all three are known.
    """
    node, where = scope.nodes[position], scope.describe(position)
    cache, values, start = (lookup(name) for name in node.input[:3])
    for name, symbol in zip(node.input, (cache, values, start), strict=False):
        if not isinstance(symbol, SymTensor):
            raise ShapeError(f"{where}: {name!r} must be a tensor, found {symbol}")
    if cache.elem_type != values.elem_type:
        raise ShapeError(f"{where}: values {node.input[1]!r} are {values}, the cache is {cache}; cast them to the cache's type")
    if cache.dims is None or values.dims is None:
        return
    if len(cache.dims) != len(values.dims):
        raise ShapeError(f"{where}: values {values} and cache {cache} differ in rank; reshape the values")
    axis, batch_axis = update_axes(node, len(cache.dims), where)
    for index, (have, want) in enumerate(zip(values.dims, cache.dims, strict=True)):
        if index != axis and not dims_agree(have, want):
            raise ShapeError(
                f"{where}: values {values} and cache {cache} differ in dimension {index}, which the update does not run along"
            )
    if start.elem_type != INT64 or (start.dims is not None and len(start.dims) > 1):
        raise ShapeError(f"{where}: position {node.input[2]!r} is {start}; expected INT64[] or INT64[batch]")
    if start.dims and axis == batch_axis:
        raise ShapeError(f"{where}: position {start} gives each row of dimension {axis} its own, but the update runs along it")
    if start.dims and not dims_agree(start.dims[0], cache.dims[batch_axis]):
        raise ShapeError(f"{where}: position {start} has another batch than dimension {batch_axis} of the cache {cache}")
    _check_capacity(scope, node, values.dims[axis], cache.dims[axis], where)


def _check_capacity(scope: Scope, node: Any, length: Any, capacity: Any, where: str) -> None:
    if not isinstance(length, int) or not isinstance(capacity, int):
        return
    starts = known_integers(scope, node.input[2])
    first, last = min(starts, default=0), max(starts, default=0)
    if first < 0 or last + length > capacity:
        at = f"position {last if last + length > capacity else first}"
        raise CapacityError(f"{where}: {at} + {length} new rows do not fit the cache's {capacity}; allocate a longer cache")


def known_integers(scope: Scope, name: str) -> list[int]:
    """The elements of a small INT64 initializer; empty where a value is not known before the run."""
    known = scope.initializers.get(name)
    if known is None or known.external_data or known.data_type != INT64:
        return []
    from onnx import numpy_helper

    from tenonnx.schema.messages import to_onnx

    found: list[int] = numpy_helper.to_array(to_onnx(known)).reshape(-1).tolist()
    return found
