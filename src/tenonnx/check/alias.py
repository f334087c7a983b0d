"""The rules of the mutable-cache contract over a model's scopes. Each yields all that it finds; none stops another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

from tenonnx.alias import AliasMap
from tenonnx.alias.resolver import is_mutable
from tenonnx.check.diagnostics import Diagnostic
from tenonnx.errors import AliasError
from tenonnx.schema.domains import DOMAIN
from tenonnx.schema.flatten import FLOW
from tenonnx.schema.graph import Scope, exclusive
from tenonnx.schema.messages import ValueAliasProto

_CACHE_OPERATORS = ("CacheUpdate", "PagedCacheUpdate")

Rule = Callable[[Scope, AliasMap], Iterator[Diagnostic]]


def _error(rule: str, where: str, message: str) -> Diagnostic:
    return Diagnostic("error", "invalid", rule, where, message)


def _entries(scope: Scope) -> Iterator[tuple[int, Any, Any]]:
    for position, node in enumerate(scope.nodes):
        for entry in node.output_alias:
            yield position, node, entry


def alias_ports(scope: Scope, aliases: AliasMap) -> Iterator[Diagnostic]:
    """An output_alias names an output and an input that the node has."""
    for position, node, entry in _entries(scope):
        for port, names, what in ((entry.output_index, node.output, "output"), (entry.input_index, node.input, "input")):
            if not 0 <= port < len(names) or not names[port]:
                yield _error(
                    "alias-ports",
                    scope.describe(position),
                    f"output_alias names {what} {port}; the node has {what}s {list(names)}: name one of them",
                )


def alias_kind(scope: Scope, aliases: AliasMap) -> Iterator[Diagnostic]:
    """The kind of an output_alias is set."""
    for position, _, entry in _entries(scope):
        if entry.kind != ValueAliasProto.MUST_ALIAS:
            yield _error("alias-kind", scope.describe(position), "output_alias has kind UNDEFINED; set MUST_ALIAS")


def one_alias_per_output(scope: Scope, aliases: AliasMap) -> Iterator[Diagnostic]:
    """An output shares the storage of one input."""
    seen: set[tuple[int, int]] = set()
    for position, node, entry in _entries(scope):
        key = (position, entry.output_index)
        if key in seen:
            yield _error(
                "one-alias-per-output",
                scope.describe(position),
                f"output {entry.output_index} of {list(node.output)} is aliased twice; keep one entry",
            )
        seen.add(key)


def alias_of_agrees(scope: Scope, aliases: AliasMap) -> Iterator[Diagnostic]:
    """alias_of names the direct input of the producing node's output_alias, or an ancestor of it."""
    for name, info in scope.value_info.items():
        if not info.alias_of:
            continue
        where = f"{scope.path}: value {name!r}"
        try:
            ancestors = aliases.ancestors(name)
        except AliasError:
            continue  # alias_cycle reports it
        if not ancestors:
            yield _error(
                "alias-of-backed",
                where,
                f"alias_of names {info.alias_of!r}, but no output_alias of the node that makes {name!r} backs it; add one",
            )
        elif info.alias_of not in ancestors:
            yield _error(
                "alias-of-agrees",
                where,
                f"alias_of names {info.alias_of!r}, the node's output_alias {ancestors[0]!r}; expected one of {ancestors}",
            )


def alias_cycle(scope: Scope, aliases: AliasMap) -> Iterator[Diagnostic]:
    """No value is an alias of itself."""
    for alias in aliases.aliases:
        try:
            aliases.ancestors(alias.output)
        except AliasError as error:
            yield _error("alias-cycle", scope.describe(alias.node), str(error))


def read_write_inputs(scope: Scope, aliases: AliasMap) -> Iterator[Diagnostic]:
    """READ_WRITE stands on graph inputs without an initializer, and nowhere else."""
    for name, info in scope.value_info.items():
        if not is_mutable(info):
            continue
        if name not in scope.inputs:
            yield _error(
                "read-write-inputs",
                f"{scope.path}: value {name!r}",
                "is READ_WRITE but no input; only storage that the caller owns can be written: declare the root READ_WRITE",
            )
        elif name in scope.initializers or name in scope.structs:
            yield _error(
                "read-write-inputs",
                f"{scope.path}: input {name!r}",
                "is READ_WRITE and has an initializer, which is never written; remove the initializer",
            )


def alias_root(scope: Scope, aliases: AliasMap) -> Iterator[Diagnostic]:
    """The root of an alias is a READ_WRITE input."""
    for alias in aliases.aliases:
        if aliases.source(alias.source) is not None:
            continue  # reported once, at the root
        if alias.source not in aliases.mutable_inputs:
            is_initializer = alias.source in scope.initializers or alias.source in scope.structs
            found = (
                "an initializer"
                if is_initializer
                else "a READ_ONLY input"
                if alias.source in scope.inputs
                else "an intermediate value"
            )
            yield _error(
                "alias-root",
                scope.describe(alias.node),
                f"output {alias.output!r} must share the storage of {alias.source!r}, which is {found}; "
                "expected a graph input with access READ_WRITE",
            )


def alias_fork(scope: Scope, aliases: AliasMap) -> Iterator[Diagnostic]:
    """Updates of one storage form a chain: no two are made from the same value."""
    for name in dict.fromkeys(alias.source for alias in aliases.aliases):
        forks = aliases.forks(name)
        together = [pair for pair in combinations(forks, 2) if not _exclusive(scope, pair[0].node, pair[1].node)]
        if together:
            outputs = [alias.output for alias in forks]
            yield _error(
                "alias-fork",
                scope.describe(together[0][1].node),
                f"{outputs} all take over the storage of {name!r}; let each update read the one before",
            )


def alias_reader(scope: Scope, aliases: AliasMap) -> Iterator[Diagnostic]:
    """A reader of an old name does not need a value made from the updated one."""
    for alias in aliases.aliases:
        for port in scope.readers.get(alias.source, ()):
            if scope.nodes[port.node].domain == FLOW or _exclusive(scope, port.node, alias.node):
                continue  # passes the storage on, or never meets the update
            if port.node > alias.node and _depends(scope, port.node, alias.node):
                yield _error(
                    "alias-reader",
                    scope.describe(port.node),
                    f"reads {alias.source!r}, the content before {scope.describe(alias.node)}, but depends on "
                    f"{alias.output!r}; read the updated value",
                )


def _depends(scope: Scope, node: int, maker: int) -> bool:
    """Whether a node needs, directly or not, an output of ``maker``. Nodes stand in topological order."""
    pending, seen = [node], {node}
    while pending:
        for name in _reads(scope, pending.pop()):
            port = scope.producer.get(name)
            if port is None or port.node < maker or port.node in seen:
                continue
            if port.node == maker:
                return True
            seen.add(port.node)
            pending.append(port.node)
    return False


def _reads(scope: Scope, position: int) -> list[str]:
    nested = [name for child in scope.children.get(position, {}).values() for name in child.captured]
    conditions = [guard.condition for guard in scope.frames_of(position)]
    return [*scope.nodes[position].input, *nested, *conditions]


def _exclusive(scope: Scope, a: int, b: int) -> bool:
    return exclusive(scope.frames_of(a), scope.frames_of(b))


def branch_roots(scope: Scope, aliases: AliasMap) -> Iterator[Diagnostic]:
    """The branches of an If give one output the storage of one cache."""
    for name, sources in _joined(aliases).items():
        roots = {aliases.root(source) if aliases.is_storage(source) else None for source in sources}
        if len(roots) > 1:
            found = [
                f"{source!r} (storage of {aliases.root(source)!r})" if aliases.is_storage(source) else f"{source!r} (no cache)"
                for source in sources
            ]
            yield _error(
                "branch-roots",
                scope.describe(scope.producer[name].node),
                f"output {name!r} is {found[0]} in one branch and {found[1]} in the other; return the same cache from both, as "
                "it was where a branch does not update it",
            )


def _joined(aliases: AliasMap) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for alias in aliases.joins:
        found.setdefault(alias.output, []).append(alias.source)
    return found


def aliased_outputs(scope: Scope, aliases: AliasMap) -> Iterator[Diagnostic]:
    """A graph output that shares an input's storage says so by alias_of."""
    for name in scope.outputs:
        info = scope.value_info.get(name)
        if info is not None and aliases.source(name) is not None and not info.alias_of:
            yield _error(
                "aliased-outputs",
                f"{scope.path}: output {name!r}",
                f"shares the storage of {aliases.source(name)!r} but has no alias_of; name it, so that callers see it",
            )


def stale_outputs(scope: Scope, aliases: AliasMap) -> Iterator[Diagnostic]:
    """A graph output that shares a cache's storage is the last name of its chain: after the run, that storage holds no other."""
    for name in scope.outputs:
        later = aliases.forks(name)
        if later and aliases.source(name) is not None:
            yield _error(
                "stale-outputs",
                f"{scope.path}: output {name!r}",
                f"is overwritten by {scope.describe(later[0].node)} in the same storage; return {later[0].output!r} instead",
            )


def cache_update_alias(scope: Scope, aliases: AliasMap) -> Iterator[Diagnostic]:
    """A cache update aliases its cache."""
    for position, node in enumerate(scope.nodes):
        if node.domain != DOMAIN or node.op_type not in _CACHE_OPERATORS or not node.output or not node.input:
            continue
        if aliases.source(node.output[0]) != node.input[0]:
            yield _error(
                "cache-update-alias",
                scope.describe(position),
                f"output {node.output[0]!r} must alias the cache {node.input[0]!r}; add output_alias 0 → 0 MUST_ALIAS",
            )


# What any body must say rightly, whatever it is bound to; and what holds of the storage of one whole graph.
LOCAL_RULES: tuple[Rule, ...] = (alias_ports, alias_kind, one_alias_per_output, cache_update_alias)
STORAGE_RULES: tuple[Rule, ...] = (
    alias_of_agrees,
    alias_cycle,
    read_write_inputs,
    alias_root,
    alias_fork,
    alias_reader,
    branch_roots,
    aliased_outputs,
    stale_outputs,
)


def check_graph(scope: Scope) -> Iterator[Diagnostic]:
    """All findings of these rules in one graph."""
    aliases = AliasMap(scope)
    for rule in (*LOCAL_RULES, *STORAGE_RULES):
        yield from rule(scope, aliases)
