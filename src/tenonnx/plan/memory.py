"""Where each owner lies: lifetimes, opportunistic reuse, offsets in the arena, and where threads must meet."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tenonnx.plan.draft import LOOP_CHECK, DraftStep, Owner, Value, loop_extents
from tenonnx.plan.types import Storage

ALIGNMENT = 64  # bytes: a cache line, and the widest vector load
_PLACED = (Storage.ARENA, Storage.WORKSPACE)
Access = tuple[object, int, int, bool]  # space, begin, end, whether it is written


@dataclass(slots=True)
class Placement:
    """Offsets of the placed owners in one block: the arena first, the workspace behind it."""

    offsets: dict[int, int] = field(default_factory=dict)  # by id(owner)
    reused: dict[int, Owner] = field(default_factory=dict)  # id(owner) -> the owner whose bytes it takes over
    arena_bytes: int = 0
    workspace_bytes: int = 0

    def owner_of(self, owner: Owner) -> Owner:
        """The owner whose place this one has."""
        while id(owner) in self.reused:
            owner = self.reused[id(owner)]
        return owner


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def lifetimes(steps: list[DraftStep]) -> dict[int, tuple[Owner, int, int]]:
    """For each placed owner (by id) its first and last step, both inclusive."""
    spans: dict[int, tuple[Owner, int, int]] = {}
    checked: dict[int, list[Value]] = {}  # by the step that stands for a loop's checks: what it writes
    for step in steps:
        if step.dry and step.loop is not None:
            checked.setdefault(id(step.loop.check), []).extend(step.outputs)
    for number, step in enumerate(steps):
        for value in (*step.reads, *step.outputs, *checked.get(id(step), ())):
            if value.owner.storage in _PLACED:
                first = spans[id(value.owner)][1] if id(value.owner) in spans else number
                spans[id(value.owner)] = (value.owner, first, number)
    for loop, begin, end in loop_extents(steps):
        passing = {id(step.outputs[0].owner) for step in loop.enters}
        for key, (owner, first, last) in list(spans.items()):
            if begin <= last < end and (first < begin or key in passing):  # the next trip reads it, too
                spans[key] = (owner, first, end)
    return spans


def _reuse(steps: list[DraftStep], spans: dict[int, tuple[Owner, int, int]], placement: Placement) -> None:
    """Let output 0 of a step take over an input that dies there, where the kernel allows it and the bytes match."""
    for number, step in enumerate(steps):
        if not step.reuse or step.outputs[0].owner.storage is not Storage.ARENA:
            continue
        output = step.outputs[0]
        for index in step.reuse:
            value = step.inputs[index]
            if value is None or value.owner.storage is not Storage.ARENA or value.owner is output.owner:
                continue
            owner = placement.owner_of(value.owner)
            dies = spans[id(owner)][2] == number
            whole = value.offset == 0 and value.contiguous and output.contiguous and value.dims == output.dims
            alone = sum(other is not None and other.owner is value.owner for other in step.inputs) == 1
            if dies and whole and alone and owner.nbytes == output.owner.nbytes and value.elem_type == output.elem_type:
                placement.reused[id(output.owner)] = owner
                spans[id(owner)] = (owner, spans[id(owner)][1], spans.pop(id(output.owner))[2])
                break


def _pack(spans: list[tuple[Owner, int, int]], offsets: dict[int, int]) -> int:
    """Give every owner the lowest offset free over its life, largest first; returns the bytes needed."""
    firsts, lasts, begins, ends = np.empty((4, len(spans)), np.int64)
    for count, (owner, first, last) in enumerate(sorted(spans, key=lambda span: -span[0].nbytes)):
        alive = (firsts[:count] <= last) & (first <= lasts[:count])
        size, begin = _aligned(owner.nbytes), 0
        if alive.any():
            in_order = np.argsort(begins[:count][alive], kind="stable")
            held = np.maximum.accumulate(ends[:count][alive][in_order])  # up to here bytes are taken, or too few are free
            gaps = begins[:count][alive][in_order] - np.concatenate(([0], held[:-1])) >= size
            begin = int(held[-1]) if not gaps.any() else int(held[gaps.argmax() - 1]) if gaps.argmax() else 0
        firsts[count], lasts[count], begins[count], ends[count] = first, last, begin, begin + size
        offsets[id(owner)] = begin
    return int(ends.max(initial=0))


def place(steps: list[DraftStep]) -> Placement:
    """Offsets for all placed owners of the ordered steps."""
    placement = Placement()
    spans = lifetimes(steps)
    _reuse(steps, spans, placement)
    arena = [span for span in spans.values() if span[0].storage is Storage.ARENA]
    workspace = [span for span in spans.values() if span[0].storage is Storage.WORKSPACE]
    placement.arena_bytes = _pack(arena, placement.offsets)
    placement.workspace_bytes = _pack(workspace, placement.offsets)
    for owner, _, _ in workspace:
        placement.offsets[id(owner)] += placement.arena_bytes
    return placement


def _range(value: Value, placement: Placement) -> tuple[object, int, int]:
    owner = placement.owner_of(value.owner)
    if owner.storage in _PLACED:
        begin = placement.offsets[id(owner)] + value.offset
        return "arena", begin, begin + value.extent
    return id(owner), value.offset, value.offset + value.extent


def meeting_points(steps: list[DraftStep], placement: Placement) -> list[bool]:
    """Before which steps all threads must meet: those that touch bytes a step since the last meeting wrote, or overwrite
    bytes it read. Two serial steps run on one thread, in order, and need no meeting between them."""
    syncs = []
    serial: set[Access] = set()  # since the last meeting
    parallel: set[Access] = set()
    for step in steps:
        accesses = [(*_range(value, placement), False) for value in step.reads]
        accesses += [(*_range(value, placement), True) for value in step.outputs]
        if step.is_check or step.writes_cache:
            accesses.append(("checks", 0, 1, step.is_check))
        sync = step.kernel in (None, LOOP_CHECK) or _meet(accesses, parallel) or (step.parallel and _meet(accesses, serial))
        if sync:
            serial.clear()
            parallel.clear()
        (parallel if step.parallel else serial).update(accesses)
        syncs.append(sync)
    return syncs


def _meet(accesses: list[Access], others: set[Access]) -> bool:
    """Whether one of them touches bytes that another writes."""
    return any(
        (written or other_written) and space == other_space and begin < other_end and other_begin < end
        for space, begin, end, written in accesses
        for other_space, other_begin, other_end, other_written in others
    )
