"""The one resolver of aliases: which value shares whose storage, down to the graph input that owns it.

A value keeps its SSA meaning: after an update the old name still means the old content. An alias root is a READ_WRITE
graph input; the values that share its storage form a chain, each made from the one before.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tenonnx.errors import AliasError
from tenonnx.schema.flatten import FLOW
from tenonnx.schema.graph import Scope
from tenonnx.schema.messages import ValueAliasProto, ValueInfoProto


class Alias(NamedTuple):
    """Output ``output`` of node ``node`` must share the storage of that node's input ``source``.

    Of a Merge, ``output`` is what one of its branches made of the storage, and has an Alias for each branch.
    """

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
    """Alias roots and chains of one scope. ``aliases`` are the updates, ``joins`` the outputs of branches."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.aliases = declared(scope)
        self.joins: list[Alias] = []
        self.mutable_inputs = tuple(value.name for value in scope.body.input if is_mutable(value))
        self._of: dict[str, list[Alias]] = {}
        self._next: dict[str, list[Alias]] = {}
        self._roots: dict[str, str] = {}
        self._same: dict[str, str] = {}  # an earlier name of the same content
        for alias in self.aliases:
            if alias.output not in self._of:  # the checker reports a second alias of one output
                self._of[alias.output] = [alias]
        for position, node in enumerate(scope.nodes):
            if node.domain == FLOW and any(self.is_storage(name) for name in node.input[1:]):
                self._join(node.output[0], list(dict.fromkeys(node.input[1:])), position)
        for alias in self.aliases:
            if self._of[alias.output][0] is alias:
                self._next.setdefault(self._same.get(alias.source, alias.source), []).append(alias)

    def is_storage(self, name: str) -> bool:
        """Whether a value is a cache, or what updates made of one."""
        return name in self._of or name in self.mutable_inputs

    def _join(self, output: str, sources: list[str], node: int) -> None:
        self._of[output] = [Alias(output, name, node) for name in sources]
        self.joins += self._of[output]
        contents = {self._same.get(name, name) for name in sources}
        if len(contents) == 1:  # branches that both leave a cache as it is
            self._same[output] = contents.pop()

    def sources(self, name: str) -> tuple[str, ...]:
        """The values whose storage ``name`` takes over directly: one, or one of each branch of an If."""
        return tuple(alias.source for alias in self._of.get(name, ()))

    def source(self, name: str) -> str | None:
        """The value whose storage ``name`` takes over directly, or None when it owns distinct storage."""
        return next(iter(self.sources(name)), None)

    def ancestors(self, name: str) -> list[str]:
        """The values that ``name`` shares storage with, from its direct sources to its root."""
        found: dict[str, None] = {}
        pending = [name]
        while pending:
            for source in self.sources(pending.pop(0)):
                if source == name:
                    raise AliasError(
                        f"value {name!r} of {self.scope.path} is an alias of itself; an alias names an earlier value"
                    )
                if source not in found:
                    found[source] = None
                    pending.append(source)
        return list(found)

    def root(self, name: str) -> str:
        """The value at the end of the chain: ``name`` itself when it owns distinct storage."""
        if name not in self._roots:
            chain = [name]
            while (source := self.source(chain[-1])) is not None and source not in self._roots:
                if source in chain:
                    raise AliasError(
                        f"value {name!r} of {self.scope.path} is an alias of itself; an alias names an earlier value"
                    )
                chain.append(source)
            self._roots.update(dict.fromkeys(chain, chain[-1] if source is None else self._roots[source]))
        return self._roots[name]

    def forks(self, name: str) -> list[Alias]:
        """The updates made directly from ``name``; two that may run in the same run are a fork, which no storage can satisfy."""
        return self._next.get(self._same.get(name, name), [])

    def chain(self, root: str) -> tuple[str, ...]:
        """All names of one storage in the order of their updates, the root first."""
        made = sorted((*self.aliases, *self.joins), key=lambda alias: alias.node)
        return (root, *dict.fromkeys(alias.output for alias in made if self.root(alias.output) == root))
