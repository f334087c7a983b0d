"""Formulas for the values of a graph that masks and shapes are computed from."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from tenonnx.convert.editing import Editor
from tenonnx.convert.symbolic import elementwise, movement
from tenonnx.convert.symbolic.elements import Linear, NonZero, Unproven
from tenonnx.convert.symbolic.formula import BOOL, INTS, Formula, Opaque, Rule, constant
from tenonnx.shapes.symbols import Dim, SymTensor

RULES: dict[str, Rule] = {**elementwise.RULES, **movement.RULES}


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
            return constant(array)
        rule = RULES.get(node.op_type)
        if rule is None or node.domain not in ("", "ai.onnx"):
            raise Unproven
        return rule(self, node)

    def _input(self, name: str) -> Formula:
        elem_type = self._editor.inputs[name].type.tensor_type.elem_type
        if elem_type not in (BOOL, *INTS):
            raise Unproven
        flag = elem_type == BOOL
        return Formula(self.dims(name), lambda index: NonZero(name, index) if flag else Opaque(name, index))
