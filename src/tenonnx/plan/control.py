"""Lowering of what stands in a flat graph for control flow: the outputs of branches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tenonnx.errors import ShapeError, UnsupportedError
from tenonnx.plan.builder import BOOL, Builder
from tenonnx.plan.draft import Value, identity
from tenonnx.plan.loops import FLOW_RULES as LOOP_RULES


def merge(builder: Builder, node: Any) -> None:
    """An output of an If: one value that each branch writes, or the cache that both branches pass on."""
    condition, then, other = (builder.value(name) for name in node.input)
    label = builder.label(node)
    if condition.elem_type != BOOL or condition.size != 1:
        raise ShapeError(f"{label}: condition {condition.name!r} has {condition.size} elements; expected BOOL[]")
    if (then.elem_type, then.dims) != (other.elem_type, other.dims):
        raise UnsupportedError(
            f"{label}: the branches give {list(then.dims)} and {list(other.dims)}; a branch that touches a cache must give what "
            "the other gives: pad them to one shape"
        )
    if builder.aliases.source(node.output[0]) is not None:
        builder.define(node, _joined(builder, node, condition, then, other))
    elif identity(then) == identity(other):
        builder.define(node, then.view(then.dims, then.strides, node.output[0]))
    else:
        result = builder.new(node.output[0], then.elem_type, then.dims)
        for value, expected in ((then, True), (other, False)):
            with builder.under((*builder.guards, (condition, expected))):
                builder.step("copy", label, [value], [result])
        builder.define(node, result)


def passed(builder: Builder, node: Any) -> None:
    """Another name of a value: what leaves a loop."""
    value = builder.value(node.input[1])
    builder.define(node, value.view(value.dims, value.strides, node.output[0]))


def _joined(builder: Builder, node: Any, condition: Value, then: Value, other: Value) -> Value:
    """The cache after the If. A branch that updates it less often says so by steps that keep it as it is."""
    if not then.owner.mutable or then.owner is not other.owner:
        raise UnsupportedError(f"{builder.label(node)}: the branches return {then.name!r} and {other.name!r}, of two storages")
    version = max(then.version, other.version)
    for value, expected in ((then, True), (other, False)):
        with builder.under((*builder.guards, (condition, expected))):
            while value.version < version:
                value = _kept(builder, node, value)
    last = then if then.version == version else other
    return last.view(last.dims, last.strides, node.output[0])


def _kept(builder: Builder, node: Any, value: Value) -> Value:
    made = Value(value.name, value.elem_type, value.dims, value.strides, value.owner, value.offset, value.version + 1, value)
    builder.step("cache_keep", builder.label(node), [value], [made], reuse=(0,), parallel=False)
    return made


FLOW_RULES: dict[str, Callable[[Builder, Any], None]] = {"Merge": merge, "Pass": passed, **LOOP_RULES}
