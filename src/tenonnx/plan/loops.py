"""Lowering of loops that stand in the flat graph once: storage for what passes from trip to trip, checks before any write.

A small value that passes has storage of its own, into which each trip copies its result; a cache is updated where it lies. So
that every position of every trip is checked before the first byte is written, the executor runs the trips twice: the first
time only what the checks need, which therefore must not depend on the caches that the loop updates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tenonnx.errors import ShapeError, UnsupportedError
from tenonnx.plan.builder import BOOL, Builder
from tenonnx.plan.draft import LOOP_CHECK, DraftLoop, DraftStep, Value, identity
from tenonnx.plan.preserve import copied


def begin(builder: Builder, node: Any) -> None:
    """A new loop; its output says whether another trip runs."""
    condition = builder.value(node.input[1])
    if condition.elem_type != BOOL or condition.size != 1:
        raise ShapeError(f"{node.name}: condition {condition.name!r} has {condition.size} elements; expected BOOL[]")
    outside = {id(value) for value in builder.env.values()}
    on = builder.new(node.output[0], BOOL, condition.dims)
    loop = DraftLoop(node.name.rpartition("/")[0], builder.guards, on, outside)
    builder.loops.append(loop)
    _enter(builder, loop, condition, on)
    builder.define(node, on)


def enter(builder: Builder, node: Any) -> None:
    """A value as a trip finds it."""
    loop, initial = _loop_of(builder, node), builder.value(node.input[1])
    passing = builder.new(node.output[0], initial.elem_type, initial.dims)
    _enter(builder, loop, initial, passing)
    builder.define(node, passing)


def _enter(builder: Builder, loop: DraftLoop, initial: Value, passing: Value) -> None:
    label = f"before the first trip: {passing.name}"
    loop.enters.append(builder.step("copy", label, [initial], [passing], loop=loop, parallel=False))


def leave(builder: Builder, node: Any) -> None:
    """A value after the last trip: what a trip makes of it is what the next one finds."""
    loop = _loop_of(builder, node)
    result, entered = builder.value(node.input[1]), builder.value(node.input[2])
    if entered.owner.mutable:
        after = result.view(result.dims, result.strides, node.output[0])
    elif identity(result) == identity(entered):  # passes as it is
        builder.define(node, entered.view(entered.dims, entered.strides, node.output[0]))
        return
    else:
        if (result.elem_type, result.dims) != (entered.elem_type, entered.dims):
            raise UnsupportedError(
                f"{loop.label}: begins with {entered.name!r} of {list(entered.dims)} and ends a trip with {list(result.dims)}; "
                "storage that is planned once holds one shape: pad the value, or make the number of trips an initializer"
            )
        after = Value(node.output[0], entered.elem_type, entered.dims, entered.strides, entered.owner, 0, 2, entered)
        with builder.under((*loop.outer, (loop.on, True))):
            if any(result.owner is passing.owner for passing, _ in loop.carried) or result.owner is entered.owner:
                result = _apart(builder, result)
            builder.step("copy", f"for the next trip: {entered.name}", [result], [after], parallel=False)
    loop.carried.append((entered, after))
    builder.define(node, after)


def _apart(builder: Builder, value: Value) -> Value:
    """A copy of what another copy into the next trip's values could overwrite first."""
    result = builder.new(f"{value.name}.kept", value.elem_type, value.dims)
    builder.step("copy", f"copy of {value.name}", [value], [result])
    return result


def _loop_of(builder: Builder, node: Any) -> DraftLoop:
    on = builder.value(node.input[0])
    return next(loop for loop in builder.loops if loop.on is on)


def finish(builder: Builder) -> None:
    """After the last node: what the trips need of caches' old content, and the checks of all trips."""
    for loop in builder.loops:
        steps = [step for step in builder.steps if step.loop is loop]
        updated = {id(value.owner) for step in steps for value in step.outputs if value.owner.mutable}
        for step in steps:
            _keep_outside(builder, loop, step, updated)
        checks = [step for step in steps if step.is_check]
        if checks:
            _check_first(builder, loop, steps, checks, updated)


def _keep_outside(builder: Builder, loop: DraftLoop, step: DraftStep, updated: set[int]) -> None:
    """Let a step read a copy of what was made, before the loop, of a part of a cache that the loop updates."""
    passing = {id(entered) for entered, _ in loop.carried}
    for index, value in enumerate(step.inputs):
        if value is None or id(value.owner) not in updated or step in loop.enters:
            continue
        part: Value | None = value
        while part is not None and id(part) not in loop.outside:
            part = part.of
        if part is not None and id(part) not in passing:
            with builder.under(loop.outer):
                step.inputs[index] = copied(builder, value)


def _check_first(builder: Builder, loop: DraftLoop, steps: list[DraftStep], checks: list[DraftStep], updated: set[int]) -> None:
    """Add the step that stands for the checks of all trips, before any cache write."""
    needed = _needed(loop, steps, checks)
    for step in needed:
        step.dry = True
        for value in step.reads:
            if id(value.owner) in updated:
                raise UnsupportedError(
                    f"{loop.label}: {checks[0].label}: a position, or whether another trip runs, is made from cache "
                    f"{value.owner.name!r}, which the loop updates: so its trips cannot be checked before the first write; pass "
                    "positions and the number of trips as inputs"
                )
    made = {id(value.owner) for step in steps for value in step.outputs}
    outer = {id(value): value for step in needed for value in step.reads if id(value.owner) not in made}
    with builder.under(loop.outer):
        loop.check = builder.step(LOOP_CHECK, loop.label, [*outer.values()], [], parallel=False)


def _needed(loop: DraftLoop, steps: list[DraftStep], checks: list[DraftStep]) -> list[DraftStep]:
    """The steps of a loop that its checks need, in any trip."""
    writers: dict[int, list[DraftStep]] = {}
    for step in steps:
        for value in step.outputs:
            writers.setdefault(id(value.owner), []).append(step)
    found: dict[int, DraftStep] = {}
    pending = [*checks, *writers[id(loop.on.owner)]]
    while pending:
        step = pending.pop()
        if id(step) in found:
            continue
        found[id(step)] = step
        for value in step.reads:
            pending += writers.get(id(value.owner), ())
    return list(found.values())


FLOW_RULES: dict[str, Callable[[Builder, Any], None]] = {"Begin": begin, "Enter": enter, "Leave": leave}
