"""Proofs that a mask over past and new positions says no more than causality and padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tenonnx.convert.symbolic.elements import All, AtLeastZero, Choice, Linear, NonZero, Unproven, choice, simplified
from tenonnx.convert.symbolic.formula import Formula
from tenonnx.convert.symbolic.graph import Formulas

_MASKED = -6e4  # scores at or under this never count: the least FLOAT16 is -65504


@dataclass(frozen=True)
class Causal:
    """Query i of n sees position j where j <= past + i, and where the input ``padding`` [batch, positions] is not 0."""

    padding: str = ""


def causal(formulas: Formulas, name: str, past: Linear) -> Causal | None:
    """What the mask ``name`` [.., n, past + n] is proved to be, for every batch, n, past and content of the inputs; or None."""
    try:
        return _causal(formulas, formulas[name], past)
    except (Unproven, IndexError):
        return None


def _causal(formulas: Formulas, mask: Formula, past: Linear) -> Causal | None:
    if not 2 <= len(mask.dims) <= 4 or mask.dims[-1] != mask.dims[-2] + past:
        return None
    index = tuple(
        Linear() if dim.known == 1 and place < len(mask.dims) - 1 else Linear.symbol(f"#{place}")
        for place, dim in enumerate(mask.dims)
    )
    facts = mask.facts(index)
    query, position = index[-2:]
    visible = simplified(_visible(mask.at(index)), facts)
    expected = simplified(AtLeastZero(past + query - position), facts)
    parts = set(visible.of) if isinstance(visible, All) else set() if visible is True else {visible}
    if expected is not True:
        if expected not in parts:
            return None
        parts.remove(expected)
    if not parts:
        return Causal()
    batch = index[0] if len(mask.dims) == 4 else Linear()
    return _padding(formulas, parts, (batch, position))


def _padding(formulas: Formulas, parts: set[Any], where: tuple[Linear, Linear]) -> Causal | None:
    part = parts.pop()
    if parts or not isinstance(part, NonZero) or part.index != where:
        return None
    one_row = where[0].known == 0 and formulas.dims(part.name)[0].known == 1
    return Causal(part.name) if where[0].terms or one_row else None


def _visible(element: Any) -> Any:
    """The condition under which a position counts: a BOOL mask as it is, scores of 0 against scores that never count."""
    if isinstance(element, Choice):
        return choice(element.condition, _visible(element.then), _visible(element.other))
    if isinstance(element, float):
        if element != 0 and element > _MASKED:
            raise Unproven
        return element == 0
    return element
