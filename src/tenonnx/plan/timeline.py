"""Who holds which bytes of a finished plan, and how long: what a picture or a table of its memory shows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from tenonnx.plan.proof import IN_ARENA, content_of
from tenonnx.plan.types import ExecutionPlan


@dataclass(frozen=True, slots=True)
class Tenant:
    """Bytes [offset, offset + nbytes) of the block that a run allocates, held by ``value`` in steps [first, last)."""

    value: int
    offset: int
    nbytes: int
    first: int
    last: int


def uses(plan: ExecutionPlan) -> dict[int, tuple[int, int]]:
    """For each holder the first and the last step that touch its bytes."""
    spans: dict[int, tuple[int, int]] = {}
    for number, step in enumerate(plan.steps):
        for index in (*step.inputs, *step.outputs, *(condition for condition, _ in step.guards)):
            if index >= 0:
                held = content_of(plan, index)
                spans[held] = (spans.get(held, (number, number))[0], number)
    return spans


def tenants(plan: ExecutionPlan) -> list[Tenant]:
    """Every holder of arena or workspace bytes; one whose bytes are taken over leaves at that step."""
    spans = uses(plan)
    heirs: dict[int, list[int]] = {}  # by the value that had the bytes first, in the order of their steps
    for index in sorted(spans, key=lambda index: spans[index]):
        if plan.values[index].storage in IN_ARENA:
            heirs.setdefault(plan.values[index].root, []).append(index)
    found = []
    for line in heirs.values():
        for index, heir in zip(line, [*line[1:], None], strict=True):
            row, (first, last) = plan.values[index], spans[index]
            found.append(Tenant(index, row.offset, row.nbytes, first, last + 1 if heir is None else spans[heir][0]))
    return found


def live_bytes(plan: ExecutionPlan) -> list[int]:
    """Bytes of the arena and the workspace that hold something at each step."""
    return in_use(tenants(plan), len(plan.steps))


def in_use(held: Iterable[Tenant], steps: int) -> list[int]:
    """Bytes that these tenants hold at each step."""
    change = [0] * (steps + 1)
    for tenant in held:
        change[tenant.first] += tenant.nbytes
        change[tenant.last] -= tenant.nbytes
    return list(accumulate(change))[:-1]


def slot_uses(plan: ExecutionPlan, value: int) -> tuple[list[int], list[int]]:
    """The steps that read, and those that write, the storage of a graph input or output."""
    held = content_of(plan, value)
    reads, writes = [], []
    for number, step in enumerate(plan.steps):
        if any(content_of(plan, index) == held for index in step.outputs):
            writes.append(number)
        elif any(index >= 0 and content_of(plan, index) == held for index in step.inputs):
            reads.append(number)
    return reads, writes
