"""Nodes that onnxruntime updates in place: proved from the graph, their lengths checked before the region runs.

onnxruntime writes a cache where it lies when past and present are one buffer, but would read or write past its end where a
length says so, and a copy in front of the node goes unseen by an address check. So the cache must be the graph's own
input (or the update before), and the lengths are checked as a CacheUpdate's position is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tenonnx.errors import UnsupportedError
from tenonnx.plan.builder import INT32, INT64, Builder
from tenonnx.plan.draft import DraftStep, Value, identity
from tenonnx.plan.types import CacheWrite
from tenonnx.schema.graph import attributes

# (domain, operator) -> output that may share the storage of which input
OPERATORS: dict[tuple[str, str], dict[int, int]] = {("com.microsoft", "GroupQueryAttention"): {1: 3, 2: 4}}
_SEQLENS, _TOTAL = 5, 6  # inputs of GroupQueryAttention: valid length - 1 of each row, and the longest valid length


def updated(builder: Builder, node: Any, label: str) -> tuple[dict[int, Value], list[DraftStep]]:
    """The aliased outputs of a node, by index, as the next versions of their caches, and the checks before it.

    Raises ``UnsupportedError`` where the node is not known to write in place, or not into the whole cache itself.
    """
    known = OPERATORS.get((node.domain, node.op_type), {})
    results: dict[int, Value] = {}
    for index, name in enumerate(node.output):
        source = builder.aliases.source(name) if name else None
        if source is None:
            continue
        if index not in known or node.input[known[index]] != source:
            raise UnsupportedError(
                f"{label}: output {name!r} must alias {source!r}, but this operator has no kernel that writes it in place; "
                "update the cache with CacheUpdate, or drop the alias"
            )
        old = builder.value(source)
        if list(node.input).count(source) != 1 or not old.owner.mutable or old.offset or not old.contiguous:
            raise UnsupportedError(f"{label}: {source!r} is not a cache's own storage, read once; bind the graph input itself")
        results[index] = Value(name, old.elem_type, old.dims, old.strides, old.owner, old.offset, old.version + 1, old)
    return results, _checks(builder, node, results, label) if results else []


def _checks(builder: Builder, node: Any, results: dict[int, Value], label: str) -> list[DraftStep]:
    """GroupQueryAttention: each valid length lies between the new rows and the capacity."""
    if attributes(node).get("sliding_window_cache", 0):
        raise UnsupportedError(f"{label}: a sliding window cache has no fixed rows; use a cache of full length")
    _, dims = builder.type_of(node.input[0])
    rows, capacity = dims[1], min(value.dims[2] for value in results.values())
    checks = []
    for port, extra in ((_SEQLENS, 1), (_TOTAL, 0)):
        length = builder.value(node.input[port])
        start = shifted(builder, length, extra - rows)
        checks.append(builder.check("check_position", start, (capacity - rows,), label))
    for value in results.values():
        root = builder.aliases.root(value.name)
        builder.writes.append(CacheWrite(label, root, "", rows, capacity, 2))
    return checks


def shifted(builder: Builder, length: Value, shift: int) -> Value:
    """INT64, ``length + shift``, say the first row that is written; made once for all layers."""
    return builder.once(("start", *identity(length), shift), lambda: _sum(builder, length, shift))


def _sum(builder: Builder, length: Value, shift: int) -> Value:
    if length.elem_type == INT32:
        wide = builder.new(f"{length.name}.int64", INT64, length.dims)
        builder.step("copy", f"Cast of {length.name}", [length], [wide])
        length = wide
    result = builder.new(f"{length.name}.start", INT64, length.dims)
    constant = builder.constant(f"{length.name}.shift", np.asarray(shift, np.int64)).broadcast(length.dims)
    builder.step("add", f"first row of {length.name}", [length, constant], [result])
    return result
