"""One flat graph of all that touches a cache: local functions and branches in the place of their nodes.

Whoever follows storage (aliases, shapes, plan) then sees one graph, in which each call site has names and shapes of its
own. The nodes of a branch are guarded by the condition; a Merge (condition, then, else) stands for each output of the If, and a
Pass ("", value) for what leaves a loop; ``rolled`` tells of loops that stand here once.
What has nothing to do with a cache stays as it is.
"""

from __future__ import annotations

from typing import Any

from tenonnx.errors import CheckError, UnsupportedError
from tenonnx.schema.domains import DOMAIN
from tenonnx.schema.graph import Claim, Frames, Guard, ModelIndex, Origin, Scope, attributes
from tenonnx.schema.inline import STANDARD, Place, Renamer, enter_function, same_opsets
from tenonnx.schema.loops import LOOPS, constant_number, number_of
from tenonnx.schema.messages import ModelProto, NodeProto, ValueAliasProto, ValueInfoProto

_CACHE_OPERATORS = ("CacheUpdate", "PagedCacheUpdate")
FLOW = "tenonnx.flow"  # domain of what stands here for control flow; no model may use it
_MOST_NODES = 100_000


def flattened(index: ModelIndex) -> ModelIndex:
    """The index given, or, where a function or a branch touches a cache, that of a working copy without such bodies.

    Raises ``CheckError`` for names, calls or bodies that do not fit together, ``UnsupportedError`` for a model that grows
    past every limit.
    """
    for scope in index.scopes():
        for position, node in enumerate(scope.nodes):
            if node.domain == FLOW:
                raise CheckError(f"{scope.describe(position)}: domain {FLOW!r} is not for models; use If, Loop or Scan")
    calls = any((node.domain, node.op_type, node.overload) in index.functions for node in index.main.nodes)
    if not calls and not index.main.children:  # functions that only types name, as decoders
        return index
    flat = Flat(index)
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
        or (node.domain == DOMAIN and node.op_type in _CACHE_OPERATORS)
        or (node.domain, node.op_type, node.overload) in functions
        for inner in scope.walk()
        for node in inner.nodes
    )


class Flat:
    """The flat graph in the making; ``caches`` are the values known to have a cache's storage, and whose."""

    def __init__(self, index: ModelIndex) -> None:
        self.index = index
        self.changed = False
        self.nodes: list[Any] = []
        self.frames: list[Frames] = []
        self.claims: list[Claim] = []
        self.formals: list[tuple[str, str]] = []
        self.carried: list[tuple[str, str, str]] = []
        self.constants: dict[str, str] = {}  # made by loops
        self.rolled: set[str] = set()  # conditions of loops that stand here once
        self.extra = ModelProto().graph  # what bodies bring along: value_info and initializers
        main = index.main
        self.caches = {value.name: value.name for value in main.body.input if value.access == ValueInfoProto.READ_WRITE}
        self.renamer = Renamer({*main.inputs, *main.initializers, *main.structs, *main.producer})
        self.versions = {opset.domain.removeprefix("ai.onnx"): opset.version for opset in index.model.opset_import}
        self._carrying = _carrying(index)

    def body(self, scope: Scope, place: Place) -> None:
        """Add the nodes of a body, each nested one that touches a cache in the place of its node."""
        for position, node in enumerate(scope.nodes):
            key = (node.domain, node.op_type, node.overload)
            children = scope.children.get(position, {})
            reads = [place.of(name) for name in (*node.input, *(name for child in children.values() for name in child.captured))]
            touched = any(name in self.caches for name in reads) or any(carries(c, self._carrying) for c in children.values())
            if key in self.index.functions and (touched or key in self._carrying):
                self._call(node, self.index.functions[key], place)
            elif touched and node.op_type == "If" and node.domain in STANDARD:
                self._if(node, scope.describe(position), children, place)
            elif node.op_type in LOOPS and node.domain in STANDARD and self._updates(node, children, place):
                self.changed = True
                LOOPS[node.op_type](self, node, scope.describe(position), children["body"], place)
            else:
                self.add(self.renamer.node(node, place), place.frames)

    def add(self, node: Any, frames: Frames) -> None:
        """Add a node that stays one."""
        if len(self.nodes) >= _MOST_NODES:
            raise UnsupportedError(f"the model has over {_MOST_NODES:,} nodes once functions stand in the place of their calls")
        self.nodes.append(node)
        self.frames.append(frames)
        self.caches.update(
            (claim.output, self.caches[claim.source]) for claim in _claims(node, "") if claim.source in self.caches
        )

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
        self.annotations(scope, place)
        call = type(node)(input=[outer.of(name) for name in node.input], output=outputs, output_alias=node.output_alias)
        self.claim(call, f"node {place.path} ({node.op_type})")

    def _if(self, node: Any, where: str, branches: dict[str, Scope], outer: Place) -> None:
        self.changed = True
        names = ("then_branch", "else_branch")
        if len(node.input) != 1 or set(branches) != set(names):
            raise CheckError(f"{where}: an If has one condition and the two branches {names}, found {list(branches)}")
        condition, path = outer.of(node.input[0]), outer.child(node)
        results: list[list[str]] = []
        for name, expected in zip(names, (True, False), strict=True):
            scope, place = branches[name], outer.inside(f"{path}.{name}", Guard(condition, expected))
            if scope.inputs or len(scope.outputs) != len(node.output):
                raise CheckError(
                    f"{where}: {name} has inputs {scope.inputs} and {len(scope.outputs)} outputs; expected no inputs and "
                    f"{len(node.output)} outputs"
                )
            self.bring_constants(scope, place)
            self.body(scope, place)
            self.annotations(scope, place, types=True)
            results.append([place.of(result) for result in scope.outputs])
        for name, then, other in zip(node.output, *results, strict=True):
            if name:
                self.merged(self.renamer.define(outer, name), (condition, then, other), outer.frames)
        declared = type(node)(input=[condition], output=[outer.of(name) for name in node.output], output_alias=node.output_alias)
        self.claim(declared, where)

    def merged(self, name: str, inputs: tuple[str, str, str], frames: Frames) -> str:
        """Add a Merge of (condition, then, else); the name of its output."""
        return self.flow("Merge", name, inputs, frames)

    def passed(self, name: str, source: str, frames: Frames) -> str:
        """Add another name of a value."""
        return self.flow("Pass", name, ("", source), frames)

    def flow(self, op_type: str, name: str, inputs: tuple[str, ...], frames: Frames) -> str:
        """Add what stands for control flow; the name of its output."""
        self.add(NodeProto(name=name, domain=FLOW, op_type=op_type, input=inputs, output=[name]), frames)
        roots = [self.caches[source] for source in inputs[1:] if source in self.caches]
        if roots:
            self.caches[name] = roots[0]
        return name

    def claim(self, node: Any, where: str) -> None:
        """Note the aliases that a node with a body declares."""
        self.claims += _claims(node, where)

    def _updates(self, node: Any, children: dict[str, Scope], place: Place) -> bool:
        """Whether a loop updates a cache or passes one from trip to trip; one that reads it stays onnxruntime's."""
        carried = (
            node.input
            if node.op_type == "Loop"
            else list(node.input)[: len(node.input) - attributes(node).get("num_scan_inputs", 0)]
        )
        return "body" in children and (
            carries(children["body"], self._carrying) or any(place.of(name) in self.caches for name in carried)
        )

    def number(self, name: str) -> int | None:
        """The value of an INT64 or BOOL constant of one element; None where it is not known."""
        tensor = self.index.main.initializers.get(name) or next((t for t in self.extra.initializer if t.name == name), None)
        if tensor is not None:
            return number_of(tensor)
        made = next((node for node in self.nodes if node.op_type == "Constant" and list(node.output) == [name]), None)
        return None if made is None else constant_number(made)

    def length(self, name: str, axis: int) -> int | None:
        """The declared size of a dimension of a value of the main graph."""
        info = self.index.main.value_info.get(name)
        tensor = self.index.main.initializers.get(name)
        dims = list(tensor.dims) if tensor is not None else []
        if info is not None and tensor is None:
            dims = [dim.dim_value if dim.HasField("dim_value") else None for dim in info.type.tensor_type.shape.dim]
        return dims[axis] if -len(dims) <= axis < len(dims) else None

    def bring_constants(self, scope: Scope, place: Place) -> None:
        """Bring a body's initializers into the graph."""
        if scope.body.sparse_initializer:
            raise UnsupportedError(f"{place.path}: sparse initializers in a body that touches a cache; make them dense")
        for part, target in (
            (scope.body.initializer, self.extra.initializer),
            (scope.structs.values(), self.extra.struct_initializer),
        ):
            for value in part:
                copy = target.add()
                copy.CopyFrom(value)
                copy.name = self.renamer.define(place, value.name)

    def annotations(self, scope: Scope, place: Place, types: bool = False) -> None:
        """Keep what a body says of its values. A function's ``types`` speak of symbols of its own, others at each call."""
        for name, info in scope.value_info.items():
            if info.access == ValueInfoProto.READ_WRITE:
                self.formals.append((f"value {name!r} of {place.path}", place.of(name) if name in scope.inputs else ""))
            if name in scope.producer and (types or info.alias_of):
                made = self.extra.value_info.add(name=place.of(name), alias_of=place.of(info.alias_of))
                if types:
                    made.type.CopyFrom(info.type)

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
        model.graph.value_info.extend(info for info in self.extra.value_info if info.name not in declared)
        model.graph.initializer.extend(self.extra.initializer)
        model.graph.struct_initializer.extend(self.extra.struct_initializer)
        return ModelIndex(model, Origin(self.frames, self.claims, self.formals, self.carried))


def _claims(node: Any, where: str) -> list[Claim]:
    """The well-formed aliases that a node declares, by the names of its values."""
    return [
        Claim(where, node.output[entry.output_index], node.input[entry.input_index])
        for entry in node.output_alias
        if entry.kind == ValueAliasProto.MUST_ALIAS
        and 0 <= entry.output_index < len(node.output)
        and 0 <= entry.input_index < len(node.input)
    ]
