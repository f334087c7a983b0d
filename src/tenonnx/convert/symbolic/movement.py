"""Rules of operators that say, change or follow shapes and places."""

from __future__ import annotations

from typing import Any

import numpy as np

from tenonnx.convert.symbolic.elements import AtLeastZero, Choice, Facts, Linear, Unproven, choice, lift
from tenonnx.convert.symbolic.formula import Formula, Index, Rule, Values, broadcast, element_of, unproven
from tenonnx.schema.graph import attributes


def _shape(values: Values, node: Any) -> Formula:
    dims, given = values.dims(node.input[0]), attributes(node)
    picked = dims[slice(given.get("start", 0), given.get("end", len(dims)))]
    return _listed(list(picked))


def _listed(elements: list[Any]) -> Formula:
    def at(index: Index) -> Any:
        place = index[0].known
        if place is None:
            raise Unproven
        return elements[place]

    return Formula((Linear(len(elements)),), at)


def _axes(values: Values, node: Any, rank: int) -> list[int]:
    given = attributes(node).get("axes")
    if given is None:
        known = [axis.known for axis in values[node.input[1]].vector()]
        given = [axis for axis in known if axis is not None]
    return [axis % rank for axis in given]


def _unsqueeze(values: Values, node: Any) -> Formula:
    source = values[node.input[0]]
    count = len(attributes(node).get("axes") or values[node.input[1]].vector())
    rank = len(source.dims) + count
    axes = _axes(values, node, rank)
    kept = [axis for axis in range(rank) if axis not in axes]
    dims = [Linear(1)] * rank
    for axis, dim in zip(kept, source.dims, strict=True):
        dims[axis] = dim
    return Formula(tuple(dims), lambda index: source.at(tuple(index[axis] for axis in kept)))


def _squeeze(values: Values, node: Any) -> Formula:
    source = values[node.input[0]]
    rank = len(source.dims)
    some = "axes" in attributes(node) or (len(node.input) > 1 and node.input[1])
    axes = _axes(values, node, rank) if some else [axis for axis in range(rank) if source.dims[axis].known == 1]
    return _squeezed(source, axes)


def _squeezed(source: Formula, axes: list[int]) -> Formula:
    kept = [axis for axis in range(len(source.dims)) if axis not in axes]

    def at(index: Index) -> Any:
        places = dict(zip(kept, index, strict=True))
        return source.at(tuple(places.get(axis, Linear()) for axis in range(len(source.dims))))

    return Formula(tuple(source.dims[axis] for axis in kept), at)


def _reshape(values: Values, node: Any) -> Formula:
    """Where only dimensions of 1 come and go."""
    source, target = values[node.input[0]], values[node.input[1]].vector()
    inner = _squeezed(source, [axis for axis, dim in enumerate(source.dims) if dim.known == 1])
    wide = [axis for axis, dim in enumerate(target) if dim.known != 1]
    if len(wide) > len(inner.dims):  # the -1 of a Reshape to ones
        wide = [axis for axis in wide if target[axis].known != -1]
    if len(wide) != len(inner.dims):
        raise Unproven
    dims = [Linear(1)] * len(target)
    for axis, dim in zip(wide, inner.dims, strict=True):
        if target[axis].known not in (-1, 0) and target[axis] != dim:
            raise Unproven
        dims[axis] = dim
    return Formula(tuple(dims), lambda index: inner.at(tuple(index[axis] for axis in wide)))


def _expand(values: Values, node: Any) -> Formula:
    shape = values[node.input[1]].vector()
    filler = Formula(tuple(shape), lambda index: Linear())
    return broadcast([values[node.input[0]], filler], lambda element, _: element)


def _constant_of_shape(values: Values, node: Any) -> Formula:
    from onnx import numpy_helper

    from tenonnx.schema.messages import to_onnx

    given = attributes(node).get("value")
    value = np.zeros(1, np.float32) if given is None else numpy_helper.to_array(to_onnx(given))
    element = element_of(value.flat[0])
    return Formula(tuple(values[node.input[0]].vector()), lambda index: element)


def _range(values: Values, node: Any) -> Formula:
    start, limit, delta = (values[name].scalar() for name in node.input)
    if delta.known != 1:
        raise Unproven
    return Formula((limit - start,), lambda index: start + index[0])


def _concat(values: Values, node: Any) -> Formula:
    """Along an axis where every part has a known length, and the index is known."""
    parts = [values[name] for name in node.input]
    axis = attributes(node)["axis"] % len(parts[0].dims)
    lengths = [part.dims[axis].known for part in parts]
    ends = np.cumsum([unproven() if length is None else length for length in lengths]).tolist()
    # The other dimensions agree in a valid graph: those of the part that says most.
    dims = max((part.dims for part in parts), key=lambda dims: sum(bool(dim.terms) for dim in dims))

    def at(index: Index) -> Any:
        place = index[axis].known
        if place is None:
            raise Unproven
        part = next(number for number, end in enumerate(ends) if place < end)
        inside = place - (ends[part - 1] if part else 0)
        return parts[part].at((*index[:axis], Linear(inside), *index[axis + 1 :]))

    return Formula((*dims[:axis], Linear(ends[-1]), *dims[axis + 1 :]), at)


def _gather(values: Values, node: Any) -> Formula:
    data, indices = values[node.input[0]], values[node.input[1]]
    axis, rank = attributes(node).get("axis", 0) % len(data.dims), len(indices.dims)

    def at(index: Index) -> Any:
        place = _place(indices.at(index[axis : axis + rank]), data.dims[axis])
        return data.at((*index[:axis], place, *index[axis + rank :]))

    return Formula((*data.dims[:axis], *indices.dims, *data.dims[axis + 1 :]), at)


def _place(element: Any, dim: Linear) -> Linear:
    if not isinstance(element, Linear):
        raise Unproven
    return element + dim if element.known is not None and element.known < 0 else element


def _gather_nd(values: Values, node: Any) -> Formula:
    data, indices = values[node.input[0]], values[node.input[1]]
    depth = indices.dims[-1].known
    if attributes(node).get("batch_dims", 0) or depth is None:
        raise Unproven
    rank = len(indices.dims) - 1

    def at(index: Index) -> Any:
        where = tuple(_place(indices.at((*index[:rank], Linear(k))), data.dims[k]) for k in range(depth))
        return data.at((*where, *index[rank:]))

    return Formula((*indices.dims[:-1], *data.dims[depth:]), at)


def _slice(values: Values, node: Any) -> Formula:
    source = values[node.input[0]]
    rank = len(source.dims)
    starts, ends = (values[name].vector() for name in node.input[1:3])
    axes = [axis.known or 0 for axis in values[node.input[3]].vector()] if len(node.input) > 3 else list(range(len(starts)))
    if len(node.input) > 4 and any(step.known != 1 for step in values[node.input[4]].vector()):
        raise Unproven
    dims, first = list(source.dims), [Linear()] * rank
    for axis, start, end in zip(axes, starts, ends, strict=True):
        axis %= rank
        dims[axis], first[axis] = _cut(start, end, source.dims[axis])
    return Formula(tuple(dims), lambda index: source.at(tuple(i + begin for i, begin in zip(index, first, strict=True))))


def _cut(start: Linear, end: Linear, dim: Linear) -> tuple[Linear, Linear]:
    """(length, begin) of a slice whose bounds are known to lie inside."""
    start, end = (dim + bound if bound.known is not None and bound.known < 0 else bound for bound in (start, end))
    if end.known is not None and end.known >= 2**31 - 1:
        end = dim
    inside = Facts().holds(start) and Facts().holds(dim - end) and Facts().holds(end - start)
    if not inside:
        raise Unproven
    return end - start, start


def _transpose(values: Values, node: Any) -> Formula:
    source = values[node.input[0]]
    order = attributes(node).get("perm", list(range(len(source.dims)))[::-1])

    def at(index: Index) -> Any:
        places = dict(zip(order, index, strict=True))
        return source.at(tuple(places[axis] for axis in range(len(order))))

    return Formula(tuple(source.dims[axis] for axis in order), at)


def _trilu(values: Values, node: Any) -> Formula:
    source, upper = values[node.input[0]], attributes(node).get("upper", 1)
    shift = values[node.input[1]].scalar() if len(node.input) > 1 and node.input[1] else Linear()

    def at(index: Index) -> Any:
        beyond = index[-1] - index[-2] - shift
        kept = source.at(index)
        zero: Any = 0.0 if isinstance(kept, float) else Linear() if isinstance(kept, (Linear, Choice)) else False
        return lift(lambda element: choice(AtLeastZero(beyond if upper else -beyond), element, zero), kept)

    return Formula(source.dims, at)


RULES: dict[str, Rule] = {
    "Shape": _shape,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Reshape": _reshape,
    "Expand": _expand,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Concat": _concat,
    "Slice": _slice,
    "Transpose": _transpose,
    "Trilu": _trilu,
}
