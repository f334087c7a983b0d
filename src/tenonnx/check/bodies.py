"""The rules of the mutable-cache contract across bodies: what a local function says of storage, and what its call site binds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tenonnx.alias import AliasMap
from tenonnx.check.alias import LOCAL_RULES, STORAGE_RULES
from tenonnx.check.diagnostics import Diagnostic
from tenonnx.errors import AliasError
from tenonnx.schema.flatten import carries
from tenonnx.schema.graph import ModelIndex

BodyRule = Callable[[ModelIndex, AliasMap], Iterator[Diagnostic]]


def body_alias(flat: ModelIndex, aliases: AliasMap) -> Iterator[Diagnostic]:
    """The output_alias of a node that has a body is what the body does."""
    for claim in flat.origin.claims:
        try:
            backed = claim.source in aliases.ancestors(claim.output)
        except AliasError:
            continue  # alias_cycle reports it
        if not backed:
            yield Diagnostic(
                "error",
                "invalid",
                "body-alias",
                claim.where,
                f"declares that output {claim.output!r} shares the storage of {claim.source!r}, but its body does not update "
                "that storage into this output; drop the output_alias, or update the input in the body",
            )


def formal_inputs(flat: ModelIndex, aliases: AliasMap) -> Iterator[Diagnostic]:
    """READ_WRITE stands on a body's formal input where each call binds it to a cache."""
    for where, name in flat.origin.formals:
        try:
            bound = name and aliases.root(name) in aliases.mutable_inputs
        except AliasError:
            continue
        if not bound:
            yield Diagnostic(
                "error",
                "invalid",
                "formal-inputs",
                where,
                f"is READ_WRITE but bound to {name!r}, which is no READ_WRITE graph input nor made from one; bind it to a cache"
                if name
                else "is READ_WRITE but no input of its body; only storage that the caller owns can be written",
            )


def loop_carried(flat: ModelIndex, aliases: AliasMap) -> Iterator[Diagnostic]:
    """What a loop makes of a cache that it carries has the cache's storage."""
    for where, first, last in flat.origin.carried:
        try:
            kept = not aliases.is_storage(first) or (aliases.is_storage(last) and aliases.root(first) == aliases.root(last))
        except AliasError:
            continue
        if not kept:
            yield Diagnostic(
                "error",
                "invalid",
                "loop-carried",
                where,
                f"carries the cache {first!r}, but its body gives {last!r}, which has not its storage; update the body's own "
                "input, and return what that gives",
            )


def nested_aliases(flat: ModelIndex, aliases: AliasMap) -> Iterator[Diagnostic]:
    """Updates of a cache stand where this version runs them: in the graph, and in functions that it calls."""
    for children in flat.main.children.values():
        for child in children.values():
            if carries(child, set()):
                yield Diagnostic(
                    "error", "limit", "nested-aliases", child.path, "updates a cache; this version runs no updates in such a body"
                )


BODY_RULES: tuple[BodyRule, ...] = (body_alias, formal_inputs, loop_carried, nested_aliases)


def check_aliases(index: ModelIndex, flat: ModelIndex) -> Iterator[Diagnostic]:
    """All findings about a model's aliases: in each body by itself, then in the flat graph of all that touches a cache."""
    for scope in index.scopes():
        aliases = AliasMap(scope)
        for rule in LOCAL_RULES:
            yield from rule(scope, aliases)
    aliases = AliasMap(flat.main)
    for rule in STORAGE_RULES:
        yield from rule(flat.main, aliases)
    for body_rule in BODY_RULES:
        yield from body_rule(flat, aliases)
