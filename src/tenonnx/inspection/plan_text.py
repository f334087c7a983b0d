"""A plan as lines of 80 columns: its steps, those of layers that are alike once, then what they take and whether it fits."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from rich.text import Text

from tenonnx import dtypes
from tenonnx.inspection.machine import Memory
from tenonnx.inspection.planned import Planned
from tenonnx.inspection.show import bytes_text
from tenonnx.plan import ExecutionPlan, PlannedStep, PlannedValue, Storage
from tenonnx.plan.timeline import live_bytes

_LONGEST_PERIOD = 400  # steps of a layer
_LABEL, _KERNEL, _WRITES = 31, 17, 16


def plan_lines(planned: Planned, memory: Memory, every_step: bool = False) -> Iterator[Text]:
    """Steps, then figures. With ``every_step`` layers that are alike are shown one by one."""
    plan = planned.plan
    live = live_bytes(plan)
    yield Text(f" step  {'kernel':{_KERNEL}} {'node':{_LABEL}} {'writes':>{_WRITES}}", style="dim")
    for begin, end, times in _runs(plan, every_step):
        for number in range(begin, end):
            yield _step(plan, number)
        if times > 1:
            more = "the step above" if end - begin == 1 else f"the {end - begin} steps above"
            yield Text(f"    …  {more}, {times - 1} times more, to step {begin + (end - begin) * times - 1}", style="dim")
    yield Text()
    yield from _figures(planned, live)
    yield from _fit(planned, memory)


def _step(plan: ExecutionPlan, number: int) -> Text:
    step = plan.steps[number]
    name = step_label(plan, number)
    line = Text(f"{number:5d}  {_clipped(step.kernel or 'onnxruntime', _KERNEL):{_KERNEL}} ")
    return line.append(f"{_clipped(name, _LABEL):{_LABEL}} {written(plan, step):>{_WRITES}}")


def step_label(plan: ExecutionPlan, number: int) -> str:
    """The nodes of a step, behind the conditions under which it runs; in a loop, those around the loop and its sign."""
    step = plan.steps[number]
    loops = [loop for loop in plan.loops if loop.first <= number < loop.last]
    conditions = {loop.on for loop in loops}
    guards = "".join(
        f"if {'' if expected else 'not '}{plan.values[index].name}: "
        for index, expected in step.guards
        if index not in conditions
    )
    return guards + "\N{CLOCKWISE OPEN CIRCLE ARROW} " * len(loops) + step.label


def value_type(value: PlannedValue) -> str:
    """A planned value's type: ``FLOAT[1, 4]``."""
    return f"{dtypes.BY_NUMBER[value.elem_type].name}[{', '.join(map(str, value.dims))}]"


def written(plan: ExecutionPlan, step: PlannedStep) -> str:
    """Bytes that a step writes, and where."""
    if not step.outputs:
        return ""
    rows = _ROWS.get(step.kernel or "")
    if rows is not None:  # of a cache, these rows alone
        return f"{_bytes(plan.values[step.inputs[rows]]):,} cache"
    values = [plan.values[index] for index in step.outputs]
    storage = plan.values[values[0].root].storage if values[0].storage is Storage.VIEW else values[0].storage
    return f"{sum(map(_bytes, values)):,} {_PLACES.get(storage, storage.value)}"


def _bytes(value: PlannedValue) -> int:
    return math.prod(value.dims) * dtypes.BY_NUMBER[value.elem_type].bits // 8


_ROWS = {"cache_update": 1, "rotary_update": 1, "paged_update": 2}  # the input that holds the rows
_PLACES = {Storage.INPLACE_REUSE: "reused", Storage.WORKSPACE: "work", Storage.ALIAS: "cache"}


def _runs(plan: ExecutionPlan, every_step: bool) -> Iterator[tuple[int, int, int]]:
    """(begin, end, times): steps, or a block of them that is repeated, alike but for the numbers in their names."""
    keys = [(step.kernel, re.sub(r"\d+", "*", step.label), written(plan, step)) for step in plan.steps]
    at = 0
    while at < len(keys):
        period, times = (0, 1) if every_step else _repeated(keys, at)
        yield (at, at + period, times) if times > 1 else (at, at + 1, 1)
        at += period * times if times > 1 else 1


def _repeated(keys: list[Any], at: int) -> tuple[int, int]:
    """The shortest block that stands at least twice in a row from ``at`` on, and how often."""
    for period in range(1, min(_LONGEST_PERIOD, (len(keys) - at) // 2) + 1):
        if keys[at + period] != keys[at] or keys[at : at + period] != keys[at + period : at + 2 * period]:
            continue
        times = 2
        while keys[at : at + period] == keys[at + times * period : at + (times + 1) * period]:
            times += 1
        return period, times
    return 0, 1


def _figures(planned: Planned, live: list[int]) -> Iterator[Text]:
    plan = planned.plan
    counts = f"{len(plan.steps):,} step{'s'[: len(plan.steps) != 1]}, {len(plan.values):,} values"
    yield Text(f"{planned.name}: {counts}", style="bold")
    if planned.dims:
        yield from _wrapped("  for " + ", ".join(f"{name} = {value:,}" for name, value in planned.dims.items()))
    regions = sum(step.kernel is None for step in plan.steps)
    if regions:
        yield Text(f"  {regions:,} steps are onnxruntime's, whose own memory is not counted here")
    top = max(range(len(live)), key=live.__getitem__, default=None)
    caches = sum(slot.is_cache for slot in plan.slots)
    yield from (
        _row("arena", plan.arena_bytes, "values, free after their last reader"),
        _row("workspace", plan.workspace_bytes, "scratch memory of kernels"),
        _row("peak", plan.peak_bytes, "" if top is None or not live[top] else f"most in use at step {top}: {live[top]:,}"),
        _row("caches", planned.cache_bytes, f"{caches}, the caller's, updated in place" if caches else "none"),
        _row("extra cache", plan.extra_cache_bytes, "allocated for caches by a run"),
    )


def _fit(planned: Planned, memory: Memory) -> Iterator[Text]:
    plan = planned.plan
    yield _row("weights", plan.weight_bytes, "as kernels read them")
    yield _row("outputs", plan.output_bytes, "new at each run, or the caller's")
    yield _row("in all", planned.total_bytes, "")
    held = f"a context of {planned.context:,}" if planned.context is not None else "it"
    there = f"{bytes_text(memory.available)} that {memory.limit}"
    if planned.total_bytes <= memory.available:
        share = 100 * planned.total_bytes / max(1, memory.available)
        yield from _wrapped(f"fits: {held} takes {share:.1f} % of the {there}")
    else:
        short = bytes_text(planned.total_bytes - memory.available)
        yield from _wrapped(f"does not fit: {held} takes {short} over the {there}")
    if planned.context is not None and planned.longest is not None and planned.context > planned.longest:
        yield from _wrapped(f"over what the model was trained for, {planned.longest:,} tokens: text stops there")


def length_lines(pairs: Iterable[tuple[Planned, Planned]]) -> Iterator[Text]:
    """What lengths of the context take: caches, the peak of one new token and of a prompt's run, and all with the latter."""
    for number, (one, many) in enumerate(pairs):
        if number == 0:
            yield Text()
            yield Text(
                f"  {'context':>9}  {'caches':>14}  {'peak, a token':>14}  {'peak, a prompt':>14}  {'in all':>14}", style="dim"
            )
        figures = (one.cache_bytes, one.plan.peak_bytes, many.plan.peak_bytes, many.total_bytes)
        yield Text(f"  {one.context:>9,}" + "".join(f"  {bytes_text(figure):>14}" for figure in figures))


def _row(name: str, nbytes: int, note: str) -> Text:
    return Text(f"  {name:12} {nbytes:>17,} bytes  {note}".rstrip())


def _wrapped(text: str) -> Iterator[Text]:
    yield from (Text(line) for line in textwrap.wrap(text, 80, subsequent_indent="      ", break_long_words=False))


def _clipped(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"
