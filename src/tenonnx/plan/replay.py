"""A finished plan replayed: which value's content each byte of the arena holds, how often each storage was written.

Every read must find the content that it names, whichever branches run and however often a loop does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from tenonnx.errors import AliasError
from tenonnx.plan.proof import CHECKS, Case, bytes_of, case_of, content_of, in_arena, owner_of, writable
from tenonnx.plan.types import ExecutionPlan, PlannedLoop, Storage

Writes = list[tuple[int, Case]]  # what was written and in which case, the latest first
ALWAYS: Case = frozenset()


def written_after(writes: Writes, what: int, case: Case) -> Writes:
    """The writes after one more, without those that it hides."""
    return [(what, case), *((old, other) for old, other in writes if not case <= other)]


def _finds(writes: Writes, what: int, case: Case, before: int) -> bool:
    """Whether in a case, whatever the other conditions are, the last write was ``what``; ``before`` stands for no write."""
    for number, (found, when) in enumerate(writes):
        if any((condition, not expected) in case for condition, expected in when):
            continue
        if found != what:
            return False
        rest, held = writes[number + 1 :], case
        for condition, expected in when - case:
            if not _finds(rest, what, held | {(condition, not expected)}, before):
                return False
            held |= {(condition, expected)}
        return True
    return what == before


class _Arena:
    """Which values' content lies where, and in which case: disjoint intervals (begin, end, writes) in order."""

    def __init__(self) -> None:
        self.held: list[tuple[int, int, Writes]] = []

    def _touched(self, begin: int, end: int) -> tuple[int, int]:
        """The slice of intervals that share a byte with [begin, end)."""
        first = bisect_right(self.held, begin, key=lambda part: part[1])
        return first, max(first, bisect_left(self.held, end, key=lambda part: part[0]))

    def write(self, begin: int, end: int, index: int, case: Case) -> None:
        if begin >= end:
            return
        first, last = self._touched(begin, end)
        old = self.held[first:last]
        parts = [(b, min(e, begin), held) for b, e, held in old[:1]]
        if case:  # what was there stays there in other cases
            at = begin
            for b, e, held in old:
                parts += [(at, b, [(index, case)]), (max(b, begin), min(e, end), written_after(held, index, case))]
                at = min(e, end)
            parts.append((at, end, [(index, case)]))
        else:
            parts.append((begin, end, [(index, case)]))
        parts += [(max(b, end), e, held) for b, e, held in old[-1:]]
        self.held[first:last] = [part for part in parts if part[0] < part[1]]

    def holds(self, begin: int, end: int, index: int, case: Case) -> bool:
        first, last = self._touched(begin, end)
        found = (min(e, end) - max(b, begin) for b, e, held in self.held[first:last] if _finds(held, index, case, -1))
        return sum(found) == max(0, end - begin)


class Replay:
    """Every read finds the version that it names, whole, in every case; every write follows the version before it."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self.plan = plan
        self.writable = writable(plan)
        self.arena = _Arena()
        self.current: dict[int, Writes] = {}  # versions
        self.given: frozenset[int] = frozenset()  # conditions that hold wherever a step of the loop under proof runs

    def shows(self, index: int, case: Case) -> bool:
        """Whether the content of a value is now of the version that it names."""
        return _finds(self.current.get(content_of(self.plan, index), []), self.plan.values[index].version, case, 0)

    def _read(self, index: int, case: Case, where: str) -> None:
        value, content = self.plan.values[index], content_of(self.plan, index)
        if not self.shows(index, case):
            raise AliasError(f"{where} reads version {value.version} of {value.name!r}, found {self._found(content)}")
        if in_arena(self.plan, value) and not self.arena.holds(*bytes_of(value), content, case):
            raise AliasError(f"{where} reads {value.name!r} after its bytes were given to another value")

    def _found(self, content: int) -> list[int]:
        return [version for version, _ in self.current.get(content, [])] or [0]

    def step(self, number: int) -> None:
        plan, step = self.plan, self.plan.steps[number]
        where = f"plan: step {number} ({step.label})"
        case = ALWAYS
        for condition, expected in step.guards:
            self._read(condition, case, where)
            if content_of(plan, condition) not in self.given:
                case |= {(content_of(plan, condition), expected)}
        for index in step.inputs:
            if index >= 0:
                self._read(index, case, where)
        for index in step.outputs:
            value, content = plan.values[index], content_of(plan, index)
            _check_write(plan, index, self.writable, where)
            if not _finds(self.current.get(content, []), value.version - 1, case, 0):
                raise AliasError(f"{where} writes version {value.version} of {value.name!r} over {self._found(content)}")
            self.current[content] = written_after(self.current.get(content, []), value.version, case)
            if in_arena(plan, value):
                self.arena.write(*bytes_of(value), content, case)


def verify_contents(plan: ExecutionPlan) -> None:
    """Raise ``AliasError`` naming step and value where a read would not find what it names, or a write is not allowed."""
    replay = Replay(plan)
    loops = {loop.first: loop for loop in plan.loops}
    checks = {loop.check: loop for loop in plan.loops}
    number = 0
    while number < len(plan.steps):
        loop = loops.get(number)
        if loop is None:
            if number in checks:
                _verify_loop(replay, checks[number], dry=True)
            replay.step(number)
            number += 1
        else:
            _verify_loop(replay, loop)
            number = loop.last
    for name, index in plan.outputs:
        if not replay.shows(index, ALWAYS):
            raise AliasError(f"plan: output {name!r} does not show the content that it names")


def _verify_loop(replay: Replay, loop: PlannedLoop, dry: bool = False) -> None:
    """Prove a loop by two trips: each finds what the one before has left, and the second leaves all bytes as the first did.

    With ``dry``, prove the run of its checks alone: it touches no cache that the loop updates, and what it reads of the loop it
    has made itself, as the loop will.
    """
    plan = replay.plan
    numbers = [number for number in range(loop.first, loop.last) if not dry or number in loop.dry]
    written = {content_of(plan, index) for number in range(loop.first, loop.last) for index in plan.steps[number].outputs}
    caches = written & replay.writable
    carried = {content_of(plan, entered): (entered, left) for entered, left in loop.carried}
    where = f"plan: {loop.label}"
    _check_dry(plan, loop, caches, where)
    before = dict(replay.current)
    replay.given = frozenset({content_of(plan, loop.on)})
    case = case_of(plan, plan.steps[loop.last - 1].guards) - {(content_of(plan, loop.on), True)}
    for content in written - caches:
        replay.current.pop(content, None)
    for number in numbers:
        if number < loop.body:
            replay.step(number)
    passing = caches if not dry else set()
    passing |= {content for content in carried if content in replay.current and content not in caches}
    begun = {content: list(replay.current.get(content, [])) for content in written}
    again = {content_of(plan, index) for number in range(loop.body, loop.last) for index in plan.steps[number].outputs}
    if not {content for content in again if begun[content] or content in caches} <= set(carried):
        raise AliasError(f"{where} updates what it does not carry from trip to trip")
    for _ in range(2):
        replay.current.update(begun)
        for number in numbers:
            if number >= loop.body:
                replay.step(number)
        for content in passing:
            if not replay.shows(carried[content][1], case):
                raise AliasError(f"{where} does not leave {plan.values[carried[content][0]].name!r} as the next trip needs it")
    replay.given = frozenset()
    if dry:
        replay.current = before


def _check_dry(plan: ExecutionPlan, loop: PlannedLoop, caches: set[int], where: str) -> None:
    """All checks of a loop run in its dry run, which neither reads nor writes the caches that the loop updates."""
    for number in range(loop.first, loop.last):
        step = plan.steps[number]
        if step.kernel in CHECKS and (loop.check < 0 or number not in loop.dry):
            raise AliasError(f"{where} has a check, {step.label}, that is not made before its first trip")
        touched = {content_of(plan, index) for index in (*step.inputs, *step.outputs, *(c for c, _ in step.guards)) if index >= 0}
        if number in loop.dry and touched & caches:
            raise AliasError(f"{where}: step {number} ({step.label}) of its dry run touches a cache that the loop updates")


def _check_write(plan: ExecutionPlan, index: int, allowed: set[int], where: str) -> None:
    value, owner = plan.values[index], plan.values[owner_of(plan, index)]
    if owner.storage is Storage.INITIALIZER:
        raise AliasError(f"{where} writes initializer {owner.name!r}")
    if owner.storage is Storage.INPUT and owner_of(plan, index) not in allowed:
        raise AliasError(f"{where} writes input {owner.name!r}, which the model does not declare READ_WRITE")
    if in_arena(plan, value) and not 0 <= value.offset <= plan.peak_bytes - value.nbytes:
        raise AliasError(f"{where} writes {value.name!r} outside the arena of {plan.peak_bytes} bytes")
