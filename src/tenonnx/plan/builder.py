"""Building a draft from a graph: names to values, and values that wait to see who reads them.

A lazy value costs nothing until a reader wants its bytes: weights in a packed layout, casts and activations that the
reading kernel does itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tenonnx import dtypes
from tenonnx.alias import AliasMap
from tenonnx.errors import ShapeError, UnsupportedError
from tenonnx.layouts import Layout
from tenonnx.layouts.pages import DESCRIPTOR
from tenonnx.plan import preserve
from tenonnx.plan.draft import DraftLoop, DraftStep, Guards, Owner, Value, identity, row_major
from tenonnx.plan.types import CacheWrite, PageWrite, Storage, WeightKey
from tenonnx.schema.graph import Scope
from tenonnx.shapes import ShapesContext, SymTensor
from tenonnx.shapes.symbols import pages_of

if TYPE_CHECKING:
    from tenonnx.plan.nbits import Blocks

PARALLEL_BYTES = 64 * 1024  # a step that touches less is quicker on one thread than a meeting of all

_ADDRESS_SPACE = 2**47  # bytes of a process
# Element types that kernels address: the fixed-width ones of whole bytes up to 8, but for complex and 8-bit floats.
ADDRESSED = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16})
FLOAT, FLOAT16, INT32, INT64, BOOL, BFLOAT16 = 1, 10, 6, 7, 9, 16
UINT8 = 2


@dataclass(frozen=True, slots=True)
class Weight:
    """An initializer that kernels may read packed, as rows and columns. ``layout`` None: no kernel does.

    It stands for its own value of ``shape``, or, where ``transposed``, for that with rows and columns exchanged.
    """

    name: str
    shape: tuple[int, ...]
    layout: Layout | None
    transposed: bool = False
    elem_type: int = FLOAT
    columns_first: bool = False  # a plain tensor that is stored as [columns, rows]
    apart: bool = False  # its codes are one initializer, its scales another

    def turned(self) -> Weight:
        return replace(self, transposed=not self.transposed)


@dataclass(frozen=True, slots=True)
class CastOf:
    """A cast that the reading kernel may do itself."""

    source: Value
    elem_type: int


@dataclass(frozen=True, slots=True)
class SwishOf:
    """An activation that a following product may do itself."""

    source: Value
    alpha: float


Lazy = Weight | CastOf | SwishOf


class Builder:
    """The state of one draft; lowering rules read nodes and add steps through it."""

    def __init__(
        self,
        scope: Scope,
        aliases: AliasMap,
        context: ShapesContext,
        weights: dict[str, Weight],
        tables: Mapping[str, int] | None = None,
        blocks: Mapping[str, Blocks] | None = None,
    ) -> None:
        self.blocks = blocks or {}  # of weights that are apart, by their codes
        self.scope = scope
        self.aliases = aliases
        self.context = context
        self.steps: list[DraftStep] = []
        self.writes: list[CacheWrite] = []
        self.page_writes: list[PageWrite] = []
        self.env: dict[str, Value | Lazy] = {}
        self.inputs: dict[str, Value] = {}
        self._tensors: dict[str, Value] = {}  # plain initializers as they are stored
        self.guards: Guards = ()  # under which the steps now being added run
        self.loops: list[DraftLoop] = []
        self._derived: dict[tuple[Guards, tuple[Any, ...]], Any] = {}
        self._homes: dict[str, Guards] = {}  # of lazy values: where they were defined
        for name in scope.inputs:
            if name not in scope.initializers:
                self._input(name, tables or {})
        for tensor in scope.initializers.values():
            self.env[tensor.name] = self._tensors[tensor.name] = _stored(tensor)
        self.env |= weights

    # ---- What is there before the first node

    def _input(self, name: str, tables: Mapping[str, int]) -> None:
        # Of a table, kernels see descriptors of the pages: as many as the run binds, or a few where nothing is bound yet.
        is_table = pages_of(self.context[name]) is not None
        elem_type, dims = (INT64, (tables.get(name, 16), DESCRIPTOR)) if is_table else self.type_of(name)
        mutable = name in self.aliases.mutable_inputs
        owner = Owner(name, Storage.INPUT, nbytes_of(elem_type, dims), mutable=mutable, pages=is_table)
        self.env[name] = self.inputs[name] = Value(name, elem_type, dims, row_major(dims), owner)

    def constant(self, name: str, array: np.ndarray, *, of_shape: bool = False) -> Value:
        """A value that the plan itself provides; ``of_shape`` where it follows from the shapes of the inputs."""
        array = np.asarray(array, order="C")  # ascontiguousarray would give a scalar an axis
        owner = Owner(name, Storage.INITIALIZER, array.nbytes, constant=array, of_shape=of_shape)
        return Value(name, dtypes.of_numpy(array.dtype, name).number, array.shape, row_major(array.shape), owner)

    # ---- Types and names

    def type_of(self, name: str) -> tuple[int, tuple[int, ...]]:
        """Element type and concrete dimensions; ``ShapeError`` naming what is not known."""
        symbol = self.context[name]
        if not isinstance(symbol, SymTensor):
            raise UnsupportedError(f"value {name!r}: {symbol} has no native storage in this version; expected a tensor")
        if symbol.shape is None:
            raise ShapeError(
                f"value {name!r}: its type {symbol} is not known before the run; give every dimension of the inputs a number, or "
                "make the value's shape follow from the shapes of the inputs"
            )
        return symbol.elem_type, symbol.shape

    def lazy(self, name: str) -> Value | Lazy:
        """What a name stands for, perhaps not yet in memory."""
        return self.env[name]

    def value(self, name: str) -> Value:
        """The bytes that a name stands for, made now if they were not."""
        found = self.env[name]
        if isinstance(found, Value):
            return found
        with self.under(self._homes.get(name, ())):
            if isinstance(found, Weight):  # and stays one: who reads it packed may come later
                return self.once(("weight", name), lambda: self._unpacked(name, found))
            made = self._materialize(name, found)
        self.env[name] = made
        return made

    @contextmanager
    def under(self, guards: Guards) -> Iterator[None]:
        """Steps added meanwhile run where ``guards`` hold."""
        outer, self.guards = self.guards, guards
        try:
            yield
        finally:
            self.guards = outer

    def guards_of(self, position: int) -> Guards:
        """The conditions under which a node of the graph runs."""
        return tuple((self.value(guard.condition), guard.expected) for guard in self.scope.frames_of(position))

    def optional(self, node: Any, index: int) -> Value | None:
        """Input ``index`` of a node, or None where it is absent."""
        return self.value(node.input[index]) if index < len(node.input) and node.input[index] else None

    def _materialize(self, name: str, lazy: CastOf | SwishOf) -> Value:
        if isinstance(lazy, CastOf):
            result = self.new(name, lazy.elem_type, lazy.source.dims)
            self.step("copy", f"Cast of {lazy.source.name}", [lazy.source], [result])
            return result
        result = self.new(name, lazy.source.elem_type, lazy.source.dims)
        self.step("swish", f"Swish of {lazy.source.name}", [lazy.source], [result], floats=(lazy.alpha,), reuse=(0,))
        return result

    def _unpacked(self, name: str, weight: Weight) -> Value:
        """The value of a weight: a plain tensor as it is stored, or a structured one decoded."""
        stored = self._tensors.get(weight.name)
        if stored is None:
            key = WeightKey(weight.name, "dense")
            owner = Owner(weight.name, Storage.INITIALIZER, nbytes_of(FLOAT, weight.shape), weight=key)
            stored = Value(weight.name, FLOAT, weight.shape, row_major(weight.shape), owner)
        if weight.apart:
            return stored
        if weight.transposed != weight.columns_first:
            stored = stored.view(stored.dims[::-1], stored.strides[::-1], name)
        return self._materialize(name, CastOf(stored, weight.elem_type)) if weight.elem_type != stored.elem_type else stored

    # ---- New values and steps

    def new(self, name: str, elem_type: int, dims: tuple[int, ...], storage: Storage = Storage.ARENA) -> Value:
        """A value with storage of its own, not yet written."""
        owner = Owner(name, storage, nbytes_of(elem_type, dims))
        return Value(name, elem_type, dims, row_major(dims), owner, version=1)

    def output(self, node: Any, index: int = 0) -> Value:
        """The value for an output: fresh, or the next version of the input it must alias."""
        name = node.output[index]
        elem_type, dims = self.type_of(name)
        source = self.aliases.source(name)
        if source is None:
            return self.new(name, elem_type, dims)
        old = self.value(source)
        if not old.owner.mutable:
            raise UnsupportedError(f"{self.label(node)}: output {name!r} must alias {source!r}, which is no READ_WRITE input")
        return Value(name, elem_type, dims, old.strides, old.owner, old.offset, old.version + 1, old)

    def label(self, node: Any) -> str:
        """How steps and messages name a node."""
        return f"{node.name or ', '.join(node.output) or 'unnamed node'} ({node.op_type})"

    def step(self, kernel: str | None, label: str, inputs: list[Value | None], outputs: list[Value], **more: Any) -> DraftStep:
        """Add a kernel call and note the versions that it makes."""
        for value in outputs:
            if value.owner.mutable:
                preserve.protect(self, kernel, label, inputs, value, more.get("reuse", ()))
        touched = sum(value.size * value.itemsize for value in (*inputs, *outputs) if value is not None)
        more.setdefault("parallel", touched >= PARALLEL_BYTES)
        more.setdefault("loop", next((loop for loop in self.loops if (loop.on, True) in self.guards), None))
        made = DraftStep(kernel, label, inputs, outputs, guards=self.guards, **more)
        for value in outputs:
            value.owner.writers.setdefault(value.version, []).append(made)
        self.steps.append(made)
        return made

    def define(self, node: Any, *results: Value | Lazy) -> None:
        """Bind the outputs of a node, in order, to what they stand for."""
        for name, result in zip(node.output, results, strict=False):
            if name:
                preserve.check_alias(self, node, name, result)
                self.env[name] = result
                self._homes[name] = self.guards

    def close(self) -> None:
        """Let go of the draft: owners and the steps that write them refer to each other, and would wait for the collector."""
        for step in self.steps:
            for value in step.outputs:
                value.owner.writers.clear()

    # ---- Values derived from others, made once

    def once(self, key: tuple[Any, ...], make: Any) -> Any:
        """``make()``, or what it gave for the same key before, here or where this place lies within."""
        for depth in range(len(self.guards) + 1):
            found = self._derived.get((self.guards[:depth], key))
            if found is not None:
                return found
        made = self._derived[self.guards, key] = make()
        return made

    def dense(self, value: Value) -> Value:
        """The value itself where it is contiguous, else a contiguous copy."""
        return value if value.contiguous else self.copy(value)

    def copy(self, value: Value) -> Value:
        """A contiguous copy of what the value shows."""

        def make() -> Value:
            result = self.new(f"{value.name}.copy", value.elem_type, value.dims)
            self.step("copy", f"copy of {value.name}", [value], [result])
            return result

        return self.once(("copy", *identity(value)), make)

    def check(self, kernel: str, value: Value, ints: tuple[int, ...], label: str, *more: Value) -> DraftStep:
        """A step that stops the run, before any cache is written, when a value is out of range."""
        dense = [self.dense(part) for part in (value, *more)]
        if value.owner.mutable:
            dense[0] = value.first()  # of a table of pages: its descriptors are the same in all versions
        key = (kernel, ints, *(part for operand in dense for part in identity(operand)))
        return self.once(key, lambda: self.step(kernel, label, [*dense], [], ints=ints, parallel=False))


def _stored(tensor: Any) -> Value:
    """A plain initializer."""
    dims = tuple(tensor.dims)
    owner = Owner(tensor.name, Storage.INITIALIZER, nbytes_of(tensor.data_type, dims), weight=WeightKey(tensor.name, "tensor"))
    return Value(tensor.name, tensor.data_type, dims, row_major(dims), owner)


def nbytes_of(elem_type: int, dims: tuple[int, ...]) -> int:
    """Bytes of a dense tensor; ``UnsupportedError`` for an element type that kernels do not address, ``ShapeError`` for more
    elements than could ever be held.
    """
    kind = dtypes.scalar(elem_type)
    if elem_type not in ADDRESSED:
        raise UnsupportedError(f"{kind.name} values of {kind.bits} bits have no native storage in this version; cast them")
    nbytes = math.prod(dims) * (kind.bits // 8)
    if nbytes > _ADDRESS_SPACE:
        raise ShapeError(f"{kind.name}{list(dims)} takes {nbytes:,} bytes, more than an address space; give smaller dimensions")
    return nbytes
