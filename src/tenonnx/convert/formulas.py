"""Formulas for the values of a graph that masks and shapes are computed from, one rule per operator."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tenonnx.convert.editing import Editor
from tenonnx.convert.symbolic import AtLeastZero, Choice, Facts, Linear, NonZero, Unproven, both, choice, lift, negated
from tenonnx.schema.graph import attributes
from tenonnx.shapes.symbols import Dim, SymTensor

Index = tuple[Linear, ...]
_BOOL, _FLOATS, _INTS = 9, (1, 10, 11, 16), (2, 3, 4, 5, 6, 7, 12, 13)


@dataclass(frozen=True)
class Formula:
    """A tensor: its dimensions, and the element at an index."""

    dims: tuple[Linear, ...]
    at: Callable[[Index], Any]

    def scalar(self) -> Linear:
        """The one element of a tensor of one element, as an integer."""
        element = self.at((Linear(),) * len(self.dims))
        if any(dim.known != 1 for dim in self.dims) or not isinstance(element, Linear):
            raise Unproven
        return element

    def vector(self) -> list[Linear]:
        """The elements of a rank-1 tensor of known length, as integers."""
        length = self.dims[0].known if len(self.dims) == 1 else None
        if length is None:
            raise Unproven
        elements = [self.at((Linear(place),)) for place in range(length)]
        if not all(isinstance(element, Linear) for element in elements):
            raise Unproven
        return elements

    def facts(self, index: Index) -> Facts:
        """Bounds of an index of plain symbols."""
        pairs = zip(index, self.dims, strict=True)
        return Facts({name: dim - Linear(1) for place, dim in pairs for name in place.terms})


class Formulas:
    """Formulas by value name, made on demand; ``symbols`` renames dimensions of inputs that are known to be equal."""

    def __init__(self, editor: Editor, types: Mapping[str, SymTensor], symbols: Mapping[str, Linear]) -> None:
        """``types``: of the graph's values as it was; ``symbols``: dimensions that are known to be something else."""
        self._editor = editor
        self._types = types
        self._symbols = symbols
        self._known: dict[str, Formula | None] = {}

    def define(self, name: str, value: Linear) -> None:
        """State the one element of a scalar."""
        self._known[name] = Formula((), lambda index: value)

    def __getitem__(self, name: str) -> Formula:
        """The formula of a value; ``Unproven`` when it has none."""
        if name not in self._known:
            self._known[name] = None  # also against endless recursion
            try:
                self._known[name] = self._make(name)
            except (Unproven, IndexError, ValueError, KeyError):
                self._known[name] = None
        found = self._known[name]
        if found is None:
            raise Unproven(name)
        return found

    def dims(self, name: str) -> tuple[Linear, ...]:
        """Dimensions of a value: those of its formula, else as declared or inferred."""
        if name not in self._editor.inputs and name not in self._editor.initializers:
            with contextlib.suppress(Unproven):
                return self[name].dims
        symbol = self._types.get(name)
        if symbol is None or symbol.dims is None:
            raise Unproven(name)
        return tuple(self.dim(dim, f"{name}[{place}]") for place, dim in enumerate(symbol.dims))

    def dim(self, dim: Dim, unnamed: str) -> Linear:
        """A declared dimension; exporters name sums of dimensions by their terms."""
        if isinstance(dim, int):
            return Linear(dim)
        name = unnamed if dim is None else dim
        if name in self._symbols:
            return self._symbols[name]
        terms = [term.strip() for term in name.split("+")]
        if len(terms) == 1 or not all(term.isidentifier() or term.isdecimal() for term in terms):
            return Linear.symbol(name)
        numbers = [int(term) if term.isdecimal() else term for term in terms]
        return sum((self.dim(number, "") for number in numbers), Linear())

    def _make(self, name: str) -> Formula:
        if name in self._editor.inputs:
            return self._input(name)
        node = self._editor.maker(name)
        if node is None or node.op_type == "Constant":
            array = self._editor.array(name)
            if array is None:
                raise Unproven
            return _constant(array)
        rule = RULES.get(node.op_type)
        if rule is None or node.domain not in ("", "ai.onnx"):
            raise Unproven
        return rule(self, node)

    def _input(self, name: str) -> Formula:
        elem_type = self._editor.inputs[name].type.tensor_type.elem_type
        if elem_type not in (_BOOL, *_INTS):
            raise Unproven
        flag = elem_type == _BOOL
        return Formula(self.dims(name), lambda index: NonZero(name, index) if flag else _Opaque(name, index))


@dataclass(frozen=True)
class _Opaque:
    """An integer element of a graph input, of which only whether it is 0 can be asked."""

    name: str
    index: Index


def _constant(array: np.ndarray) -> Formula:
    def at(index: Index) -> Any:
        place = [part.known for part in index]
        picked = array
        for axis, known in enumerate(place):
            picked = np.take(picked, [0 if known is None else known], axis) if known is not None else picked
        if picked.size == 0 or (picked != picked.flat[0]).any():
            raise Unproven
        return element_of(picked.flat[0])

    return Formula(tuple(Linear(dim) for dim in array.shape), at)


def element_of(value: Any) -> Any:
    """A NumPy scalar as an element."""
    if value.dtype == np.bool_:
        return bool(value)
    return Linear(int(value)) if value.dtype.kind in "iu" else float(value)


def _broadcast(parts: list[Formula], operation: Callable[..., Any]) -> Formula:
    rank = max(len(part.dims) for part in parts)
    aligned = [(Linear(1),) * (rank - len(part.dims)) + part.dims for part in parts]
    dims = tuple(_common(column) for column in zip(*aligned, strict=True))

    def at(index: Index) -> Any:
        elements = []
        for part in parts:
            own = index[rank - len(part.dims) :]
            elements.append(part.at(tuple(Linear() if dim.known == 1 else i for i, dim in zip(own, part.dims, strict=True))))
        return lift(operation, *elements)

    return Formula(dims, at)


def _common(dims: tuple[Linear, ...]) -> Linear:
    wide = {dim for dim in dims if dim.known != 1}
    if len(wide) > 1:
        raise Unproven
    return wide.pop() if wide else Linear(1)


def _elementwise(operation: Callable[..., Any]) -> Callable[[Formulas, Any], Formula]:
    return lambda formulas, node: _broadcast([formulas[name] for name in node.input], operation)


def _arithmetic(integers: Callable[[Linear, Linear], Any], floats: Callable[[float, float], float]) -> Callable[..., Any]:
    def operation(a: Any, b: Any) -> Any:
        if isinstance(a, Linear) and isinstance(b, Linear):
            return integers(a, b)
        if isinstance(a, float) and isinstance(b, float):
            return floats(a, b)
        raise Unproven

    return operation


def _product(a: Linear, b: Linear) -> Linear:
    if a.known is None and b.known is None:
        raise Unproven
    return b * a.known if a.known is not None else a * (b.known or 0)


def _compared(difference: Callable[[Linear, Linear], Linear]) -> Callable[..., Any]:
    def operation(a: Any, b: Any) -> Any:
        if not isinstance(a, Linear) or not isinstance(b, Linear):
            raise Unproven
        value = difference(a, b)
        return value.known >= 0 if value.known is not None else AtLeastZero(value)

    return operation


def _equal(a: Any, b: Any) -> Any:
    if isinstance(a, Linear) and isinstance(b, Linear):
        difference, facts = a - b, Facts()
        if difference.known is not None:
            return difference.known == 0
        if facts.holds(difference - Linear(1)) or facts.holds(-difference - Linear(1)):
            return False
    raise Unproven


def _extreme(sign: int) -> Callable[..., Any]:
    """Max (1) and Min (-1), of values whose order is known."""

    def operation(*values: Any) -> Any:
        best = values[0]
        for value in values[1:]:
            if not isinstance(value, Linear) or not isinstance(best, Linear):
                raise Unproven
            known = Facts().holds((value - best) * sign)
            if known is None:
                raise Unproven
            best = value if known else best
        return best

    return operation


def _where(condition: Any, then: Any, other: Any) -> Any:
    if isinstance(condition, AtLeastZero):
        known = Facts().holds(condition.value)
        condition = condition if known is None else known
    return choice(condition, then, other)


def _cast(formulas: Formulas, node: Any) -> Formula:
    source, target = formulas[node.input[0]], attributes(node)["to"]

    def convert(element: Any) -> Any:
        if target == _BOOL:
            if isinstance(element, _Opaque):
                return NonZero(element.name, element.index)
            if isinstance(element, Linear):
                return element.known != 0 if element.known is not None else _unproven()
            return element != 0.0 if isinstance(element, float) else element
        if isinstance(element, float) or target not in (*_FLOATS, *_INTS):
            return element if target in _FLOATS else _unproven()
        if isinstance(element, Linear):
            return element if target in _INTS else float(element.known) if element.known is not None else _unproven()
        one: Any = 1.0 if target in _FLOATS else Linear(1)
        condition = NonZero(element.name, element.index) if isinstance(element, _Opaque) else element
        # An attention mask holds 0 and 1: as a number it is its own condition.
        return choice(condition, one, one * 0)

    return Formula(source.dims, lambda index: lift(convert, source.at(index)))


def _unproven() -> Any:
    raise Unproven


def _shape(formulas: Formulas, node: Any) -> Formula:
    dims, given = formulas.dims(node.input[0]), attributes(node)
    picked = dims[slice(given.get("start", 0), given.get("end", len(dims)))]
    return _listed(list(picked))


def _listed(elements: list[Any]) -> Formula:
    def at(index: Index) -> Any:
        place = index[0].known
        if place is None:
            raise Unproven
        return elements[place]

    return Formula((Linear(len(elements)),), at)


def _axes(formulas: Formulas, node: Any, rank: int) -> list[int]:
    given = attributes(node).get("axes")
    if given is None:
        known = [axis.known for axis in formulas[node.input[1]].vector()]
        given = [axis for axis in known if axis is not None]
    return [axis % rank for axis in given]


def _unsqueeze(formulas: Formulas, node: Any) -> Formula:
    source = formulas[node.input[0]]
    count = len(attributes(node).get("axes") or formulas[node.input[1]].vector())
    rank = len(source.dims) + count
    axes = _axes(formulas, node, rank)
    kept = [axis for axis in range(rank) if axis not in axes]
    dims = [Linear(1)] * rank
    for axis, dim in zip(kept, source.dims, strict=True):
        dims[axis] = dim
    return Formula(tuple(dims), lambda index: source.at(tuple(index[axis] for axis in kept)))


def _squeeze(formulas: Formulas, node: Any) -> Formula:
    source = formulas[node.input[0]]
    rank = len(source.dims)
    some = "axes" in attributes(node) or (len(node.input) > 1 and node.input[1])
    axes = _axes(formulas, node, rank) if some else [axis for axis in range(rank) if source.dims[axis].known == 1]
    return _squeezed(source, axes)


def _squeezed(source: Formula, axes: list[int]) -> Formula:
    kept = [axis for axis in range(len(source.dims)) if axis not in axes]

    def at(index: Index) -> Any:
        places = dict(zip(kept, index, strict=True))
        return source.at(tuple(places.get(axis, Linear()) for axis in range(len(source.dims))))

    return Formula(tuple(source.dims[axis] for axis in kept), at)


def _reshape(formulas: Formulas, node: Any) -> Formula:
    """Where only dimensions of 1 come and go."""
    source, target = formulas[node.input[0]], formulas[node.input[1]].vector()
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


def _expand(formulas: Formulas, node: Any) -> Formula:
    shape = formulas[node.input[1]].vector()
    filler = Formula(tuple(shape), lambda index: Linear())
    return _broadcast([formulas[node.input[0]], filler], lambda element, _: element)


def _constant_of_shape(formulas: Formulas, node: Any) -> Formula:
    from onnx import numpy_helper

    from tenonnx.schema.messages import to_onnx

    given = attributes(node).get("value")
    value = np.zeros(1, np.float32) if given is None else numpy_helper.to_array(to_onnx(given))
    element = element_of(value.flat[0])
    return Formula(tuple(formulas[node.input[0]].vector()), lambda index: element)


def _range(formulas: Formulas, node: Any) -> Formula:
    start, limit, delta = (formulas[name].scalar() for name in node.input)
    if delta.known != 1:
        raise Unproven
    return Formula((limit - start,), lambda index: start + index[0])


def _concat(formulas: Formulas, node: Any) -> Formula:
    """Along an axis where every part has a known length, and the index is known."""
    parts = [formulas[name] for name in node.input]
    axis = attributes(node)["axis"] % len(parts[0].dims)
    lengths = [part.dims[axis].known for part in parts]
    ends = np.cumsum([_unproven() if length is None else length for length in lengths]).tolist()
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


def _gather(formulas: Formulas, node: Any) -> Formula:
    data, indices = formulas[node.input[0]], formulas[node.input[1]]
    axis, rank = attributes(node).get("axis", 0) % len(data.dims), len(indices.dims)

    def at(index: Index) -> Any:
        place = _place(indices.at(index[axis : axis + rank]), data.dims[axis])
        return data.at((*index[:axis], place, *index[axis + rank :]))

    return Formula((*data.dims[:axis], *indices.dims, *data.dims[axis + 1 :]), at)


def _place(element: Any, dim: Linear) -> Linear:
    if not isinstance(element, Linear):
        raise Unproven
    return element + dim if element.known is not None and element.known < 0 else element


def _gather_nd(formulas: Formulas, node: Any) -> Formula:
    data, indices = formulas[node.input[0]], formulas[node.input[1]]
    depth = indices.dims[-1].known
    if attributes(node).get("batch_dims", 0) or depth is None:
        raise Unproven
    rank = len(indices.dims) - 1

    def at(index: Index) -> Any:
        where = tuple(_place(indices.at((*index[:rank], Linear(k))), data.dims[k]) for k in range(depth))
        return data.at((*where, *index[rank:]))

    return Formula((*indices.dims[:-1], *data.dims[depth:]), at)


def _slice(formulas: Formulas, node: Any) -> Formula:
    source = formulas[node.input[0]]
    rank = len(source.dims)
    starts, ends = (formulas[name].vector() for name in node.input[1:3])
    axes = [axis.known or 0 for axis in formulas[node.input[3]].vector()] if len(node.input) > 3 else list(range(len(starts)))
    if len(node.input) > 4 and any(step.known != 1 for step in formulas[node.input[4]].vector()):
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


def _transpose(formulas: Formulas, node: Any) -> Formula:
    source = formulas[node.input[0]]
    order = attributes(node).get("perm", list(range(len(source.dims)))[::-1])

    def at(index: Index) -> Any:
        places = dict(zip(order, index, strict=True))
        return source.at(tuple(places[axis] for axis in range(len(order))))

    return Formula(tuple(source.dims[axis] for axis in order), at)


def _trilu(formulas: Formulas, node: Any) -> Formula:
    source, upper = formulas[node.input[0]], attributes(node).get("upper", 1)
    shift = formulas[node.input[1]].scalar() if len(node.input) > 1 and node.input[1] else Linear()

    def at(index: Index) -> Any:
        beyond = index[-1] - index[-2] - shift
        kept = source.at(index)
        zero: Any = 0.0 if isinstance(kept, float) else Linear() if isinstance(kept, (Linear, Choice)) else False
        return lift(lambda element: choice(AtLeastZero(beyond if upper else -beyond), element, zero), kept)

    return Formula(source.dims, at)


RULES: dict[str, Callable[[Formulas, Any], Formula]] = {
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
    "Cast": _cast,
    "Identity": _elementwise(lambda element: element),
    "Add": _elementwise(_arithmetic(lambda a, b: a + b, lambda a, b: a + b)),
    "Sub": _elementwise(_arithmetic(lambda a, b: a - b, lambda a, b: a - b)),
    "Mul": _elementwise(_arithmetic(_product, lambda a, b: a * b)),
    "Max": _elementwise(_extreme(1)),
    "Min": _elementwise(_extreme(-1)),
    "LessOrEqual": _elementwise(_compared(lambda a, b: b - a)),
    "GreaterOrEqual": _elementwise(_compared(lambda a, b: a - b)),
    "Equal": _elementwise(_equal),
    "Less": _elementwise(_compared(lambda a, b: b - a - Linear(1))),
    "Greater": _elementwise(_compared(lambda a, b: a - b - Linear(1))),
    "And": _elementwise(both),
    "Or": _elementwise(lambda a, b: negated(both(negated(a), negated(b)))),
    "Not": _elementwise(negated),
    "Where": _elementwise(_where),
}
