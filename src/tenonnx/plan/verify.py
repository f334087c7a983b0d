"""A second opinion on a finished plan, from its table alone: nothing here is shared with the code that made it.

Replaying the table, it tracks which value's content each byte of the arena holds and how often each storage was written,
and proves that every read finds the content it names, whichever branches run, that aliases resolve to writable inputs, that
no step writes what it must not, that every check comes before the first cache write, and that threads meet wherever one
needs another's bytes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from tenonnx.errors import AliasError
from tenonnx.plan.types import ExecutionPlan, PlannedLoop, PlannedValue, Storage

_IN_ARENA = (Storage.ARENA, Storage.WORKSPACE, Storage.INPLACE_REUSE)
_CHECKS = ("check_position", "check_indices", "check_paged_update", "check_page_table", "loop_check")
_ARENA, _GATE = -1, -2  # spaces: the arena, and the order of checks before cache writes

Case = frozenset[tuple[int, bool]]  # what conditions, by their content, are taken to be
Writes = list[tuple[int, Case]]  # what was written and in which case, the latest first
_ALWAYS: Case = frozenset()


def _written(writes: Writes, what: int, case: Case) -> Writes:
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
                parts += [(at, b, [(index, case)]), (max(b, begin), min(e, end), _written(held, index, case))]
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
        owner = plan.values[_owner(plan, alias)]
        if owner is not plan.values[root] or owner.storage is not Storage.INPUT:
            names = plan.values[alias].name, plan.values[root].name
            raise AliasError(f"plan: {names[0]!r} must share the storage of {names[1]!r} but does not")
    _verify_contents(plan)
    _verify_checks(plan)
    _verify_meetings(plan)


def _writable(plan: ExecutionPlan) -> set[int]:
    return {_owner(plan, alias) for alias, _ in plan.aliases}


class _Replay:
    """Every read finds the version that it names, whole, in every case; every write follows the version before it."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self.plan = plan
        self.writable = _writable(plan)
        self.arena = _Arena()
        self.current: dict[int, Writes] = {}  # versions
        self.given: frozenset[int] = frozenset()  # conditions that hold wherever a step of the loop under proof runs

    def shows(self, index: int, case: Case) -> bool:
        """Whether the content of a value is now of the version that it names."""
        return _finds(self.current.get(_content(self.plan, index), []), self.plan.values[index].version, case, 0)

    def _read(self, index: int, case: Case, where: str) -> None:
        value, content = self.plan.values[index], _content(self.plan, index)
        if not self.shows(index, case):
            raise AliasError(f"{where} reads version {value.version} of {value.name!r}, found {self._found(content)}")
        if _in_arena(self.plan, value) and not self.arena.holds(*_bytes(value), content, case):
            raise AliasError(f"{where} reads {value.name!r} after its bytes were given to another value")

    def _found(self, content: int) -> list[int]:
        return [version for version, _ in self.current.get(content, [])] or [0]

    def step(self, number: int) -> None:
        plan, step = self.plan, self.plan.steps[number]
        where = f"plan: step {number} ({step.label})"
        case = _ALWAYS
        for condition, expected in step.guards:
            self._read(condition, case, where)
            if _content(plan, condition) not in self.given:
                case |= {(_content(plan, condition), expected)}
        for index in step.inputs:
            if index >= 0:
                self._read(index, case, where)
        for index in step.outputs:
            value, content = plan.values[index], _content(plan, index)
            _check_write(plan, index, self.writable, where)
            if not _finds(self.current.get(content, []), value.version - 1, case, 0):
                raise AliasError(f"{where} writes version {value.version} of {value.name!r} over {self._found(content)}")
            self.current[content] = _written(self.current.get(content, []), value.version, case)
            if _in_arena(plan, value):
                self.arena.write(*_bytes(value), content, case)


def _verify_contents(plan: ExecutionPlan) -> None:
    replay = _Replay(plan)
    loops = {loop.first: loop for loop in plan.loops}
    checks = {loop.check: loop for loop in plan.loops}
    number = 0
    while number < len(plan.steps):
        loop = loops.get(number)
        if loop is None:
            if number in checks:
                verify_loop(replay, checks[number], dry=True)
            replay.step(number)
            number += 1
        else:
            verify_loop(replay, loop)
            number = loop.last
    for name, index in plan.outputs:
        if not replay.shows(index, _ALWAYS):
            raise AliasError(f"plan: output {name!r} does not show the content that it names")


def verify_loop(replay: _Replay, loop: PlannedLoop, dry: bool = False) -> None:
    """Prove a loop by two trips: each finds what the one before has left, and the second leaves all bytes as the first did.

    With ``dry``, prove the run of its checks alone: it touches no cache that the loop updates, and what it reads of the loop it
    has made itself, as the loop will.
    """
    plan = replay.plan
    numbers = [number for number in range(loop.first, loop.last) if not dry or number in loop.dry]
    written = {_content(plan, index) for number in range(loop.first, loop.last) for index in plan.steps[number].outputs}
    caches = written & replay.writable
    carried = {_content(plan, entered): (entered, left) for entered, left in loop.carried}
    where = f"plan: {loop.label}"
    _check_dry(plan, loop, caches, where)
    before = dict(replay.current)
    replay.given = frozenset({_content(plan, loop.on)})
    case = _case(plan, plan.steps[loop.last - 1].guards) - {(_content(plan, loop.on), True)}
    for content in written - caches:
        replay.current.pop(content, None)
    for number in numbers:
        if number < loop.body:
            replay.step(number)
    passing = caches if not dry else set()
    passing |= {content for content in carried if content in replay.current and content not in caches}
    begun = {content: list(replay.current.get(content, [])) for content in written}
    again = {_content(plan, index) for number in range(loop.body, loop.last) for index in plan.steps[number].outputs}
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
        if step.kernel in _CHECKS and (loop.check < 0 or number not in loop.dry):
            raise AliasError(f"{where} has a check, {step.label}, that is not made before its first trip")
        touched = {_content(plan, index) for index in (*step.inputs, *step.outputs, *(c for c, _ in step.guards)) if index >= 0}
        if number in loop.dry and touched & caches:
            raise AliasError(f"{where}: step {number} ({step.label}) of its dry run touches a cache that the loop updates")


def _case(plan: ExecutionPlan, guards: tuple[tuple[int, bool], ...]) -> Case:
    return frozenset((_content(plan, condition), expected) for condition, expected in guards)


def _verify_checks(plan: ExecutionPlan) -> None:
    """Every check passes before the first cache is written, and each update's position is among what they passed."""
    writable = _writable(plan)
    passed: dict[tuple[int, int, int], list[Case]] = {}  # (position, its version, highest allowed): in which cases checked
    in_loops = {number for loop in plan.loops for number in range(loop.first, loop.last)}
    pages: set[tuple[int, ...]] = set()  # (table, page ids, position, rows, tokens of a page)
    written = ""
    for number, step in enumerate(plan.steps):
        where = f"plan: step {number} ({step.label})"
        if step.kernel in _CHECKS:
            if written and number not in in_loops:  # those have passed before, in a dry run
                raise AliasError(f"{where} checks after {written} has written a cache")
            if step.kernel == "loop_check":
                continue
            passed.setdefault((*_version(plan, step.inputs[0]), step.ints[0]), []).append(_case(plan, step.guards))
            if step.kernel == "check_paged_update":
                pages.add((*(_content(plan, index) for index in step.inputs), *step.ints[:2]))
        elif any(_owner(plan, index) in writable for index in step.outputs):
            written = where
        if step.kernel == "cache_update":
            cache, values, position = step.inputs
            axis = step.ints[0]
            limit = plan.values[cache].dims[axis] - plan.values[values].dims[axis]
            case = _case(plan, step.guards)
            if not any(checked <= case for checked in passed.get((*_version(plan, position), limit), ())):
                raise AliasError(f"{where} writes at {plan.values[position].name!r}, which no step checks against {limit}")
        if step.kernel == "paged_update":
            table, page_id, values, position = step.inputs
            rows = plan.values[values].dims[-2]
            if (*(_content(plan, index) for index in (table, page_id, position)), rows, step.ints[0]) not in pages:
                raise AliasError(f"{where} writes through {plan.values[page_id].name!r}, which no step checks for {rows} rows")


def _verify_meetings(plan: ExecutionPlan) -> None:
    """No parallel step touches bytes that another step of the same phase writes; regions stand between phases."""
    writable = _writable(plan)
    phase = _Phase()
    for number, step in enumerate(plan.steps):
        if step.sync or step.kernel in (None, "loop_check"):
            phase = _Phase()
        if step.kernel is None:
            continue
        accesses = [(*_place(plan, index), False) for index in step.inputs if index >= 0]
        accesses += [(*_place(plan, index), False) for index, _ in step.guards]
        accesses += [(*_place(plan, index), True) for index in step.outputs]
        is_check = step.kernel in _CHECKS
        if is_check or any(_owner(plan, index) in writable for index in step.outputs):
            accesses.append((_GATE, 0, 1, is_check))
        if phase.conflicts(accesses, step.parallel):
            raise AliasError(f"plan: step {number} ({step.label}) does not wait for a step whose bytes it touches")
        (phase.parallel if step.parallel else phase.serial).update(accesses)


def _place(plan: ExecutionPlan, index: int) -> tuple[int, int, int]:
    """(space, begin, end): the arena is one space, every other storage one of its own."""
    value = plan.values[index]
    return (_ARENA if _in_arena(plan, value) else _owner(plan, index), *_bytes(value))


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
    """The value whose content a name shows: its root, but a value that reuses bytes is new content."""
    while plan.values[index].storage in (Storage.VIEW, Storage.ALIAS):
        index = plan.values[index].root
    return index


def _version(plan: ExecutionPlan, index: int) -> tuple[int, int]:
    return _content(plan, index), plan.values[index].version
