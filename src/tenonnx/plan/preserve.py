"""What a step that writes a cache must leave readable: the old content that others still name, kept by copies of parts of it.

The cache itself under an old name is never copied: its reader runs before the update, or the model is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tenonnx.errors import UnsupportedError
from tenonnx.plan.draft import DraftStep, Value, identity

if TYPE_CHECKING:
    from tenonnx.plan.builder import Builder, Lazy


def check_alias(builder: Builder, node: Any, name: str, result: Value | Lazy) -> None:
    """Refuse an output that does not show the storage of the input it must alias, element for element."""
    source = builder.aliases.source(name)
    if source is None:
        return
    old = builder.value(source)
    if not isinstance(result, Value) or result.owner is not old.owner or identity(result)[2:] != identity(old)[2:]:
        raise UnsupportedError(
            f"{builder.label(node)}: output {name!r} must share the storage of {source!r}, element for element, which this "
            "operator cannot; drop the alias, or update the cache with CacheUpdate"
        )


def protect(
    builder: Builder, kernel: str | None, label: str, inputs: list[Value | None], result: Value, reuse: Sequence[int]
) -> None:
    """See that a step that writes a cache reads nothing of it that its own writing would have changed before."""
    # Values that are the whole cache fit at position 0 alone, where each byte is written onto itself. A step without a
    # kernel is a node that plan.inplace has proved to write where it reads.
    in_place = (0, 1) if kernel == "cache_update" else range(len(inputs)) if kernel is None else reuse
    for index, value in enumerate(inputs):
        if value is None or value.owner is not result.owner:
            continue
        if identity(value)[2:] == identity(result)[2:]:
            if index not in in_place:
                raise UnsupportedError(
                    f"{label}: output {result.name!r} must share the storage of {value.name!r}, which kernel {kernel} "
                    "still reads while it writes; use an elementwise operator or CacheUpdate, or drop the alias"
                )
        else:
            inputs[index] = copied(builder, value)


def detach(builder: Builder, stuck: list[DraftStep]) -> list[DraftStep]:
    """Let steps that wait for an update, and yet read a part of the old cache, read a copy of it; the copying steps."""
    aliases = builder.aliases
    caches = {*aliases.mutable_inputs, *(alias.output for alias in (*aliases.aliases, *aliases.joins))}
    copies: list[DraftStep] = []
    for step in stuck:
        for index, value in enumerate(step.inputs):
            if value is None or not value.owner.mutable or value.name in caches:
                continue
            if all(other is step or other.excludes(step) for other in value.owner.writers.get(value.version + 1, ())):
                continue
            with builder.under(step.guards):
                copy = copied(builder, value)
            (maker,) = copy.owner.writers[copy.version]
            if maker is not step:
                step.inputs[index] = copy
                copies.append(maker)
    return copies


def copied(builder: Builder, value: Value) -> Value:
    """The same dimensions over a copy of the elements; repeated ones are copied once."""
    dims = tuple(1 if stride == 0 else dim for dim, stride in zip(value.dims, value.strides, strict=True))
    return builder.copy(value.view(dims, value.strides, value.name)).broadcast(value.dims)
