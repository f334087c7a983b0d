"""The body of a local function or a branch, renamed to stand in another graph: its values get the path of the call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tenonnx.errors import CheckError, UnsupportedError
from tenonnx.schema.graph import Guard, Scope

FunctionKey = tuple[str, str, str]  # domain, name, overload

_MAX_CALLS = 100  # of functions inside functions
STANDARD = ("", "ai.onnx")


@dataclass
class Place:
    """Where a body is put: what its names stand for there, and when its nodes run."""

    path: str = ""
    names: dict[str, str] = field(default_factory=dict)
    results: dict[str, str] = field(default_factory=dict)  # what the makers of a function's outputs are to call them
    frames: tuple[Guard, ...] = ()
    attributes: Mapping[str, Any] | None = None  # those of the call, in a function's body
    calls: tuple[FunctionKey, ...] = ()

    def of(self, name: str) -> str:
        """What a name stands for; absent inputs stay absent."""
        return self.names.get(name, name)

    def child(self, node: Any) -> str:
        """The path of what a node of this body holds."""
        return f"{self.path}/{node.name or node.op_type}" if self.path else node.name or node.op_type

    def inside(self, path: str, guard: Guard | None = None) -> Place:
        """A place for a nested body, which sees all names of this one."""
        frames = self.frames if guard is None else (*self.frames, guard)
        return Place(path, dict(self.names), {}, frames, self.attributes, self.calls)


class Renamer:
    """Gives inner values names that the whole model does not have yet."""

    def __init__(self, taken: set[str]) -> None:
        self._taken = taken

    def define(self, place: Place, name: str) -> str:
        """A new name for a value made in the body at ``place``; in the main graph the name itself."""
        if not name or not place.path:
            return name
        made = place.results.get(name, "") or f"{place.path}/{name}"
        while made in self._taken and name not in place.results:
            made += "'"
        self._taken.add(made)
        place.names[name] = made
        return made

    def node(self, node: Any, place: Place) -> Any:
        """A copy of a node for ``place``: names renamed, attribute references bound, nested graphs alike."""
        copy = type(node)()
        copy.CopyFrom(node)
        if not place.path:
            return copy
        copy.name = f"{place.path}/{node.name or node.op_type}"
        copy.input[:] = [place.of(name) for name in node.input]
        del copy.attribute[:]
        copy.attribute.extend(bound(node, place))
        for attribute in copy.attribute:
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                self._graph(graph, place.inside(f"{copy.name}.{attribute.name}"))
        copy.output[:] = [self.define(place, name) for name in node.output]
        return copy

    def _graph(self, graph: Any, place: Place) -> None:
        """Rename in place a graph that stays nested; its own names hide those around it."""
        for part in (graph.input, graph.initializer):
            for value in part:
                value.name = self.define(place, value.name)
        for sparse in graph.sparse_initializer:
            sparse.values.name = self.define(place, sparse.values.name)
        nodes = [self.node(node, place) for node in graph.node]
        del graph.node[:]
        graph.node.extend(nodes)
        for part in (graph.value_info, graph.output):
            for value in part:
                value.name = place.of(value.name)


def bound(node: Any, place: Place) -> Iterator[Any]:
    """The attributes of a node in a function's body, with references replaced by what the call or the function gives."""
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            yield attribute
        elif place.attributes is not None and attribute.ref_attr_name in place.attributes:
            copy = type(attribute)()
            copy.CopyFrom(place.attributes[attribute.ref_attr_name])
            copy.name = attribute.name
            yield copy


def enter_function(node: Any, key: FunctionKey, scope: Scope, outer: Place) -> Place:
    """The place of a function's body called by ``node``, its formals standing for what the call gives.

    ``CheckError`` for a call that does not fit the function, or a function that calls itself.
    """
    where = f"node {node.name or node.op_type} of {outer.path or 'graph'}"
    if key in outer.calls or len(outer.calls) >= _MAX_CALLS:
        raise CheckError(f"{where}: function {key[0]}.{key[1]} calls itself, or calls lie over {_MAX_CALLS} deep; unroll it")
    function = scope.body
    if len(node.input) > len(scope.inputs) or len(node.output) > len(scope.outputs):
        raise CheckError(
            f"{where}: calls {key[0]}.{key[1]} with {len(node.input)} inputs and {len(node.output)} outputs; "
            f"it has {len(scope.inputs)} and {len(scope.outputs)}"
        )
    attributes = {attribute.name: attribute for attribute in function.attribute_proto}
    attributes.update((attribute.name, attribute) for attribute in bound(node, outer))
    given = [*(outer.of(name) for name in node.input), *[""] * (len(scope.inputs) - len(node.input))]
    return Place(
        outer.child(node), dict(zip(scope.inputs, given, strict=True)), {}, outer.frames, attributes, (*outer.calls, key)
    )


def same_opsets(function: Any, versions: dict[str, int]) -> None:
    """Note the domains that a function imports; ``UnsupportedError`` where it wants another version of one than the model."""
    for opset in function.opset_import:
        domain = "" if opset.domain in STANDARD else opset.domain
        if versions.setdefault(domain, opset.version) != opset.version:
            raise UnsupportedError(
                f"function {function.domain}.{function.name}: imports version {opset.version} of domain {domain!r}, the model "
                f"{versions[domain]}; a function that touches a cache is run as a part of the graph: convert it to one version"
            )
