"""Rules of operators that work element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tenonnx.convert.symbolic.elements import AtLeastZero, Facts, Linear, NonZero, Unproven, both, choice, lift, negated
from tenonnx.convert.symbolic.formula import BOOL, FLOATS, INTS, Formula, Opaque, Rule, Values, broadcast, unproven
from tenonnx.schema.graph import attributes


def _elementwise(operation: Callable[..., Any]) -> Rule:
    return lambda values, node: broadcast([values[name] for name in node.input], operation)


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


def _cast(values: Values, node: Any) -> Formula:
    source, target = values[node.input[0]], attributes(node)["to"]

    def convert(element: Any) -> Any:
        if target == BOOL:
            if isinstance(element, Opaque):
                return NonZero(element.name, element.index)
            if isinstance(element, Linear):
                return element.known != 0 if element.known is not None else unproven()
            return element != 0.0 if isinstance(element, float) else element
        if isinstance(element, float) or target not in (*FLOATS, *INTS):
            return element if target in FLOATS else unproven()
        if isinstance(element, Linear):
            return element if target in INTS else float(element.known) if element.known is not None else unproven()
        one: Any = 1.0 if target in FLOATS else Linear(1)
        condition = NonZero(element.name, element.index) if isinstance(element, Opaque) else element
        # An attention mask holds 0 and 1: as a number it is its own condition.
        return choice(condition, one, one * 0)

    return Formula(source.dims, lambda index: lift(convert, source.at(index)))


RULES: dict[str, Rule] = {
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
