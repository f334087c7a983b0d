"""One flat graph of all that touches a cache: local functions in the place of their calls.

Whoever follows storage (aliases, shapes, plan) then sees one graph, in which each call site has names and shapes of its
own. Functions that have nothing to do with a cache stay as they are.
"""

from __future__ import annotations

from typing import Any

from tenonnx.errors import UnsupportedError
from tenonnx.schema.graph import Claim, Frames, ModelIndex, Origin, Scope
from tenonnx.schema.inline import Place, Renamer, enter_function, same_opsets
from tenonnx.schema.messages import ModelProto, ValueAliasProto, ValueInfoProto

_CACHE_OPERATORS = ("CacheUpdate", "PagedCacheUpdate")
_MOST_NODES = 100_000


def flattened(model: Any) -> ModelIndex:
    """The index of the model, or, where some function touches a cache, of a working copy without such functions.

    Raises ``CheckError`` for names, calls or bodies that do not fit together, ``UnsupportedError`` for a model that grows
    past every limit.
    """
    index = ModelIndex(model)
    if not index.functions:
        return index
    flat = _Flat(index)
    flat.body(index.main, Place())
    return flat.finish() if flat.changed else index


def _carrying(index: ModelIndex) -> set[tuple[str, str, str]]:
    """The functions whose bodies, directly or through others, declare an alias or update a cache."""
    found: set[tuple[str, str, str]] = set()
    size = -1
    while len(found) > size:
        size = len(found)
        found.update(key for key, scope in index.functions.items() if key not in found and carries(scope, found))
    return found


def carries(scope: Scope, functions: set[tuple[str, str, str]]) -> bool:
    """Whether a body, or one nested in it, declares an alias or updates a cache; ``functions`` are those known to."""
    return any(
        node.output_alias
        or (node.domain == "tenonnx" and node.op_type in _CACHE_OPERATORS)
        or (node.domain, node.op_type, node.overload) in functions
        for inner in scope.walk()
        for node in inner.nodes
    )


class _Flat:
    """The flat graph in the making; ``caches`` are the names of values known to have a cache's storage."""

    def __init__(self, index: ModelIndex) -> None:
        self.index = index
        self.changed = False
        self.nodes: list[Any] = []
        self.frames: list[Frames] = []
        self.claims: list[Claim] = []
        self.formals: list[tuple[str, str]] = []
        self.infos: list[Any] = []  # value_info that bodies bring along
        main = index.main
        self.caches = {value.name for value in main.body.input if value.access == ValueInfoProto.READ_WRITE}
        self.renamer = Renamer({*main.inputs, *main.initializers, *main.structs, *main.producer})
        self.versions = {opset.domain.removeprefix("ai.onnx"): opset.version for opset in index.model.opset_import}
        self._carrying = _carrying(index)

    def body(self, scope: Scope, place: Place) -> None:
        """Add the nodes of a body, each nested one that touches a cache in the place of its node."""
        for node in scope.nodes:
            key = (node.domain, node.op_type, node.overload)
            if key in self.index.functions and (key in self._carrying or self._reads_cache(node, place)):
                self._call(node, self.index.functions[key], place)
            else:
                self.add(self.renamer.node(node, place), place.frames)

    def add(self, node: Any, frames: Frames) -> None:
        """Add a node that stays one."""
        if len(self.nodes) >= _MOST_NODES:
            raise UnsupportedError(f"the model has over {_MOST_NODES:,} nodes once functions stand in the place of their calls")
        self.nodes.append(node)
        self.frames.append(frames)
        self.caches.update(claim.output for claim in _claims(node, "") if claim.source in self.caches)

    def _reads_cache(self, node: Any, place: Place) -> bool:
        return any(place.of(name) in self.caches for name in node.input)

    def _call(self, node: Any, scope: Scope, outer: Place) -> None:
        self.changed = True
        key = (node.domain, node.op_type, node.overload)
        place = enter_function(node, key, scope, outer)
        same_opsets(scope.body, self.versions)
        outputs = [self.renamer.define(outer, name) for name in node.output]
        later = []  # outputs that no node of the body makes for them alone
        for formal, made in zip(scope.outputs, outputs, strict=False):
            if made and formal in scope.producer and formal not in place.results:
                place.results[formal] = made
            elif made:
                later.append((formal, made))
        self.body(scope, place)
        for formal, made in later:
            passed = type(node)(name=f"{place.path}/{formal}", op_type="Identity", input=[place.of(formal)], output=[made])
            self.add(passed, outer.frames)
        self._annotations(scope, place)
        call = type(node)(input=[outer.of(name) for name in node.input], output=outputs, output_alias=node.output_alias)
        self.claims += _claims(call, f"node {place.path} ({node.op_type})")

    def _annotations(self, scope: Scope, place: Place) -> None:
        """Keep what a function says of aliases; its types speak of symbols of its own, others at each call."""
        for name, info in scope.value_info.items():
            if info.access == ValueInfoProto.READ_WRITE:
                self.formals.append((f"value {name!r} of {place.path}", place.of(name) if name in scope.inputs else ""))
            if info.alias_of and name in scope.producer:
                self.infos.append(ValueInfoProto(name=place.of(name), alias_of=place.of(info.alias_of)))

    def finish(self) -> ModelIndex:
        """The working copy and its index."""
        model = ModelProto()
        model.CopyFrom(self.index.model)
        for part in (model.graph.node, model.functions, model.opset_import):
            del part[:]
        for domain, version in self.versions.items():
            model.opset_import.add(domain=domain, version=version)
        model.functions.extend(scope.body for key, scope in self.index.functions.items() if key not in self._carrying)
        model.graph.node.extend(self.nodes)
        declared = self.index.main.value_info
        model.graph.value_info.extend(info for info in self.infos if info.name not in declared)
        return ModelIndex(model, Origin(self.frames, self.claims, self.formals))


def _claims(node: Any, where: str) -> list[Claim]:
    """The well-formed aliases that a node declares, by the names of its values."""
    return [
        Claim(where, node.output[entry.output_index], node.input[entry.input_index])
        for entry in node.output_alias
        if entry.kind == ValueAliasProto.MUST_ALIAS
        and 0 <= entry.output_index < len(node.output)
        and 0 <= entry.input_index < len(node.input)
    ]
