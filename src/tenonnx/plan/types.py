"""The execution plan: a frozen, flat table of values and steps, the executor's only input."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, NamedTuple

from tenonnx import dtypes


class Storage(enum.Enum):
    """Where a value's bytes lie, and who answers for them."""

    INPUT = "input"  # the caller's, bound at each run
    INITIALIZER = "initializer"  # the model's, or packed from it at load; never written
    ARENA = "arena"  # the plan's, free again after the last reader
    WORKSPACE = "workspace"  # a kernel's scratch memory
    ALIAS = "alias"  # mandatory: the storage of an input that the model declares READ_WRITE
    INPLACE_REUSE = "inplace_reuse"  # opportunistic: the bytes of an input that nobody reads any more
    VIEW = "view"  # another shape or part of an earlier value's bytes
    OUTPUT = "output"  # allocated for the caller, or the array given with out=


class WeightKey(NamedTuple):
    """A fixed value that the session provides: initializer ``name`` in a layout ("tensor" and "dense" are unpacked), or a
    value that ``ExecutionPlan.once`` makes.
    """

    name: str
    layout: str


@dataclass(frozen=True, slots=True)
class PlannedValue:
    """One value: its type, and where element 0 lies, in bytes from the begin of the storage it belongs to."""

    name: str
    elem_type: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    storage: Storage
    root: int  # the value that owns the bytes: its own index, or that of an earlier value
    slot: int  # index into ExecutionPlan.slots, -1 unless bound at each run
    offset: int
    nbytes: int  # from element 0 to the end of the last
    version: int  # writes of the storage that made this content; 0 is what was there before the run
    weight: WeightKey | None = None
    constant: Any = None  # a NumPy array that the plan itself provides

    def __str__(self) -> str:
        kind = dtypes.BY_NUMBER[self.elem_type].name
        place = f" at {self.offset}" if self.storage in (Storage.ARENA, Storage.WORKSPACE) else ""
        return f"{self.name}: {kind}{list(self.dims)} {self.storage.value}{place}"


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One call of a native kernel, or (``kernel`` None) one region of nodes run by onnxruntime."""

    kernel: str | None
    label: str
    inputs: tuple[int, ...]  # value indices, -1 for an absent optional input
    outputs: tuple[int, ...]
    ints: tuple[int, ...] = ()
    floats: tuple[float, ...] = ()
    parallel: bool = False  # else one thread runs it
    sync: bool = False  # all threads meet before it
    nodes: tuple[int, ...] = ()  # of a region: positions in the main graph
    region_inputs: tuple[str, ...] = ()
    region_outputs: tuple[str, ...] = ()
    guards: tuple[tuple[int, bool], ...] = ()  # runs only where each BOOL value is as expected


@dataclass(frozen=True, slots=True)
class CacheWrite:
    """An update of a cache: rows [position, position + rows) along ``axis`` of the graph input ``root``."""

    label: str  # of the node
    root: str
    position: str  # the value that holds the position
    rows: int
    capacity: int
    axis: int


@dataclass(frozen=True, slots=True)
class PageWrite:
    """An update of pages: ``rows`` tokens from ``position`` on, through the pages of ``root`` that ``page_id`` names in order."""

    label: str  # of the node
    root: str
    page_id: str  # the values that hold ids and position
    position: str
    rows: int
    tokens: int  # of a page


@dataclass(frozen=True, slots=True)
class PlannedLoop:
    """Steps [first, last) that run as a loop: [first, body) once, then [body, last) again and again while ``on`` holds.

    Before all cache writes, at the step ``check`` (-1: the trips have nothing to check), the executor runs the loop with its
    ``dry`` steps alone. ``carried`` are values as a trip begins and as it ends: the end of one is the begin of the next.
    """

    label: str
    first: int
    body: int
    last: int
    on: int  # BOOL of one element
    check: int
    dry: tuple[int, ...]
    carried: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """Something each run binds: a graph input, or a graph output that owns its storage."""

    name: str
    value: int
    is_output: bool
    nbytes: int
    is_cache: bool = False  # a READ_WRITE input


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """Everything the executor needs for one set of input shapes; compare and print freely.

    ``peak_bytes = arena_bytes + workspace_bytes`` is what a run allocates besides its outputs; a cache counts zero.
    """

    values: tuple[PlannedValue, ...]
    steps: tuple[PlannedStep, ...]
    slots: tuple[Slot, ...]
    outputs: tuple[tuple[str, int], ...]  # graph output name -> value index
    aliases: tuple[tuple[int, int], ...]  # (value, root): addresses that must be equal
    writes: tuple[CacheWrite, ...]
    arena_bytes: int
    workspace_bytes: int
    cache_bytes: int  # of the READ_WRITE inputs, owned by the caller; of a table, those of the pages that it holds
    output_bytes: int
    page_writes: tuple[PageWrite, ...] = ()
    once: ExecutionPlan | None = None  # run before the first run: its outputs, named as layouts, are fixed values of this plan
    loops: tuple[PlannedLoop, ...] = ()

    @property
    def peak_bytes(self) -> int:
        """Bytes that a run holds beside weights, caches, inputs and outputs."""
        return self.arena_bytes + self.workspace_bytes

    @property
    def extra_cache_bytes(self) -> int:
        """Bytes of copies of whole caches: 0 unless the graph itself asks for one, as under an output that is no alias."""
        caches = {slot.value: slot.nbytes for slot in self.slots if slot.is_cache}
        copies: dict[int, int] = {}
        for step in self.steps:
            if step.kernel == "copy":
                source, result = self.values[step.inputs[0]], self.values[step.outputs[0]]
                if source.nbytes == caches.get(source.root, -1):
                    copies[result.root] = result.nbytes
        return sum(copies.values())

    @property
    def weight_bytes(self) -> int:
        """Bytes of the fixed values that the steps read, each once in each layout that they read."""
        fixed = {
            value.weight or index: value.nbytes
            for index, value in enumerate(self.values)
            if value.storage is Storage.INITIALIZER and value.root == index
        }
        return sum(fixed.values())

    def __str__(self) -> str:
        lines = [
            f"{len(self.steps)} steps, arena {self.arena_bytes} B, workspace {self.workspace_bytes} B, "
            f"caches {self.cache_bytes} B (the caller's), outputs {self.output_bytes} B"
        ]
        if self.once is not None:
            lines += ["once, before the first run:", *(f"  {line}" for line in str(self.once).split("\n")), "in every run:"]
        for number, step in enumerate(self.steps):
            mark = ("|" if step.sync else " ") + ("=" if step.parallel else "-")
            writes = ", ".join(str(self.values[index]) for index in step.outputs)
            guards = "".join(f"if {'' if expected else 'not '}{self.values[index].name}: " for index, expected in step.guards)
            guards += "".join(f"in {loop.label}: " for loop in self.loops if loop.first <= number < loop.last)
            lines.append(f"{number:5d} {mark} {step.kernel or 'onnxruntime':18s} {guards}{step.label}: {writes}")
        return "\n".join(lines)
