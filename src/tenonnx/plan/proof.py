"""What a finished plan's table says of its values, read by those who prove it; nothing here is shared with what made it."""

from __future__ import annotations

from tenonnx.errors import AliasError
from tenonnx.plan.types import ExecutionPlan, PlannedValue, Storage

IN_ARENA = (Storage.ARENA, Storage.WORKSPACE, Storage.INPLACE_REUSE)
CHECKS = ("check_position", "check_indices", "check_paged_update", "check_page_table", "loop_check")

Case = frozenset[tuple[int, bool]]  # what conditions, by their content, are taken to be


def owner_of(plan: ExecutionPlan, index: int) -> int:
    """The value that owns the bytes of another."""
    seen = index
    for _ in range(len(plan.values)):
        value = plan.values[seen]
        if value.root == seen:
            return seen
        seen = value.root
    raise AliasError(f"plan: value {plan.values[index].name!r} is an alias of itself")


def in_arena(plan: ExecutionPlan, value: PlannedValue) -> bool:
    """Whether a value lies in what a run allocates."""
    return plan.values[owner_of(plan, value.root)].storage in IN_ARENA


def writable(plan: ExecutionPlan) -> set[int]:
    """The values whose storage a run may write: the roots of aliases."""
    return {owner_of(plan, alias) for alias, _ in plan.aliases}


def case_of(plan: ExecutionPlan, guards: tuple[tuple[int, bool], ...]) -> Case:
    """The case in which a step under these guards runs."""
    return frozenset((content_of(plan, condition), expected) for condition, expected in guards)


def bytes_of(value: PlannedValue) -> tuple[int, int]:
    """Where a value begins and ends in its storage."""
    return value.offset, value.offset + value.nbytes


def content_of(plan: ExecutionPlan, index: int) -> int:
    """The value whose content a name shows: its root, but a value that reuses bytes is new content."""
    while plan.values[index].storage in (Storage.VIEW, Storage.ALIAS):
        index = plan.values[index].root
    return index


def version_of(plan: ExecutionPlan, index: int) -> tuple[int, int]:
    """The content that a name shows, and of which version."""
    return content_of(plan, index), plan.values[index].version
