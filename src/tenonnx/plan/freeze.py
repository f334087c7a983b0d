"""From ordered draft steps to the frozen table."""

from __future__ import annotations

from dataclasses import replace

from tenonnx.plan.draft import DraftLoop, DraftStep, Owner, Value, loop_extents
from tenonnx.plan.memory import Placement, meeting_points
from tenonnx.plan.types import CacheWrite, ExecutionPlan, PageWrite, PlannedLoop, PlannedStep, PlannedValue, Slot, Storage


class Freezer:
    """Numbers values and writes their rows; an owner's first value stands for the whole storage."""

    def __init__(self, placement: Placement, slots: dict[int, int]) -> None:
        self.placement = placement
        self.slots = slots  # id(owner) -> slot
        self.rows: list[PlannedValue] = []
        self._owners: dict[int, int] = {}
        self._values: dict[int, int] = {}

    def owner(self, owner: Owner, like: Value) -> int:
        """The row of an owner's whole storage, shaped as the first value that shows all of it."""
        if id(owner) not in self._owners:
            self._owners[id(owner)] = len(self.rows)
            root = len(self.rows)
            storage = owner.storage
            if id(owner) in self.placement.reused:
                storage = Storage.INPLACE_REUSE
            place = self.placement.owner_of(owner)
            offset = self.placement.offsets.get(id(place), 0)
            self.rows.append(
                PlannedValue(
                    like.name,
                    like.elem_type,
                    like.dims,
                    like.strides,
                    storage,
                    root,
                    self.slots.get(id(owner), -1),
                    offset,
                    like.extent,
                    0 if storage in (Storage.INPUT, Storage.INITIALIZER) else 1,
                    owner.weight,
                    owner.constant,
                )
            )
            if storage is Storage.INPLACE_REUSE:
                self.rows[root] = replace(self.rows[root], root=self.owner(place, like))
        return self._owners[id(owner)]

    def value(self, value: Value) -> int:
        """The row of a value: its owner's when it shows all of it in its first version, else an alias or a view."""
        if id(value) in self._values:
            return self._values[id(value)]
        whole = value
        while whole.of is not None:
            whole = whole.of
        root = self.owner(value.owner, whole)
        row = self.rows[root]
        same = value.offset == 0 and value.dims == row.dims and value.strides == row.strides and value.elem_type == row.elem_type
        first = 0 if value.owner.storage in (Storage.INPUT, Storage.INITIALIZER) else 1
        if same and value.version == first:
            index = root
        else:
            storage = Storage.ALIAS if value.owner.mutable and value.version > 0 else Storage.VIEW
            index = len(self.rows)
            self.rows.append(
                PlannedValue(
                    value.name,
                    value.elem_type,
                    value.dims,
                    value.strides,
                    storage,
                    root,
                    row.slot,
                    row.offset + value.offset,
                    value.extent,
                    value.version,
                    value.owner.weight,
                    value.owner.constant,
                )
            )
        self._values[id(value)] = index
        return index

    def step(self, step: DraftStep, sync: bool) -> PlannedStep:
        return PlannedStep(
            step.kernel,
            step.label,
            tuple(-1 if value is None else self.value(value) for value in step.inputs),
            tuple(self.value(value) for value in step.outputs),
            step.ints,
            step.floats,
            step.parallel,
            sync,
            step.nodes,
            step.names[0],
            step.names[1],
            tuple((self.value(condition), expected) for condition, expected in step.guards),
        )

    def loop(self, loop: DraftLoop, steps: list[DraftStep], first: int, last: int) -> PlannedLoop:
        """The row of a loop whose steps are numbers ``first`` to ``last``."""
        numbers = range(first, last + 1)
        return PlannedLoop(
            loop.label,
            first,
            next(number for number in numbers if steps[number] not in loop.enters),
            last + 1,
            self.value(loop.on),
            -1 if loop.check is None else steps.index(loop.check),
            tuple(number for number in numbers if steps[number].dry),
            tuple((self.value(entered), self.value(after)) for entered, after in loop.carried),
        )


def freeze(
    steps: list[DraftStep],
    placement: Placement,
    inputs: dict[str, Value],
    outputs: dict[str, Value],
    writes: list[CacheWrite],
    page_writes: list[PageWrite],
    once: ExecutionPlan | None = None,
) -> ExecutionPlan:
    """The plan of ordered, placed steps. ``inputs`` and ``outputs`` are those of the graph, in its order."""
    bound: dict[int, tuple[str, Value, bool]] = {id(value.owner): (name, value, False) for name, value in inputs.items()}
    for name, value in outputs.items():
        bound.setdefault(id(value.owner), (name, value, True))
    freezer = Freezer(placement, {owner: slot for slot, owner in enumerate(bound)})
    slots = tuple(
        Slot(name, freezer.value(value), is_output, value.owner.nbytes, value.owner.mutable)
        for name, value, is_output in bound.values()
    )
    rows = [freezer.step(step, sync) for step, sync in zip(steps, meeting_points(steps, placement), strict=True)]
    loops = tuple(freezer.loop(loop, steps, first, last) for loop, first, last in loop_extents(steps))
    results = tuple((name, freezer.value(value)) for name, value in outputs.items())
    aliases = tuple((index, row.root) for index, row in enumerate(freezer.rows) if row.storage is Storage.ALIAS)
    return ExecutionPlan(
        values=tuple(freezer.rows),
        steps=tuple(rows),
        slots=slots,
        outputs=results,
        aliases=aliases,
        writes=tuple(writes),
        arena_bytes=placement.arena_bytes,
        workspace_bytes=placement.workspace_bytes,
        cache_bytes=sum(value.owner.nbytes for value in inputs.values() if value.owner.mutable and not value.owner.pages),
        output_bytes=sum(slot.nbytes for slot in slots if slot.is_output),
        page_writes=tuple(page_writes),
        once=once,
        loops=loops,
    )
