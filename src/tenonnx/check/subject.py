"""A model under check: its structured types and values, and the graphs and functions that it consists of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from tenonnx.errors import CheckError
from tenonnx.schema.external import DataRoot
from tenonnx.structs.physical import Node, TypeLimit
from tenonnx.structs.reader import MAX_TYPES, Types


class Value(NamedTuple):
    """A StructProto of the model and its type, None where that is missing or invalid."""

    where: str
    message: Any
    node: Node | None


@dataclass
class Subject:
    """The model under check, with what several rules need of it.

    ``placed`` are the values under check, each with its place, and ``indices`` the declarations.
    """

    model: Any
    data_root: DataRoot | None
    placed: Sequence[tuple[str, Any]]
    indices: Sequence[int] = ()
    types: Types = field(init=False)
    values: list[Value] = field(init=False)
    readable: bool = field(init=False)

    def __post_init__(self) -> None:
        self.types = Types(self.model.struct_types)
        self.readable = len(self.model.struct_types) <= MAX_TYPES
        self.values = [Value(where, value, self._node(value, where)) for where, value in self.placed]

    def _node(self, value: Any, where: str) -> Node | None:
        try:
            return self.types.of_value(value, where)
        except (CheckError, TypeLimit):
            return None  # the rules on values and declarations say why

    @cached_property
    def nodes(self) -> list[tuple[int, Any, Node]]:
        """The declarations that are valid, with all that they refer to: index, message, node."""
        found = []
        for index in self.indices if self.readable else ():
            try:
                found.append((index, self.model.struct_types[index], self.types.node(index)))
            except (CheckError, TypeLimit):
                continue  # declarations_are_valid says why
        return found


def bodies(model: Any) -> Iterator[tuple[str, Any]]:
    """Every graph and function of the model, nested graphs by the names of the nodes on the way."""
    pending = [("graph", model.graph)]
    pending += [(f"functions[{index}]", function) for index, function in enumerate(model.functions)]
    while pending:
        where, body = pending.pop()
        yield where, body
        for node in body.node:
            for attribute in node.attribute:
                nested = [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
                pending += [(f"{where}.{node.name or node.op_type}.{attribute.name}", graph) for graph in nested]


def graphs(model: Any) -> Iterator[tuple[str, Any]]:
    """The bodies that hold values."""
    return ((where, body) for where, body in bodies(model) if hasattr(body, "struct_initializer"))


def graph_values(model: Any) -> list[tuple[str, Any]]:
    """Every structured initializer, with its place."""
    return [
        (f"{where}.struct_initializer[{index}]", value)
        for where, graph in graphs(model)
        for index, value in enumerate(graph.struct_initializer)
    ]


def packed_values(model: Any) -> list[tuple[str, Any]]:
    """The value of every pack that has one, with its place."""
    return [
        (f"compiled_tensors[{index}].value", compiled.value)
        for index, compiled in enumerate(model.compiled_tensors)
        if compiled.HasField("value")
    ]
