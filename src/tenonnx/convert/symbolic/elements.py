"""Elements of tensors as formulas over their indices: what a proof about a mask is made of.

An element is a ``Linear`` (an integer), a float, a condition (a bool), or a ``Choice`` between two elements. Symbols of a
Linear are dimensions, each at least 0, and indices, each from 0 up to a bound that ``Facts`` knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


class Unproven(Exception):
    """A value of the graph has no formula here; the graph stays as it is."""


class Linear:
    """Σ coefficient · symbol + constant."""

    __slots__ = ("constant", "terms")

    def __init__(self, constant: int = 0, terms: Mapping[str, int] | None = None) -> None:
        self.constant = constant
        self.terms = {symbol: factor for symbol, factor in (terms or {}).items() if factor}

    @classmethod
    def symbol(cls, name: str) -> Linear:
        return cls(0, {name: 1})

    def __add__(self, other: Linear) -> Linear:
        names = {**self.terms, **other.terms}
        terms = {name: self.terms.get(name, 0) + other.terms.get(name, 0) for name in names}
        return Linear(self.constant + other.constant, terms)

    def __mul__(self, factor: int) -> Linear:
        return Linear(self.constant * factor, {name: value * factor for name, value in self.terms.items()})

    def __neg__(self) -> Linear:
        return self * -1

    def __sub__(self, other: Linear) -> Linear:
        return self + -other

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Linear) and self.constant == other.constant and self.terms == other.terms

    def __hash__(self) -> int:
        return hash((self.constant, frozenset(self.terms.items())))

    @property
    def known(self) -> int | None:
        """The number, when no symbol is left."""
        return None if self.terms else self.constant

    def replaced(self, values: Mapping[str, Linear]) -> Linear:
        """With symbols replaced."""
        result = Linear(self.constant)
        for name, factor in self.terms.items():
            result += values.get(name, Linear.symbol(name)) * factor
        return result


@dataclass(frozen=True)
class AtLeastZero:
    """``value >= 0``."""

    value: Linear


@dataclass(frozen=True)
class NonZero:
    """An element of a graph input is not 0."""

    name: str
    index: tuple[Linear, ...]


@dataclass(frozen=True)
class Not:
    """Negation of what has no simpler one."""

    of: Any


@dataclass(frozen=True)
class All:
    """Conjunction."""

    of: frozenset[Any]


@dataclass(frozen=True)
class Choice:
    """``then`` where the condition holds, else ``other``."""

    condition: Any
    then: Any
    other: Any


class Facts:
    """What is known of symbols: indices have upper bounds, everything is at least 0."""

    def __init__(self, bounds: Mapping[str, Linear] | None = None) -> None:
        self.bounds = dict(bounds or {})

    def holds(self, value: Linear) -> bool | None:
        """Whether ``value >= 0`` always, never, or (None) now and then as far as is known."""
        if self._least(value) >= 0:
            return True
        return False if self._least(-value - Linear(1)) >= 0 else None

    def _least(self, value: Linear) -> int:
        """A lower bound, -1 where there is none."""
        for name, bound in self.bounds.items():
            value = value.replaced({name: bound if value.terms.get(name, 0) < 0 else Linear()})
        return -1 if any(factor < 0 for factor in value.terms.values()) else value.constant


def negated(condition: Any) -> Any:
    """The opposite of a condition."""
    if isinstance(condition, bool):
        return not condition
    if isinstance(condition, AtLeastZero):
        return AtLeastZero(-condition.value - Linear(1))
    return condition.of if isinstance(condition, Not) else Not(condition)


def both(a: Any, b: Any) -> Any:
    """Conjunction of two conditions."""
    if a is False or b is False:
        return False
    parts = {part for one in (a, b) for part in (one.of if isinstance(one, All) else () if one is True else (one,))}
    return True if not parts else parts.pop() if len(parts) == 1 else All(frozenset(parts))


def choice(condition: Any, then: Any, other: Any) -> Any:
    """One of two elements; conditions are joined rather than chosen between."""
    if condition is True or then == other:
        return then
    if condition is False:
        return other
    if isinstance(then, _CONDITIONS) and isinstance(other, _CONDITIONS):
        if other is False:
            return both(condition, then)
        if then is False:
            return both(negated(condition), other)
        return negated(both(negated(both(condition, then)), negated(both(negated(condition), other))))
    return Choice(condition, then, other)


def lift(operation: Callable[..., Any], *elements: Any) -> Any:
    """Apply an operation through the choices among its operands."""
    for place, element in enumerate(elements):
        if isinstance(element, Choice):
            before, after = elements[:place], elements[place + 1 :]
            then = lift(operation, *before, element.then, *after)
            return choice(element.condition, then, lift(operation, *before, element.other, *after))
    return operation(*elements)


def simplified(condition: Any, facts: Facts) -> Any:
    """A condition without the parts that always hold."""
    if isinstance(condition, AtLeastZero):
        known = facts.holds(condition.value)
        return condition if known is None else known
    if isinstance(condition, All):
        result: Any = True
        for part in condition.of:
            result = both(result, simplified(part, facts))
        return result
    if isinstance(condition, Not):
        return negated(simplified(condition.of, facts))
    return condition


_CONDITIONS = (bool, AtLeastZero, NonZero, Not, All)
