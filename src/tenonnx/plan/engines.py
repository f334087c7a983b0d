"""Which nodes are left to onnxruntime although a native kernel could run them."""

from __future__ import annotations

from typing import Any

from tenonnx.alias import AliasMap
from tenonnx.errors import UnsupportedError
from tenonnx.plan import elementwise, movement
from tenonnx.plan.builder import BOOL, FLOAT, INT32, INT64
from tenonnx.plan.inplace import OPERATORS
from tenonnx.schema.domains import DOMAIN
from tenonnx.schema.flatten import FLOW
from tenonnx.schema.graph import Scope
from tenonnx.shapes import ShapesContext, SymTensor

# A native product alone between regions gains less than its two boundaries cost. Gather stays: its indices are checked
# before any cache is written.
_MOVED = {*elementwise.RULES, *movement.RULES, "MatMul", "Gemm"} - {"Gather", "Shape", "Size", "Constant"}
_EVERYWHERE = (FLOAT, INT32, INT64, BOOL)  # element types for which onnxruntime has all of these operators


def between(scope: Scope, context: ShapesContext, foreign: set[int]) -> set[int]:
    """Positions of the nodes that read and are read by nothing but nodes of onnxruntime, or each other.

    What reads constants alone is none of them: it is computed once for all runs.

    Every one of them that ran natively would cut a region in two.
    """
    chosen = {
        position
        for position, node in enumerate(scope.nodes)
        if node.op_type in _MOVED and node.domain in ("", "ai.onnx") and position not in foreign and _plain(scope, context, node)
    }
    pending = list(chosen)
    while pending:
        position = pending.pop()
        if position in chosen:
            makers, readers = _neighbours(scope, scope.nodes[position])
            if not makers or not readers or not all(near in foreign or near in chosen for near in makers | readers):
                chosen.remove(position)
                pending += makers | readers
    return chosen


def _plain(scope: Scope, context: ShapesContext, node: Any) -> bool:
    """Whether a node updates nothing, and onnxruntime has it for its types."""
    types = [context[name] for name in (*node.input, *node.output) if name]
    return not node.output_alias and all(isinstance(kind, SymTensor) and kind.elem_type in _EVERYWHERE for kind in types)


def _neighbours(scope: Scope, node: Any) -> tuple[set[int], set[int]]:
    """Positions of the nodes that make what a node reads, and of those that read what it makes.

    Initializers and Constants stand nowhere; the graph's own inputs and outputs stand at -1.
    """
    makers = set()
    for name in node.input:
        if name and name not in scope.initializers:
            port = scope.producer.get(name)
            makers.add(-1 if port is None else port.node)
    readers = {port.node for name in node.output for port in scope.readers.get(name, [])}
    if any(name in scope.outputs for name in node.output):
        readers.add(-1)
    return {near for near in makers if near < 0 or scope.nodes[near].op_type != "Constant"}, readers


def whole(scope: Scope, aliases: AliasMap) -> set[int]:
    """Positions of all nodes that onnxruntime can run: all but this domain's, and updates that it would not make in place.

    ``UnsupportedError`` for an alias that nobody can hold then.
    """
    native = {position for position, node in enumerate(scope.nodes) if node.domain in (DOMAIN, FLOW)}
    for alias in aliases.aliases:
        node = scope.nodes[alias.node]
        standard = node.domain.removeprefix("ai.onnx")
        if any(node.output[output] == alias.output and node.input[source] == alias.source
               for output, source in OPERATORS.get((standard, node.op_type), {}).items()):  # fmt: skip
            continue
        if standard == "" and node.op_type == "TensorScatter":
            native.add(alias.node)
        elif node.domain != DOMAIN:
            raise UnsupportedError(
                f"{scope.describe(alias.node)}: output {alias.output!r} must alias {alias.source!r}, and onnxruntime is not "
                'known to write it in place; use engine="auto", or update the cache with CacheUpdate'
            )
    return set(range(len(scope.nodes))) - native
