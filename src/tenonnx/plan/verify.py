"""A second opinion on a finished plan, from its table alone: nothing here is shared with the code that made it.

Replaying the table, it tracks which value's content each byte of the arena holds, and proves that every read finds the
content it names, that aliases resolve to writable inputs, and that no step writes what it must not.
"""

from __future__ import annotations

from tenonnx.errors import AliasError
from tenonnx.plan.types import ExecutionPlan, PlannedValue, Storage

_IN_ARENA = (Storage.ARENA, Storage.WORKSPACE, Storage.INPLACE_REUSE)


def _owner(plan: ExecutionPlan, index: int) -> int:
    seen = index
    for _ in range(len(plan.values)):
        value = plan.values[seen]
        if value.root == seen:
            return seen
        seen = value.root
    raise AliasError(f"plan: value {plan.values[index].name!r} is an alias of itself")


def _in_arena(plan: ExecutionPlan, value: PlannedValue) -> bool:
    return plan.values[_owner(plan, value.root)].storage in _IN_ARENA


class _Arena:
    """Which value's content lies where: disjoint intervals (begin, end, value)."""

    def __init__(self) -> None:
        self.held: list[tuple[int, int, int]] = []

    def write(self, begin: int, end: int, index: int) -> None:
        kept: list[tuple[int, int, int]] = []
        for b, e, held in self.held:
            if e <= begin or end <= b:
                kept.append((b, e, held))
                continue
            kept += [part for part in ((b, begin, held), (end, e, held)) if part[0] < part[1]]
        kept.append((begin, end, index))
        self.held = kept

    def holds(self, begin: int, end: int, index: int) -> bool:
        covered = sum(min(e, end) - max(b, begin) for b, e, held in self.held if held == index and b < end and begin < e)
        return covered == end - begin


def verify(plan: ExecutionPlan) -> None:
    """Raise ``AliasError`` naming step and value when the plan breaks a promise of its own."""
    for alias, root in plan.aliases:
        owner = plan.values[_owner(plan, alias)]
        if owner is not plan.values[root] or owner.storage is not Storage.INPUT:
            names = plan.values[alias].name, plan.values[root].name
            raise AliasError(f"plan: {names[0]!r} must share the storage of {names[1]!r} but does not")
    writable = {_owner(plan, alias) for alias, _ in plan.aliases}
    arena = _Arena()
    for number, step in enumerate(plan.steps):
        where = f"plan: step {number} ({step.label})"
        for index in step.inputs:
            value = plan.values[index]
            if index >= 0 and _in_arena(plan, value) and not arena.holds(*_bytes(value), _content(plan, index)):
                raise AliasError(f"{where} reads {value.name!r} after its bytes were given to another value")
        for index in step.outputs:
            _check_write(plan, index, writable, where)
            if _in_arena(plan, plan.values[index]):
                arena.write(*_bytes(plan.values[index]), _content(plan, index))


def _bytes(value: PlannedValue) -> tuple[int, int]:
    return value.offset, value.offset + value.nbytes


def _check_write(plan: ExecutionPlan, index: int, writable: set[int], where: str) -> None:
    value, owner = plan.values[index], plan.values[_owner(plan, index)]
    if owner.storage is Storage.INITIALIZER:
        raise AliasError(f"{where} writes initializer {owner.name!r}")
    if owner.storage is Storage.INPUT and _owner(plan, index) not in writable:
        raise AliasError(f"{where} writes input {owner.name!r}, which the model does not declare READ_WRITE")
    if _in_arena(plan, value) and not 0 <= value.offset <= plan.peak_bytes - value.nbytes:
        raise AliasError(f"{where} writes {value.name!r} outside the arena of {plan.peak_bytes} bytes")


def _content(plan: ExecutionPlan, index: int) -> int:
    """The value whose content a view shows: its root, but a value that reuses bytes is new content."""
    while plan.values[index].storage is Storage.VIEW:
        index = plan.values[index].root
    return index
