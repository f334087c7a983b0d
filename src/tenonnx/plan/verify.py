"""A second opinion on a finished plan, from its table alone: nothing here is shared with the code that made it.

Replaying the table, it tracks which value's content each byte of the arena holds and how often each storage was written,
and proves that every read finds the content it names, whichever branches run, that aliases resolve to writable inputs, that
no step writes what it must not, that every check comes before the first cache write, and that threads meet wherever one
needs another's bytes.
"""

from __future__ import annotations

from tenonnx.errors import AliasError
from tenonnx.plan.proof import CHECKS, Case, bytes_of, case_of, content_of, in_arena, owner_of, version_of, writable
from tenonnx.plan.replay import verify_contents
from tenonnx.plan.types import ExecutionPlan, Storage

_ARENA, _GATE = -1, -2  # spaces: the arena, and the order of checks before cache writes


class _Phase:
    """What the steps since the last meeting of all threads touch: (space, begin, end, written)."""

    def __init__(self) -> None:
        self.serial: set[tuple[int, int, int, bool]] = set()
        self.parallel: set[tuple[int, int, int, bool]] = set()

    def conflicts(self, accesses: list[tuple[int, int, int, bool]], parallel: bool) -> bool:
        others = self.parallel | self.serial if parallel else self.parallel
        return any(
            mine[0] == other[0] and (mine[3] or other[3]) and max(mine[1], other[1]) < min(mine[2], other[2])
            for other in others
            for mine in accesses
        )


def verify(plan: ExecutionPlan) -> None:
    """Raise ``AliasError`` naming step and value when the plan breaks a promise of its own."""
    for alias, root in plan.aliases:
        owner = plan.values[owner_of(plan, alias)]
        if owner is not plan.values[root] or owner.storage is not Storage.INPUT:
            names = plan.values[alias].name, plan.values[root].name
            raise AliasError(f"plan: {names[0]!r} must share the storage of {names[1]!r} but does not")
    verify_contents(plan)
    _verify_checks(plan)
    _verify_meetings(plan)


def _verify_checks(plan: ExecutionPlan) -> None:
    """Every check passes before the first cache is written, and each update's position is among what they passed."""
    caches = writable(plan)
    passed: dict[tuple[int, int, int], list[Case]] = {}  # (position, its version, highest allowed): in which cases checked
    in_loops = {number for loop in plan.loops for number in range(loop.first, loop.last)}
    pages: set[tuple[int, ...]] = set()  # (table, page ids, position, rows, tokens of a page)
    written = ""
    for number, step in enumerate(plan.steps):
        where = f"plan: step {number} ({step.label})"
        if step.kernel in CHECKS:
            if written and number not in in_loops:  # those have passed before, in a dry run
                raise AliasError(f"{where} checks after {written} has written a cache")
            if step.kernel == "loop_check":
                continue
            passed.setdefault((*version_of(plan, step.inputs[0]), step.ints[0]), []).append(case_of(plan, step.guards))
            if step.kernel == "check_paged_update":
                pages.add((*(content_of(plan, index) for index in step.inputs), *step.ints[:2]))
        elif any(owner_of(plan, index) in caches for index in step.outputs):
            written = where
        if step.kernel in ("cache_update", "rotary_update"):
            cache, values, position = step.inputs[:3]
            axis = step.ints[0]
            limit = plan.values[cache].dims[axis] - plan.values[values].dims[axis]
            case = case_of(plan, step.guards)
            if not any(checked <= case for checked in passed.get((*version_of(plan, position), limit), ())):
                raise AliasError(f"{where} writes at {plan.values[position].name!r}, which no step checks against {limit}")
        if step.kernel == "paged_update":
            table, page_id, values, position = step.inputs
            rows = plan.values[values].dims[-2]
            if (*(content_of(plan, index) for index in (table, page_id, position)), rows, step.ints[0]) not in pages:
                raise AliasError(f"{where} writes through {plan.values[page_id].name!r}, which no step checks for {rows} rows")


def _verify_meetings(plan: ExecutionPlan) -> None:
    """No parallel step touches bytes that another step of the same phase writes; regions stand between phases."""
    caches = writable(plan)
    phase = _Phase()
    for number, step in enumerate(plan.steps):
        if step.sync or step.kernel in (None, "loop_check"):
            phase = _Phase()
        if step.kernel is None:
            continue
        accesses = [(*_place(plan, index), False) for index in step.inputs if index >= 0]
        accesses += [(*_place(plan, index), False) for index, _ in step.guards]
        accesses += [(*_place(plan, index), True) for index in step.outputs]
        is_check = step.kernel in CHECKS
        if is_check or any(owner_of(plan, index) in caches for index in step.outputs):
            accesses.append((_GATE, 0, 1, is_check))
        if phase.conflicts(accesses, step.parallel):
            raise AliasError(f"plan: step {number} ({step.label}) does not wait for a step whose bytes it touches")
        (phase.parallel if step.parallel else phase.serial).update(accesses)


def _place(plan: ExecutionPlan, index: int) -> tuple[int, int, int]:
    """(space, begin, end): the arena is one space, every other storage one of its own."""
    value = plan.values[index]
    return (_ARENA if in_arena(plan, value) else owner_of(plan, index), *bytes_of(value))
