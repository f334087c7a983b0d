"""ShapesContext: the type of every value of a model, seen through its aliases.

Standard operators follow onnx's own inference; operators of this domain have their rules in ``operators``. What is learnt
for one name of an alias class holds for all of its names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tenonnx.alias import AliasMap
from tenonnx.errors import AliasError, ShapeError
from tenonnx.schema.flatten import FLOW, flattened
from tenonnx.schema.graph import ModelIndex
from tenonnx.schema.messages import as_model
from tenonnx.shapes.operators import check_merge, check_update, updates
from tenonnx.shapes.paged import check_paged
from tenonnx.shapes.skeleton import Skeleton
from tenonnx.shapes.symbols import Dim, Symbol, SymStruct, SymTensor, pages_of, symbol_of
from tenonnx.structs import decoded_type


class Inference:
    """What does not depend on input shapes, prepared once per model and asked for many."""

    def __init__(self, model: Any, index: ModelIndex | None = None) -> None:
        self.index = index or flattened(ModelIndex(as_model(model)))
        self.model = model = self.index.model
        self.aliases = AliasMap(self.index.main)
        self._decoded: dict[int, SymTensor] = {}
        self.skeleton = Skeleton(model, self.decoded)
        self.inputs: dict[str, Symbol | None] = {
            value.name: symbol_of(value.type) for value in model.graph.input if value.name not in self.index.main.initializers
        }

    def decoded(self, name: str) -> SymTensor:
        """The logical type of a structured initializer, from its declaration's decoder."""
        type_index = self.index.main.structs[name].type
        if type_index not in self._decoded:
            symbol = symbol_of(decoded_type(self.model, type_index))
            if not isinstance(symbol, SymTensor):
                raise ShapeError(f"struct initializer {name!r}: its decoder gives {symbol}; expected a tensor")
            self._decoded[type_index] = symbol
        return self._decoded[type_index]


class ShapesContext:
    """Types of a model's values, with symbols replaced by ``dims`` and inputs by ``shapes`` where given.

    ``context[name]`` is a SymTensor, SymStruct, SymSequence, SymMap, SymOptional or SymQuantizedTensor; ``KeyError`` for a
    name that the main graph does not have. Raises ``ShapeError`` when types do not fit, ``CapacityError`` when an update
    is known to pass its cache's capacity, ``AliasError`` when aliased names cannot be of one type.
    """

    def __init__(
        self,
        model: Any,
        dims: Mapping[str, int] | None = None,
        *,
        shapes: Mapping[str, Sequence[int]] | None = None,
        inference: Inference | None = None,
    ) -> None:
        self._inference = inference or Inference(model)
        self._scope = self._inference.index.main
        self._aliases = self._inference.aliases
        self._symbols: dict[str, Symbol | None] = {}
        self._dims = dims or {}
        self._set_inputs(self._dims, shapes or {})
        self._infer()
        known = {name: self._symbols[name] for name in self._aliases.mutable_inputs}
        self._merge_aliases()
        if any(self._symbols[name] != symbol for name, symbol in known.items()):
            self._infer()  # what an updated name told of its cache reaches the cache's other readers
            self._merge_aliases()
        for position, node in enumerate(self._scope.nodes):
            if node.domain == FLOW and node.op_type == "Merge":
                check_merge(self._scope, position, self.__getitem__)
        for position in updates(self._scope):
            check_update(self._scope, position, self.__getitem__)
        check_paged(self._scope, self.__getitem__)

    def __getitem__(self, name: str) -> Symbol:
        symbol = self._symbols.get(name)
        if symbol is None:
            if name in self._scope.producer or name in self._symbols:
                raise ShapeError(f"value {name!r} of the graph: its type could not be inferred; declare it in value_info")
            raise KeyError(name)
        return symbol

    def __contains__(self, name: str) -> bool:
        return self._symbols.get(name) is not None

    def alias_root(self, name: str) -> str:
        """The value at the root of the storage of ``name``: itself when it owns distinct storage."""
        return self._aliases.root(name)

    def alias_class(self, name: str) -> tuple[str, ...]:
        """Every name of the storage of ``name``, in the order of the updates, the root first."""
        return self._aliases.chain(self._aliases.root(name))

    def _set_inputs(self, dims: Mapping[str, int], shapes: Mapping[str, Sequence[int]]) -> None:
        for name, symbol in self._inference.inputs.items():
            if isinstance(symbol, SymTensor):
                given = tuple(shapes[name]) if name in shapes else symbol.dims
                if given is not None:
                    symbol = SymTensor(symbol.elem_type, tuple(_substituted(dim, dims, name) for dim in given))
            self._symbols[name] = symbol
        for tensor in self._scope.initializers.values():
            self._symbols[tensor.name] = SymTensor(tensor.data_type, tuple(tensor.dims))
        for value in self._scope.structs.values():
            self._symbols[value.name] = SymStruct(value.type)

    def _infer(self) -> None:
        known = {name: symbol for name, symbol in self._symbols.items() if isinstance(symbol, SymTensor)}
        graph = self._inference.skeleton.infer(known, self._dims)
        given = {*self._inference.inputs, *self._scope.initializers, *self._scope.structs}
        for part in (graph.input, graph.value_info, graph.output):
            for value in part:
                if value.name not in given:
                    self._symbols[value.name] = symbol_of(value.type)

    def _merge_aliases(self) -> None:
        """Merge element types and dimensions of each alias pair; what one name knows, the other learns."""
        pairs = sorted((*self._aliases.aliases, *self._aliases.joins), key=lambda alias: alias.node)
        for alias in (*pairs, *reversed(pairs)):
            pair = [self._symbols.get(alias.output), self._symbols.get(alias.source)]
            tensors = [symbol for symbol in pair if isinstance(symbol, SymTensor)]
            if len(tensors) == 2:
                where = self._scope.describe(alias.node)
                merged = _merged(
                    tensors[0], tensors[1], f"{where}: output {alias.output!r} must share the storage of {alias.source!r}"
                )
                self._symbols[alias.output] = self._symbols[alias.source] = merged
            elif len(tensors) == 0 and pages_of(pair[1]) is not None:
                self._symbols[alias.output] = pair[1]  # a container: stock inference saw a stand-in
            elif len(tensors) == 1:
                self._symbols[alias.output] = self._symbols[alias.source] = tensors[0]


def _substituted(dim: Dim, dims: Mapping[str, int], name: str) -> Dim:
    value = dims.get(dim, dim) if isinstance(dim, str) else dim
    if isinstance(value, int) and value < 0:
        raise ShapeError(f"input {name!r}: dimension {value} is negative")
    return value


def _merged(a: SymTensor, b: SymTensor, where: str) -> SymTensor:
    if a.elem_type and b.elem_type and a.elem_type != b.elem_type:
        raise AliasError(f"{where}, but their element types differ: {a} and {b}")
    if a.dims is None or b.dims is None:
        return SymTensor(a.elem_type or b.elem_type, b.dims if a.dims is None else a.dims)
    if len(a.dims) != len(b.dims):
        raise AliasError(f"{where}, but their ranks differ: {a} and {b}")
    dims: list[Dim] = []
    for x, y in zip(a.dims, b.dims, strict=True):
        if isinstance(x, int) and isinstance(y, int) and x != y:
            raise AliasError(f"{where}, but their dimensions differ: {a} and {b}")
        dims.append(x if isinstance(x, int) or y is None else y)
    return SymTensor(a.elem_type or b.elem_type, tuple(dims))
