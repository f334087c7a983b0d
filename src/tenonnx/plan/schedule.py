"""The order of the steps: readers of an old name before its update, every check before the first cache write."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, NoReturn

from tenonnx.errors import AliasError, UnsupportedError
from tenonnx.plan.draft import DraftLoop, DraftStep, Owner, Value


def live(steps: list[DraftStep], results: list[Value]) -> list[DraftStep]:
    """The steps that a result needs, or that write a cache; shape arithmetic that views made needless falls away."""
    roots = [step for step in steps if step.writes_cache]
    roots += [step for value in results for step in _makers(value)]
    needed: dict[int, DraftStep] = {}
    while len(roots) > 0:
        needed |= {id(step): step for step in needs(roots)}
        loops = {id(step.loop): step.loop for step in needed.values() if step.loop is not None}
        roots = [step for loop in loops.values() for step in _always(loop) if id(step) not in needed]
    return [step for step in steps if id(step) in needed]


def _always(loop: DraftLoop) -> list[DraftStep]:
    """What a loop needs to run at all: its checks, and that each trip finds what the one before has made."""
    checks = [] if loop.check is None else [loop.check]
    return checks + [step for _, after in loop.carried for step in _makers(after) if step.loop is loop]


def needs(roots: list[DraftStep]) -> list[DraftStep]:
    """These steps, and those that they need, directly or not."""
    found: dict[int, DraftStep] = {}
    pending = list(roots)
    while pending:
        step = pending.pop()
        if id(step) in found:
            continue
        found[id(step)] = step
        pending += step.after
        for value in step.reads:
            pending += _makers(value)
    return list(found.values())


def _makers(value: Value) -> list[DraftStep]:
    """The steps that made the version that a value shows; the caller made version 0."""
    return value.owner.writers.get(value.version, [])


def dependencies(steps: list[DraftStep]) -> list[set[int]]:
    """For each step the positions of the steps that must come before it."""
    position = {id(step): number for number, step in enumerate(steps)}
    before: list[set[int]] = [set() for _ in steps]
    checks = [number for number, step in enumerate(steps) if step.is_check and step.loop is None]
    for number, step in enumerate(steps):
        before[number].update(position[id(check)] for check in step.after if id(check) in position)
        if step.writes_cache:
            before[number].update(checks)
        for value in step.reads:
            before[number].update(position[id(maker)] for maker in _makers(value) if not maker.excludes(step))
            for update in value.owner.writers.get(value.version + 1, ()):
                if update is not step and not update.excludes(step):
                    before[position[id(update)]].add(number)  # the old content is read before it is overwritten
    return before


def ordered(steps: list[DraftStep], detach: Callable[[list[DraftStep]], list[DraftStep]]) -> list[DraftStep]:
    """The steps in an order that respects every dependency, else as given; runs of one engine are kept together.

    ``detach`` is given the steps that wait for each other; it lets them read copies of old content and returns the copying
    steps. Raises ``AliasError`` when a reader of an old name needs the updated value, ``UnsupportedError`` when a check does.
    """
    result = _sorted(steps)
    while len(result) < len(steps):
        done = {id(step) for step in result}
        stuck = [step for step in steps if id(step) not in done]
        copies = detach(stuck)
        if not copies:
            _explain(stuck)
        steps = list({id(step): step for step in (*copies, *steps)}.values())
        result = _sorted(steps)
    return result


def _sorted(steps: list[DraftStep]) -> list[DraftStep]:
    """As many of the steps as an order exists for; those of one loop stand together, what they begin with in front."""
    before = dependencies(steps)
    loops: dict[int, int] = {}  # of a loop: its first step, which stands for all
    unit = [number if step.loop is None else loops.setdefault(id(step.loop), number) for number, step in enumerate(steps)]
    members: dict[int, list[int]] = {}
    waits: dict[int, set[int]] = {}
    for number, first in enumerate(unit):
        members.setdefault(first, []).append(number)
        waits.setdefault(first, set()).update(unit[other] for other in before[number] if unit[other] != first)
    result: list[DraftStep] = []
    for first in _topological(waits, lambda number: (steps[number].kernel is not None, number)):
        inner = {number: before[number] & set(members[first]) for number in members[first]}
        if len(inner) == 1:
            result.append(steps[first])
            continue
        order = _topological(inner, lambda number: (True, (not _enters(steps[number]), number)))
        if len(order) < len(inner):
            break
        result += [steps[number] for number in order]
    return result


def _enters(step: DraftStep) -> bool:
    return step.loop is not None and step in step.loop.enters


def _topological(before: dict[int, set[int]], key: Callable[[int], tuple[bool, Any]]) -> list[int]:
    """As many numbers as an order exists for, each after those it waits for: runs of one kind together, else by the key."""
    after: dict[int, list[int]] = {number: [] for number in before}
    missing = {number: len(others) for number, others in before.items()}
    for number, others in before.items():
        for other in others:
            after[other].append(number)
    ready: dict[bool, list[tuple[Any, int]]] = {True: [], False: []}

    def add(number: int) -> None:
        kind, rank = key(number)
        heapq.heappush(ready[kind], (rank, number))

    for number, count in missing.items():
        if count == 0:
            add(number)
    result: list[int] = []
    kind = True
    while ready[True] or ready[False]:
        kind = kind if ready[kind] else not kind
        _, number = heapq.heappop(ready[kind])
        result.append(number)
        for other in after[number]:
            missing[other] -= 1
            if missing[other] == 0:
                add(other)
    return result


def _explain(stuck: list[DraftStep]) -> NoReturn:
    """Say which reader or check makes an order impossible."""
    for check in stuck:
        if check.is_check and any(step.writes_cache for step in needs([check])):
            raise UnsupportedError(
                f"{check.label}: its position or indices, or the condition of its branch, are computed from a cache that the "
                "same run updates, so they cannot be checked before the first write; pass them as an input"
            )
    written: dict[int, tuple[Owner, DraftStep]] = {
        id(value.owner): (value.owner, step) for step in stuck for value in step.outputs if value.owner.mutable
    }
    for step in stuck:
        for value in step.reads:
            if id(value.owner) not in written:
                continue
            owner, update = written[id(value.owner)]
            if step is not update and value.version < max(owner.writers):
                raise AliasError(
                    f"{step.label} reads {value.name!r}, the content of cache {owner.name!r} before {update.label}, but depends "
                    "on a value made from the updated cache; read the updated value, or read the old one earlier"
                )
    raise AliasError(f"{stuck[0].label} waits for what waits for it: two updates take over one storage; chain them")
