"""The storage contract stated for graphs that update their caches in place already, or could."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tenonnx.alias import AliasMap
from tenonnx.alias.resolver import is_mutable
from tenonnx.check import Diagnostic
from tenonnx.check.alias import check_graph
from tenonnx.convert.editing import Editor, declare_alias, make_writable
from tenonnx.convert.report import Findings
from tenonnx.errors import AliasError
from tenonnx.schema.domains import DOMAIN
from tenonnx.schema.graph import Scope

MICROSOFT = "com.microsoft"
CAPACITY = "max_length"

# (output, input) ports of which the operator can write the output over the input.
IN_PLACE: dict[tuple[str, str], tuple[tuple[int, int], ...]] = {
    ("", "TensorScatter"): ((0, 0),),
    (DOMAIN, "CacheUpdate"): ((0, 0),),
    (DOMAIN, "PagedCacheUpdate"): ((0, 0),),
    (MICROSOFT, "GroupQueryAttention"): ((1, 3), (2, 4)),
}


class _Proposal(NamedTuple):
    """Output ``output`` of a node over its input ``source``, which lies in the graph input ``root``."""

    node: Any
    output: int
    source: int
    root: Any

    @property
    def name(self) -> str:
        return str(self.node.output[self.output])


def annotate(model: Any, findings: Findings) -> int:
    """Declare what the operators of ``IN_PLACE`` imply wherever the contract's rules admit it; the number of new aliases."""
    writable = {value.name for value in model.graph.input if is_mutable(value)}
    proposals = _proposals(model)
    for proposal in proposals:
        declare_alias(proposal.node, proposal.output, proposal.source)
        make_writable(proposal.root)
    while refused := _refused(model, proposals):
        for proposal, why in refused:
            findings.left(proposal.root.name, proposal.name, why)
            entries = proposal.node.output_alias
            entries.remove(next(entry for entry in entries if entry.output_index == proposal.output))
        proposals = [proposal for proposal in proposals if all(proposal is not other for other, _ in refused)]
    kept = {proposal.root.name for proposal in proposals} | writable
    for value in model.graph.input:
        if is_mutable(value) and value.name not in kept:
            value.ClearField("access")
    _declare_roots(model)
    outputs = {value.name for value in model.graph.output}
    for proposal in proposals:
        end = proposal.name if proposal.name in outputs else ""
        findings.converted(proposal.root.name, end, f"{proposal.node.op_type} writes in place")
    return len(proposals)


def by_hand(model: Any, pairs: Mapping[str, str]) -> None:
    """Declare that graph outputs share the storage of graph inputs, ``{output: input}``.

    ``AliasError`` for names that the graph does not have, or an output whose node does not read the input.
    """
    editor = Editor(model)
    for output, source in pairs.items():
        for name, known, what in ((output, editor.outputs, "output"), (source, editor.inputs, "input")):
            if name not in known:
                raise AliasError(f"alias {output}={source}: the graph has no {what} {name!r}; it has {', '.join(known)}")
        node = editor.maker(output)
        if node is None:
            raise AliasError(f"alias {output}={source}: no node makes {output!r}")
        chain = AliasMap(Scope(model.graph)).chain(source)
        ports = [slot for slot, name in enumerate(node.input) if name in chain]
        if not ports:
            raise AliasError(
                f"alias {output}={source}: node {node.name or node.op_type} makes {output!r} from {list(node.input)}, and "
                f"{source!r} is none of them; only a node that reads the storage can write it"
            )
        declare_alias(node, list(node.output).index(output), ports[0])
    _declare_roots(model)


def _proposals(model: Any) -> list[_Proposal]:
    constants = {tensor.name for tensor in model.graph.initializer}
    roots = {value.name: value for value in model.graph.input if value.name not in constants}
    aliases = AliasMap(Scope(model.graph))
    found = []
    for node in model.graph.node:
        for output, source in IN_PLACE.get((node.domain.removeprefix("ai.onnx"), node.op_type), ()):
            named = source < len(node.input) and output < len(node.output) and node.output[output]
            if not named or node.input[source] not in roots:
                continue
            roots[node.output[output]] = root = roots[node.input[source]]
            if aliases.source(node.output[output]) is None:
                found.append(_Proposal(node, output, source, root))
    return found


def _refused(model: Any, proposals: list[_Proposal]) -> list[tuple[_Proposal, str]]:
    """The proposals that break a rule of the contract, and how."""
    scope = Scope(model.graph)
    places = {name: scope.describe(port.node) for name, port in scope.producer.items()}
    errors = [found for found in check_graph(scope) if found.severity == "error" and found.rule != "aliased-outputs"]
    found = []
    for proposal in proposals:
        mine = [error for error in errors if _concerns(error, proposal, places[proposal.name])]
        if mine:
            found.append((proposal, str(mine[0].message)))
    return found


def _concerns(error: Diagnostic, proposal: _Proposal, where: str) -> bool:
    """A finding about readers stands at the reader, and names the updated value that stands in its way."""
    return repr(proposal.name) in error.message if error.rule == "alias-reader" else error.where == where


def _declare_roots(model: Any) -> None:
    """READ_WRITE for every root; alias_of and the root's type for every output and value that shares its storage."""
    aliases = AliasMap(Scope(model.graph))
    inputs = {value.name: value for value in model.graph.input}
    shared = [value for part in (model.graph.output, model.graph.value_info) for value in part if aliases.source(value.name)]
    pairs = [(value, inputs[root]) for value in shared if (root := aliases.root(value.name)) in inputs]
    for value, root in pairs:
        make_writable(root)
        # A past and a present of two lengths become one storage of one capacity.
        for mine, whole in zip(value.type.tensor_type.shape.dim, root.type.tensor_type.shape.dim, strict=False):
            if mine != whole and whole.dim_param and whole.dim_param != CAPACITY:
                whole.dim_param = CAPACITY
    outputs = {value.name for value in model.graph.output}
    for value, root in pairs:
        value.type.CopyFrom(root.type)
        if value.name in outputs:
            value.alias_of = root.name
