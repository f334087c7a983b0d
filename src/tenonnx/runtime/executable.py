"""A plan made runnable: its native program, its onnxruntime regions, and the runs that they take in turn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np

from tenonnx._native import Arenas, Buffer, Program
from tenonnx.cache import address
from tenonnx.collection import uncollected
from tenonnx.errors import AliasError, BindingError, CapacityError, PageError, TenonnxError, UnsupportedError
from tenonnx.plan import ExecutionPlan, PlannedLoop, Storage, WeightKey
from tenonnx.plan.constants import ONCE
from tenonnx.plan.draft import LOOP_CHECK
from tenonnx.runtime.region import Region, Regions
from tenonnx.runtime.weights import Weights

_ARENA, _SLOT, _FIXED = 0, 1, 2
_POSITION_FAULT, _PAGE_FAULT, _ROWS_FAULT, _LENGTH_FAULT = 1, 3, 4, 5


class Template(NamedTuple):
    """What the runs of one executable over the same cache have in common."""

    slots: np.ndarray  # UINT64[slots]: addresses of the cache's tensors, 0 elsewhere
    results: dict[str, Any]  # the updated tensors by output, None elsewhere
    others: list[tuple[str, str | None]]  # the other outputs, and the inputs whose storage they have


class Run(NamedTuple):
    """Native steps [first, last), or one step that is a region."""

    first: int
    last: int
    region: Region | None = None


class Trips(NamedTuple):
    """A loop, or what the checks of its trips need: runs before the first trip, and those of each trip."""

    loop: PlannedLoop
    before: list[Run]
    body: list[Run]


Segment = Run | Trips


def _runs(steps: Iterable[int], regions: Mapping[int, Region]) -> list[Run]:
    """Steps in order as runs, neighbours together."""
    runs: list[Run] = []
    for step in steps:
        if step in regions:
            runs.append(Run(step, step + 1, regions[step]))
        elif runs and runs[-1].region is None and runs[-1].last == step:
            runs[-1] = Run(runs[-1].first, step + 1)
        else:
            runs.append(Run(step, step + 1))
    return runs


class Executable:
    """One plan, ready to run on ``threads`` threads; safe to run from many threads at once."""

    @uncollected()
    def __init__(
        self, plan: ExecutionPlan, weights: Weights, regions: Regions, threads: int, arenas: Arenas | None = None
    ) -> None:
        """Runs borrow their arena from ``arenas``, or share one of their own."""
        self.plan = plan
        self.threads = threads
        self._writes = _rows_written(plan)
        self._aliased = np.array([value for value, _ in plan.aliases], np.int32)
        self._roots = np.array([plan.values[root].slot for _, root in plan.aliases], np.int64)
        self._offsets = np.array([plan.values[value].offset for value, _ in plan.aliases], np.uint64)
        self.input_slots = {slot.name: number for number, slot in enumerate(plan.slots) if not slot.is_output}
        self.output_slots = [(number, slot) for number, slot in enumerate(plan.slots) if slot.is_output]
        self.results = [(name, self._shared(plan.values[value].root)) for name, value in plan.outputs]
        self.bare = self.template({}, {})
        made = {} if plan.once is None else _made(plan.once, weights, regions, threads)
        self._fixed = _fixed_arrays(plan, weights, made)
        if plan.once is not None:
            weights.forget(_weights(plan.once) - _weights(plan))
        values = [self._value_row(number) for number in range(len(plan.values))]
        steps = [
            (
                None if step.kernel == LOOP_CHECK else step.kernel,
                step.label,
                list(step.inputs),
                list(step.outputs),
                list(step.ints),
                list(step.floats),
                step.parallel,
                step.sync,
                list(step.guards),
            )
            for step in plan.steps
        ]
        try:
            self._program = Program(values, steps, plan.peak_bytes, [slot.nbytes for slot in plan.slots], arenas=arenas)
        except ValueError as error:
            raise UnsupportedError(f"the native executor refuses the plan: {error}") from error
        self._segments = self._split(regions)
        weights.release()  # onnxruntime has laid out for itself what regions read

    def _value_row(self, number: int) -> tuple[Any, ...]:
        row = self.plan.values[number]
        if number in self._fixed:
            base = address(self._fixed[number])
            return _FIXED, -1, 0, row.elem_type, list(row.dims), list(row.strides), base + row.offset
        space = _SLOT if row.slot >= 0 else _ARENA
        return space, row.slot, row.offset, row.elem_type, list(row.dims), list(row.strides), 0

    def _split(self, sessions: Regions) -> list[Segment]:
        """Runs of native steps, and what stands between them: regions, loops, and the checks of loops."""
        regions = {
            number: sessions.region(self.plan, step, self._fixed)
            for number, step in enumerate(self.plan.steps)
            if step.kernel is None
        }
        loops = {loop.first: (loop, tuple(range(loop.first, loop.last))) for loop in self.plan.loops}
        loops |= {loop.check: (loop, loop.dry) for loop in self.plan.loops if loop.check >= 0}
        segments: list[Segment] = []
        outside: list[int] = []
        inside = {number for loop in self.plan.loops for number in range(loop.first, loop.last)}
        for number in range(len(self.plan.steps)):
            if number in loops:
                segments += _runs(outside, regions)
                outside = []
                loop, steps = loops[number]
                before, body = ([step for step in steps if (step < loop.body) == early] for early in (True, False))
                segments.append(Trips(loop, _runs(before, regions), _runs(body, regions)))
            elif number not in inside:
                outside.append(number)
        segments += _runs(outside, regions)
        return segments

    def run(self, slots: np.ndarray) -> int:
        """Run over UINT64[slots], the addresses of ``plan.slots``; returns the rows that it made valid in its caches.

        Raises ``CapacityError`` or ``BindingError`` before any cache is written when a position or an index is out of
        range, ``AliasError`` when an updated cache is not where its input was.
        """
        lease = self._program.lease()
        try:
            lease.bind(slots)
            ran: set[int] = set()  # regions in branches
            for segment in self._segments:
                if isinstance(segment, Trips):
                    self._loop(lease, segment, ran)
                else:
                    self._execute(lease, segment, ran)
            expected = slots[self._roots] + self._offsets
            if lease.addresses(self._aliased) != expected.tobytes():
                self._refuse_moved(np.frombuffer(lease.addresses(self._aliased), np.uint64) != expected)
            return max(rows * times for step, rows in self._writes if (times := self._times(lease, step, ran)))
        finally:
            lease.close()

    def _times(self, lease: Any, step: int | None, ran: set[int]) -> int:
        """How often an update ran; None stands for those that every run makes once."""
        return 1 if step is None or step in ran else int(lease.count(step))

    def _execute(self, lease: Any, run: Run, ran: set[int]) -> None:
        if run.region is None:
            fault = lease.execute(run.first, run.last, self.threads)
            if fault is not None:
                raise self._error(*fault)
        elif lease.taken(run.first):
            run.region.run(lease)
            ran.add(run.first)

    def _loop(self, lease: Any, trips: Trips, ran: set[int]) -> None:
        """As many trips as the loop's condition says; none where the loop stands in a branch that is not taken."""
        for run in trips.before:
            self._execute(lease, run, ran)
        while lease.taken(trips.loop.last - 1):  # which sets the condition anew, and runs under nothing else
            for run in trips.body:
                self._execute(lease, run, ran)

    def template(self, arrays: Mapping[str, np.ndarray], addresses: Mapping[str, int]) -> Template:
        """What is settled of a run where these inputs are."""
        slots = np.zeros(len(self.plan.slots), np.uint64)
        for name, where in addresses.items():
            if name in self.input_slots:
                slots[self.input_slots[name]] = where
        results = {name: None if root is None else arrays.get(root) for name, root in self.results}
        return Template(slots, results, [(name, root) for name, root in self.results if root not in arrays])

    def _shared(self, root: int) -> str | None:
        """The graph input whose storage an output has; None for one that owns its storage."""
        slot = self.plan.slots[self.plan.values[root].slot]
        return None if slot.is_output else slot.name

    def _refuse_moved(self, moved: np.ndarray) -> NoReturn:
        value, root = self.plan.aliases[int(np.flatnonzero(moved)[0])]
        names = self.plan.values[value].name, self.plan.values[root].name
        raise AliasError(f"output {names[0]!r} is not at the address of {names[1]!r}")

    def _error(self, step: int, code: int, found: int, low: int, high: int, where: int) -> TenonnxError:
        label = self.plan.steps[step].label
        if code in (_PAGE_FAULT, _ROWS_FAULT, _LENGTH_FAULT):
            return _page_error(label, code, found, high, where)
        if code != _POSITION_FAULT:
            return BindingError(f"{label}: index {found} at element {where} is outside {low}..{high}; nothing was written")
        if found < 0:
            return CapacityError(
                f"{label}: position {found} of batch row {where} is negative; expected 0..{high}. Nothing was written"
            )
        write = next(write for write in self.plan.writes if write.label == label)
        return CapacityError(
            f"{label}: position {found} + {write.rows} new rows of batch row {where} passes the cache's capacity of "
            f"{write.capacity}; allocate a longer cache, or truncate it. Nothing was written"
        )


def _rows_written(plan: ExecutionPlan) -> list[tuple[int | None, int]]:
    """(step, rows) of each update in a branch; (None, rows) for the most rows of those that every run makes."""
    rows = {write.label: write.rows for write in plan.writes}
    guarded = {
        label: number
        for number, step in enumerate(plan.steps)
        if step.guards and not (step.kernel or "").startswith("check")
        for label in ([step.label] if step.label in rows else step.label.split(" + "))
        if label in rows
    }
    always = max((count for label, count in rows.items() if label not in guarded), default=0)
    return [(None, always), *((number, rows[label]) for label, number in guarded.items())]


def _page_error(label: str, code: int, found: int, high: int, where: int) -> TenonnxError:
    if code == _PAGE_FAULT:
        return PageError(
            f"{label}: page {found} is missing or of another size; the table's ids end at {high}. Nothing was written"
        )
    if code == _ROWS_FAULT:
        return CapacityError(
            f"{label}: position {found} + {where} new rows do not fit the {high} pages that page_id names. Nothing was written"
        )
    return CapacityError(
        f"{label}: length {found} of batch row {where} is outside 0..{high}, what its row of the page table holds. "
        "Nothing was written"
    )


def _made(once: ExecutionPlan, weights: Weights, regions: Regions, threads: int) -> dict[WeightKey, np.ndarray]:
    """The values that a plan makes once, shared with other plans that make the same."""
    keys = [WeightKey(ONCE, slot.name) for slot in once.slots]
    found = weights.made(keys)
    if len(found) < len(keys):
        arrays: list[np.ndarray] = [Buffer(slot.nbytes, "weight").array() for slot in once.slots]
        Executable(once, weights, regions, threads).run(np.array([address(array) for array in arrays], np.uint64))
        found = weights.keep(dict(zip(keys, arrays, strict=True)))
    return found


def _weights(plan: ExecutionPlan) -> set[WeightKey]:
    return {row.weight for row in plan.values if row.weight is not None}


def _fixed_arrays(plan: ExecutionPlan, weights: Weights, made: dict[WeightKey, np.ndarray]) -> dict[int, np.ndarray]:
    found: dict[int, np.ndarray] = {}
    for number, row in enumerate(plan.values):
        owner = plan.values[row.root] if row.storage is Storage.VIEW else row
        if owner.weight in made:
            found[number] = made[owner.weight]
        elif owner.weight is not None:
            found[number] = weights.array(owner.weight)
        elif owner.constant is not None:
            found[number] = owner.constant
    return found
