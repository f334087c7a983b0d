"""A tensor as a formula over its indices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tenonnx.convert.symbolic.elements import Facts, Linear, Unproven, lift

Index = tuple[Linear, ...]
BOOL, FLOATS, INTS = 9, (1, 10, 11, 16), (2, 3, 4, 5, 6, 7, 12, 13)


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


class Values(Protocol):
    """Formulas by value name, as rules ask for them; both raise ``Unproven``."""

    def __getitem__(self, name: str) -> Formula: ...

    def dims(self, name: str) -> Index: ...


Rule = Callable[[Values, Any], Formula]


@dataclass(frozen=True)
class Opaque:
    """An integer element of a graph input, of which only whether it is 0 can be asked."""

    name: str
    index: Index


def constant(array: np.ndarray) -> Formula:
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


def broadcast(parts: list[Formula], operation: Callable[..., Any]) -> Formula:
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


def unproven() -> Any:
    raise Unproven
