"""Loop and Scan of as many trips as the run says, in a flat graph: the body once, around it what passes from trip to trip.

    Begin ("", on)                  on: whether a first trip runs; the name of whether another one does
    Enter (on, initial)             a value that passes from trip to trip, as a trip finds it
    ...                             the body, guarded by on; at its end whether another trip runs
    Leave (on, result, entered)     the value after the last trip

A cache passes under its own name: what a trip makes of it is what the next trip finds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tenonnx.errors import UnsupportedError
from tenonnx.schema.graph import Frames, Guard, Scope
from tenonnx.schema.inline import Place

if TYPE_CHECKING:
    from tenonnx.schema.loops import Trips

INT64, BOOL = 7, 9


@dataclass
class Rolled:
    """A loop being put into the flat graph. ``trips`` holds the body and the names around it."""

    trips: Trips
    count: str  # INT64[], "" for no bound
    condition: str  # BOOL[], "" for a loop that its count alone ends

    def _flow(self, op_type: str, inputs: tuple[str, ...], name: str, frames: Frames) -> str:
        trips = self.trips
        made = trips.flat.renamer.define(trips.outer.inside(trips.path), name)
        return trips.flat.flow(op_type, made, inputs, frames)

    def _continues(self, number: str, condition: str, name: str, frames: Frames) -> str:
        """Whether trip ``number`` runs."""
        parts = [condition] if condition else []
        if self.count:
            parts.insert(0, self.trips.op("Less", [number, self.count], f"{name}.counted", frames))
        if not parts:
            return self.trips.constant("always", BOOL, 1)
        return parts[0] if len(parts) == 1 else self.trips.op("And", parts, name, frames)

    def roll(self, rows: list[tuple[str, int, bool]]) -> None:
        """Add the loop: the body sees the trip's number, the condition and the state, or the state and one row of each of
        ``rows``, (name, axis, backwards).
        """
        trips, flat, outer = self.trips, self.trips.flat, self.trips.outer
        self._refuse_outer_readers()
        if any(guard.condition in flat.rolled for guard in outer.frames):
            raise UnsupportedError(
                f"{trips.where}: updates a cache inside another loop, and neither number of trips is known from the model; make "
                "one an initializer"
            )
        zero, one = trips.constant("zero", INT64, 0), trips.constant("one", INT64, 1)
        first = self._continues(zero, self.condition, "first", outer.frames)
        on = self._flow("Begin", ("", first), "on", outer.frames)
        flat.rolled.add(on)
        number = self._flow("Enter", (on, zero), "trip", outer.frames)
        state = [
            name if name in flat.caches else self._flow("Enter", (on, name), f"state{index}", outer.frames)
            for index, name in enumerate(trips.state)
        ]
        frames = (*outer.frames, Guard(on, True))
        if rows:
            formals = [*state, *(self._row(name, axis, backwards, number, frames) for name, axis, backwards in rows)]
        else:
            formals = [number, on, *state]
        results = trips.run(0, formals, frames)
        condition = "" if rows else trips.scalar(results.pop(0), "condition", frames)
        following = trips.op("Add", [number, one], "following", frames)
        again = self._continues(following, condition, "again", frames)
        initial, passed = list(trips.state), zip(results, state, strict=False)
        trips.state = [
            self._flow("Leave", (on, result, entered), f"after{index}", outer.frames)
            for index, (result, entered) in enumerate(passed)
        ]
        self._flow("Leave", (on, following, number), "trips", outer.frames)
        self._flow("Leave", (on, again, on), "off", outer.frames)
        trips.finish(initial, [])

    def _row(self, name: str, axis: int, backwards: bool, number: str, frames: Frames) -> str:
        trips = self.trips
        if backwards:
            last = trips.op("Sub", [self.count, trips.constant("one", INT64, 1)], f"last.{name}", frames)
            number = trips.op("Sub", [last, number], f"at.{name}", frames)
        return trips.op("Gather", [name, number], f"row.{name}", frames, axis=axis)

    def _refuse_outer_readers(self) -> None:
        trips, caches = self.trips, self.trips.flat.caches
        carried = {caches[name] for name in trips.state if name in caches}
        for captured in trips.body.captured:
            name = trips.outer.of(captured)
            if caches.get(name) in carried:
                raise UnsupportedError(
                    f"{trips.where}: carries the cache {caches[name]!r}, and its body reads {captured!r} of the graph around it, "
                    "which only the first trip finds as it was; read what the body carries, or make the value before the loop"
                )
            if name in caches and _writes(trips.body, captured):
                raise UnsupportedError(f"{trips.where}: updates {captured!r} of the graph around it; carry it from trip to trip")


def _writes(body: Scope, name: str) -> bool:
    """Whether a node of a body, or of one nested in it, declares that it takes over the storage of ``name``."""
    return any(
        0 <= entry.input_index < len(node.input) and node.input[entry.input_index] == name
        for inner in body.walk()
        for node in inner.nodes
        for entry in node.output_alias
    )


def scanned_length(trips: Any, name: str, axis: int, outer: Place) -> str:
    """INT64[], how long a value is along an axis: known once the shapes are."""
    dims = trips.op("Shape", [name], f"shape.{name}", outer.frames)
    return str(trips.op("Gather", [dims, trips.constant(f"axis{axis}.of", INT64, axis)], f"length.{name}", outer.frames, axis=0))
