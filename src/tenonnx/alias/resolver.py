"""The one resolver of aliases: which value shares whose storage, down to the graph input that owns it.

A value keeps its SSA meaning: after an update the old name still means the old content. An alias root is a READ_WRITE
graph input; the values that share its storage form a chain, each made from the one before.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tenonnx.errors import AliasError
from tenonnx.schema.graph import Scope
from tenonnx.schema.messages import ValueAliasProto, ValueInfoProto


class Alias(NamedTuple):
    """Output ``output`` of node ``node`` must share the storage of that node's input ``source``."""

    output: str
    source: str
    node: int


def declared(scope: Scope) -> list[Alias]:
    """The well-formed ``output_alias`` entries of a scope, in node order; malformed ones are the checker's to report."""
    found = []
    for position, node in enumerate(scope.nodes):
        for entry in node.output_alias:
            fits = 0 <= entry.output_index < len(node.output) and 0 <= entry.input_index < len(node.input)
            if not fits or entry.kind != ValueAliasProto.MUST_ALIAS:
                continue
            output, source = node.output[entry.output_index], node.input[entry.input_index]
            if output and source:
                found.append(Alias(output, source, position))
    return found


def is_mutable(value: Any) -> bool:
    """Whether an input is declared READ_WRITE; a function's inputs are bare names and declare nothing."""
    return not isinstance(value, str) and bool(value.access == ValueInfoProto.READ_WRITE)


class AliasMap:
    """Alias roots and chains of one scope."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.aliases = declared(scope)
        self.mutable_inputs = tuple(value.name for value in scope.body.input if is_mutable(value))
        self._of: dict[str, Alias] = {}
        self._next: dict[str, list[Alias]] = {}
        self._roots: dict[str, str] = {}
        for alias in self.aliases:
            if alias.output not in self._of:  # the checker reports a second alias of one output
                self._of[alias.output] = alias
                self._next.setdefault(alias.source, []).append(alias)

    def source(self, name: str) -> str | None:
        """The value whose storage ``name`` takes over directly, or None when it owns distinct storage."""
        alias = self._of.get(name)
        return alias.source if alias else None

    def ancestors(self, name: str) -> list[str]:
        """The values that ``name`` shares storage with, from its direct source to its root."""
        found: dict[str, None] = {}
        while (source := self.source(name)) is not None:
            if source in found or source == name:
                raise AliasError(f"value {name!r} of {self.scope.path} is an alias of itself; an alias names an earlier value")
            found[source] = None
            name = source
        return list(found)

    def root(self, name: str) -> str:
        """The value at the end of the chain: ``name`` itself when it owns distinct storage."""
        if name not in self._roots:
            chain = [name, *self.ancestors(name)]
            self._roots.update(dict.fromkeys(chain, chain[-1]))
        return self._roots[name]

    def forks(self, name: str) -> list[Alias]:
        """The aliases made directly from ``name``; more than one is a fork, which no storage can satisfy."""
        return self._next.get(name, [])

    def chain(self, root: str) -> tuple[str, ...]:
        """All names of one storage in the order of their updates, the root first."""
        names = [root]
        while len(following := self.forks(names[-1])) == 1:
            names.append(following[0].output)
        return tuple(names)
