"""A read-only index of a graph: who makes a value, who reads it, and which scopes lie inside which node.

Nodes are named by their position in their own scope. A value that a nested scope reads from outside counts as read by
the node that holds the scope.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from tenonnx.errors import CheckError
from tenonnx.schema.domains import DOMAIN

_MAX_DEPTH = 100  # of graphs inside graphs; a file cannot hold more than 33, since protobuf bounds its own nesting


class Port(NamedTuple):
    """One input or output of a node: the node's position in its scope, and the slot it has there."""

    node: int
    slot: int


class Guard(NamedTuple):
    """A node runs only where the BOOL value ``condition`` is ``expected``."""

    condition: str
    expected: bool


Frames = tuple[Guard, ...]  # around a node that was put into the main graph, outermost first


def exclusive(a: Frames, b: Frames) -> bool:
    """Whether two nodes never run in the same run: they stand in different branches of one If."""
    return any(Guard(guard.condition, not guard.expected) in b for guard in a)


class Scope:
    """One graph or function body. ``inputs`` and ``outputs`` are names; ``captured`` are names read from outside.
    ``frames`` say under what conditions nodes run, by position; without them, always.

    Raises ``CheckError`` where names do not say which value is read: one defined twice, or read before it is defined.
    """

    def __init__(self, body: Any, path: str = "graph", parent: Scope | None = None, frames: Sequence[Frames] = ()) -> None:
        self.depth: int = 0 if parent is None else parent.depth + 1
        if self.depth > _MAX_DEPTH:
            raise CheckError(f"{path[:200]}...: graphs lie more than {_MAX_DEPTH} deep in each other; flatten the control flow")
        self.body = body
        self.path = path
        self.parent = parent
        self.frames = frames
        self.nodes: list[Any] = list(body.node)
        is_function = body.DESCRIPTOR.name == "FunctionProto"
        self.inputs: list[str] = list(body.input) if is_function else [value.name for value in body.input]
        self.outputs: list[str] = list(body.output) if is_function else [value.name for value in body.output]
        self.initializers: dict[str, Any] = {} if is_function else {tensor.name: tensor for tensor in body.initializer}
        self.structs: dict[str, Any] = {} if is_function else {value.name: value for value in body.struct_initializer}
        infos = (body.value_info,) if is_function else (body.value_info, body.output, body.input)
        self.value_info: dict[str, Any] = {info.name: info for part in infos for info in part}
        self.producer: dict[str, Port] = {}
        self.readers: dict[str, list[Port]] = {}
        self.children: dict[int, dict[str, Scope]] = {}
        self.captured: dict[str, None] = {}
        self._index()

    def _index(self) -> None:
        known = self._defined()
        for position, node in enumerate(self.nodes):
            for index, name in enumerate(node.input):
                if name:
                    self._read(name, Port(position, index), known)
            for attribute in node.attribute:
                self._nest(position, node, attribute, known)
            for index, name in enumerate(node.output):
                if not name:
                    continue
                if name in self.producer or name in known:
                    raise CheckError(f"{self.describe(position)}: output {name!r} is defined twice; give each value its own name")
                self.producer[name] = Port(position, index)
                known.add(name)
        for name in self.outputs:
            if name not in known:
                self._capture(name, f"output {name!r} of {self.path}")

    def _defined(self) -> set[str]:
        """The names defined before the first node; an initializer may be the default of an input of its name."""
        constants: list[str] = []
        if self.body.DESCRIPTOR.name != "FunctionProto":
            constants += (value.name for part in (self.body.initializer, self.body.struct_initializer) for value in part)
            constants += (sparse.values.name for sparse in self.body.sparse_initializer)
        for kind, names in (("input", self.inputs), ("initializer", constants)):
            repeated = [name for name, count in Counter(names).items() if count > 1 and name]
            if repeated:
                raise CheckError(f"{self.path}: {kind} {repeated[0]!r} is defined twice; give each value its own name")
        return {*self.inputs, *constants}

    def _read(self, name: str, port: Port, known: set[str]) -> None:
        if name not in known:
            self._capture(name, self.describe(port.node))
        self.readers.setdefault(name, []).append(port)

    def _capture(self, name: str, reader: str) -> None:
        if self.parent is None:
            raise CheckError(
                f"{reader}: reads {name!r}, which no earlier node, graph input or initializer of {self.path} defines; "
                "sort the nodes so that each value comes before its readers"
            )
        self.captured[name] = None

    def _nest(self, position: int, node: Any, attribute: Any, known: set[str]) -> None:
        graphs = [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
        for number, graph in enumerate(graphs):
            key = attribute.name if attribute.HasField("g") else f"{attribute.name}[{number}]"
            child = Scope(graph, f"{self.path}/{node.name or node.op_type}.{key}", self)
            self.children.setdefault(position, {})[key] = child
            for name in child.captured:
                self._read(name, Port(position, -1), known)

    def describe(self, position: int) -> str:
        """How messages name a node."""
        node = self.nodes[position]
        return f"node {node.name or '#' + str(position)} ({node.op_type}) of {self.path}"

    def frames_of(self, position: int) -> Frames:
        """The conditions under which a node runs, outermost first."""
        return self.frames[position] if self.frames else ()

    def walk(self) -> Iterator[Scope]:
        """This scope and all that lie inside it, outermost first."""
        yield self
        for scopes in self.children.values():
            for child in scopes.values():
                yield from child.walk()

    def sole_reader(self, name: str) -> Port | None:
        """The one reader of a value that is read once and is no output, else None."""
        readers = self.readers.get(name, [])
        return readers[0] if len(readers) == 1 and name not in self.outputs else None


class Claim(NamedTuple):
    """What a node said of a value before its body took its place: ``output`` shares the storage of ``source``."""

    where: str
    output: str
    source: str


@dataclass(frozen=True)
class Origin:
    """What a flat graph no longer says itself of the nodes and bodies that it was made from."""

    frames: Sequence[Frames] = ()
    claims: Sequence[Claim] = ()
    formals: Sequence[tuple[str, str]] = ()  # READ_WRITE inputs of bodies: where, and the value they are bound to
    carried: Sequence[tuple[str, str, str]] = ()  # by loops: where, the value before the first trip, and after the last


class ModelIndex:
    """The scopes of a model: its main graph, and each local function by (domain, name, overload)."""

    def __init__(self, model: Any, origin: Origin | None = None) -> None:
        self.model = model
        self.origin = origin or Origin()
        self.main = Scope(model.graph, frames=self.origin.frames)
        self.functions: dict[tuple[str, str, str], Scope] = {}
        for function in model.functions:
            key, where = (function.domain, function.name, function.overload), f"function {function.domain}.{function.name}"
            if key in self.functions:
                raise CheckError(f"{where}: overload {function.overload!r} is defined twice; remove one")
            self.functions[key] = Scope(function, where)

    def scopes(self) -> Iterator[Scope]:
        """Every scope, nested ones included."""
        yield from self.main.walk()
        for scope in self.functions.values():
            yield from scope.walk()


def attributes(node: Any) -> dict[str, Any]:
    """The attributes of a node by name, as Python values (tensors and graphs as messages).

    Raises ``CheckError`` for one that has no value, or a value of another type than the operator's.
    """
    from onnx import helper

    expected = _attribute_types(node.domain, node.op_type)
    found = {}
    for attribute in node.attribute:
        if attribute.name in found or (expected and attribute.name not in expected):
            why = "twice" if attribute.name in found else "which the operator does not have"
            raise CheckError(
                f"node {node.name or ', '.join(node.output)} ({node.op_type}): has attribute {attribute.name!r} {why}; remove it"
            )
        have = _type_name(attribute.type)
        want = expected.get(attribute.name, have)
        if have != want or have == "UNDEFINED" or attribute.ref_attr_name:
            held = f"refers to {attribute.ref_attr_name!r}" if attribute.ref_attr_name else f"is {have}"
            raise CheckError(
                f"node {node.name or ', '.join(node.output)} ({node.op_type}): attribute {attribute.name!r} {held}, "
                f"expected {'a value' if want == 'UNDEFINED' else want}; set it, or leave it out for the operator's default"
            )
        found[attribute.name] = helper.get_attribute_value(attribute)
    return found


def _type_name(number: int) -> str:
    from onnx import AttributeProto

    kinds = AttributeProto.AttributeType
    return kinds.Name(number) if number in kinds.values() else "UNDEFINED"


_OWN_ATTRIBUTES = {
    "CacheUpdate": {"axis": "INT", "batch_axis": "INT"},
    "PagedAttention": {
        "is_causal": "INT", "kv_stacked": "INT", "left_window": "INT", "scale": "FLOAT", "softcap": "FLOAT",
    },
}  # fmt: skip


@cache
def _attribute_types(domain: str, op_type: str) -> dict[str, str]:
    """Names of the types of an operator's attributes, of those that are known."""
    from onnx import defs

    if domain == DOMAIN:
        return _OWN_ATTRIBUTES.get(op_type, {})
    try:
        schema = defs.get_schema(op_type, "" if domain == "ai.onnx" else domain)
    except defs.SchemaError:
        return {}
    return {name: attribute.type.name for name, attribute in schema.attributes.items()}
