"""Declared types to physical ones: references are followed with a stack, and each declaration is read once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tenonnx import dtypes
from tenonnx.errors import CheckError, PayloadError
from tenonnx.schema.external import DataRoot
from tenonnx.schema.payload import tensor_array
from tenonnx.structs import rules
from tenonnx.structs.physical import (
    Array,
    BitPacking,
    Component,
    Constant,
    Field,
    Node,
    SizeOverflow,
    Structure,
    Tensor,
    TypeLimit,
)
from tenonnx.structs.rules import Finding
from tenonnx.structs.walk import Part, walk

MAX_TYPES = 4_096  # declarations of one model
INLINE = -1  # StructProto.type where the type stands in the value itself


class _Fault(NamedTuple):
    """Why a declaration has no node: its own findings, or the one of a declaration that it refers to."""

    findings: tuple[Finding, ...]
    own: bool


class _Open(NamedTuple):
    """A declaration whose references are being read."""

    parts: list[Part]
    problems: list[Finding]
    references: Iterator[Part]


class Types:
    """The ``struct_types`` of a model, with what has been read of them so far. Not to be kept while they change."""

    def __init__(self, declarations: Sequence[Any]) -> None:
        self.declarations = declarations
        self.referenced: set[int] = set()  # by what has been read so far
        self._settled: dict[int, Node | _Fault] = {}

    def node(self, index: int, where: str = "value") -> Node:
        """The declaration ``struct_types[index]``; raises ``CheckError`` when it is invalid, ``TypeLimit`` when too large."""
        count = len(self.declarations)
        if not 0 <= index < count:
            raise CheckError(f"{where}: type index {index} is not in struct_types, which has {count} entries")
        if count > MAX_TYPES:
            raise TypeLimit(f"struct_types: {count} declarations, more than {MAX_TYPES}; remove those that nothing uses")
        return _node_or_raise(self._settle(index))

    def read(self, declaration: Any, where: str) -> Node:
        """A concrete declaration that is not in the list, for example inline in a StructProto; raises as ``node``."""
        opened = self._opened(declaration, where)
        for part in opened.references:
            self.node(part.message.type_index, f"{part.where}.type_index")
        return _node_or_raise(self._built(opened))

    def of_value(self, value: Any, where: str) -> Node:
        """The type of a StructProto, which has exactly one of an index and an inline type; raises as ``node``."""
        for finding in rules.value_findings(value, where):
            raise finding.error()
        if value.type == INLINE:
            return self.read(value.struct_type, f"{where}: struct_type")
        return self.node(value.type, where)

    def findings(self, index: int) -> tuple[Finding, ...]:
        """What is wrong with ``struct_types[index]`` itself; a fault of a declaration that it refers to is listed there."""
        state = self._settle(index)
        return state.findings if isinstance(state, _Fault) and state.own else ()

    def inline_findings(self, declaration: Any, where: str) -> tuple[Finding, ...]:
        """What is wrong with a declaration outside the list, apart from faults of those that it refers to."""
        opened = self._opened(declaration, where)
        for part in opened.references:
            if self._exists(part, opened.problems):
                self._settle(part.message.type_index)
        state = self._built(opened)
        return state.findings if isinstance(state, _Fault) and state.own else ()

    def _opened(self, declaration: Any, where: str) -> _Open:
        try:
            parts = walk(declaration, where)
        except TypeLimit as error:
            return _Open([], [rules.of_limit(where, error)], iter(()))
        references = iter([part for part in parts if part.kind == "type_index" and part.level])
        return _Open(parts, list(rules.part_findings(parts)), references)

    def _exists(self, part: Part, problems: list[Finding]) -> bool:
        index, count = part.message.type_index, len(self.declarations)
        if 0 <= index < count:
            self.referenced.add(index)
            return True
        message = f"type index {index} is not in struct_types, which has {count} entries"
        problems.append(Finding("reference-exists", "invalid", f"{part.where}.type_index", message))
        return False

    def _settle(self, wanted: int) -> Node | _Fault:
        """Read a declaration and all that it refers to, depth first; what is on the stack is open."""
        opened: dict[int, _Open] = {}
        stack = [wanted] if wanted not in self._settled else []
        while stack:
            current = stack[-1]
            if current not in opened:
                opened[current] = self._opened(self.declarations[current], f"struct_types[{current}]")
            problems = opened[current].problems
            for part in opened[current].references:
                target = part.message.type_index
                if not self._exists(part, problems) or target in self._settled:
                    continue
                if target not in opened:
                    stack.append(target)
                    break
                cycle = [*stack[stack.index(target) :], target]
                problems.append(rules.of_cycle(f"{part.where}.type_index", cycle))
            else:
                self._settled[current] = self._built(opened.pop(current))
                stack.pop()
        return self._settled[wanted]

    def _built(self, opened: _Open) -> Node | _Fault:
        if opened.problems:
            return _Fault(tuple(opened.problems), own=True)
        nodes: dict[int, Node] = {}
        for position in reversed(range(len(opened.parts))):
            part = opened.parts[position]
            if part.kind == "type_index":
                state = self._settled[part.message.type_index]
                if isinstance(state, _Fault):
                    return _Fault(state.findings[:1], own=False)
                nodes[position] = state
                continue
            try:
                nodes[position] = _node(part, [nodes[child] for child in part.children])
            except TypeLimit as error:
                return _Fault((rules.of_limit(part.where, error),), own=True)
            except SizeOverflow as error:
                return _Fault((Finding("size-fits-uint64", "invalid", part.where, str(error)),), own=True)
            except PayloadError as error:
                return _Fault((Finding("constant-is-whole", "invalid", part.where, str(error)),), own=True)
        return nodes[0]


def _node_or_raise(state: Node | _Fault) -> Node:
    if isinstance(state, _Fault):
        raise state.findings[0].error()
    return state


def _node(part: Part, children: list[Node]) -> Node:
    """The node of one part whose rules hold, from those of its children."""
    message = part.message
    if part.kind == "array":
        return Array(children[0], message.array.dimension)
    if part.kind == "bit_packing":
        components = tuple(Component(component.name, component.bit_width) for component in message.bit_packing.component)
        return BitPacking(components, message.bit_packing.dimension)
    if part.kind == "structure":
        remaining = iter(children)
        fields = tuple(
            Field(field.name, _constant(field.constant, field.name) if field.HasField("constant") else next(remaining))
            for field in message.structure.field
        )
        return Structure(fields, message.name)
    dims = tuple(dim.dim_value for dim in message.tensor_type.shape.dim)
    return Tensor(dtypes.BY_NUMBER[message.tensor_type.elem_type], dims)


def _constant(tensor: Any, name: str) -> Constant:
    return Constant(tensor_array(tensor, DataRoot(None), f"constant {name!r}"))


def types_of(struct_types: Types | Sequence[Any]) -> Types:
    """``struct_types`` as a ``Types``, which remembers what it has read."""
    return struct_types if isinstance(struct_types, Types) else Types(struct_types)


def physical(declaration: Any, struct_types: Types | Sequence[Any] = ()) -> Node:
    """The node of a StructTypeProto or of an index into ``struct_types``.

    Raises ``CheckError`` for an invalid type and ``TypeLimit`` for one larger than this version reads.
    """
    types = types_of(struct_types)
    return types.node(declaration) if isinstance(declaration, int) else types.read(declaration, "type")


def from_proto(declaration: Any, struct_types: Types | Sequence[Any] = ()) -> Node:
    """The node of a StructTypeProto, whose ``repr`` is the declaration as the builder writes it; raises as ``physical``."""
    return types_of(struct_types).read(declaration, "type")


def size_bits(declaration: Any, struct_types: Types | Sequence[Any] = ()) -> int:
    """The size of one value in bits, computed in uint64; raises as ``physical``."""
    return physical(declaration, struct_types).bits


def nbytes(declaration: Any, struct_types: Types | Sequence[Any] = ()) -> int:
    """The size of one value in bytes; raises as ``physical``, and ``CheckError`` for a size that is not whole bytes."""
    return physical(declaration, struct_types).nbytes
