"""Loop and Scan in a flat graph: the body once per trip, each trip with names of its own.

Where the number of trips is known from the model, that is; else the body stands there once, see ``rolled``. A condition that
the body computes guards each trip; values that pass from trip to trip keep what they were where a trip does not run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tenonnx.errors import CheckError, UnsupportedError
from tenonnx.schema.graph import Frames, Guard, Scope, attributes
from tenonnx.schema.inline import Place
from tenonnx.schema.messages import AttributeProto, NodeProto
from tenonnx.schema.rolled import Rolled, scanned_length

if TYPE_CHECKING:
    from tenonnx.schema.flatten import Flat

INT64, BOOL = 7, 9
MOST_UNROLLED = 20_000  # nodes of all trips; a longer loop stays one


@dataclass
class Trips:
    """A loop being put into the flat graph: ``state`` passes from trip to trip, ``rows`` are stacked after the last."""

    flat: Flat
    node: Any
    where: str
    body: Scope
    outer: Place
    path: str
    state: list[str]
    shared: dict[str, str]  # names of the body's own constants, the same in all trips
    rows: list[list[str]] = field(default_factory=list)

    def constant(self, name: str, elem_type: int, value: int, dims: Sequence[int] = ()) -> str:
        """An initializer of the flat graph, made once."""
        made = self.flat.constants.get(f"{self.path}/{name}")
        if made is None:
            made = self.flat.renamer.define(self.outer.inside(self.path), name)
            self.flat.constants[f"{self.path}/{name}"] = made
            size = (8 if elem_type == INT64 else 1) * math.prod(dims)
            data = value.to_bytes(size, "little", signed=elem_type == INT64)
            self.flat.extra.initializer.add(name=made, data_type=elem_type, dims=dims, raw_data=data)
        return made

    def op(self, op_type: str, inputs: list[str], name: str, frames: Frames, domain: str = "", **ints: int) -> str:
        """A node added to the flat graph; the name of its output."""
        made = self.flat.renamer.define(self.outer.inside(self.path), name)
        node = NodeProto(name=made, op_type=op_type, domain=domain, input=inputs, output=[made])
        node.attribute.extend(AttributeProto(name=key, type=AttributeProto.INT, i=value) for key, value in ints.items())
        self.flat.add(node, frames)
        return made

    def scalar(self, name: str, label: str, frames: Frames) -> str:
        """A value of one element without its axes."""
        dims = self.constant("scalar", INT64, 0, (0,))
        return self.op("Reshape", [name, dims], label, frames)

    def run(self, number: int, formals: list[str], frames: Frames) -> list[str]:
        """Add the nodes of one trip; the names of the body's outputs in it."""
        place = self.outer.inside(f"{self.path}[{number}]")
        place.frames = frames
        place.names.update(self.shared)
        place.names.update(zip(self.body.inputs, formals, strict=True))
        self.flat.body(self.body, place)
        self.flat.annotations(self.body, place)
        return [place.of(name) for name in self.body.outputs]

    def finish(self, initial: list[str], stacked: list[tuple[int, bool]]) -> None:
        """Name the outputs: what passed through all trips, then the rows stacked along an axis, perhaps backwards."""
        outputs = list(self.node.output)
        for name, first, last in zip(outputs, initial, self.state, strict=False):
            self.flat.carried.append((self.where, first, last))
            if name:
                self.flat.passed(self.flat.renamer.define(self.outer, name), last, self.outer.frames)
        for index, (name, (axis, backwards)) in enumerate(zip(outputs[len(self.state) :], stacked, strict=False)):
            if not name:
                continue
            if not self.rows:
                raise UnsupportedError(f"{self.where}: stacks no rows in {name!r}; drop the output")
            axes = self.constant(f"axis{axis}", INT64, axis, (1,))
            rows = [row[index] for row in self.rows]
            parts = [
                self.op("Unsqueeze", [row, axes], f"row{number}.{index}", self.outer.frames) for number, row in enumerate(rows)
            ]
            made = self.op("Concat", parts[::-1] if backwards else parts, f"rows{index}", self.outer.frames, axis=axis)
            self.flat.passed(self.flat.renamer.define(self.outer, name), made, self.outer.frames)
        declared = NodeProto(input=[self.outer.of(name) for name in self.node.input], output_alias=self.node.output_alias)
        declared.output.extend(self.outer.of(name) for name in outputs)
        self.flat.claim(declared, self.where)


def _begin(flat: Flat, node: Any, where: str, body: Scope, outer: Place, state: list[str]) -> Trips:
    path = f"{outer.child(node)}.body"
    inner = outer.inside(path)
    flat.bring_constants(body, inner)
    shared = {name: inner.of(name) for name in (*body.initializers, *body.structs)}
    return Trips(flat, node, where, body, outer, path, state, shared)


def number_of(tensor: Any) -> int | None:
    """The value of an INT64 or BOOL tensor of one element, None for any other."""
    if tensor.data_type not in (INT64, BOOL) or tensor.external_data or math.prod(tensor.dims) != 1:
        return None
    if tensor.HasField("raw_data"):
        return int.from_bytes(tensor.raw_data, "little", signed=True)
    held = tensor.int64_data if tensor.data_type == INT64 else tensor.int32_data
    return int(held[0]) if held else None


def constant_number(node: Any) -> int | None:
    """The same of a Constant node."""
    given = {attribute.name: attribute for attribute in node.attribute}
    if "value_int" in given:
        return int(given["value_int"].i)
    return number_of(given["value"].t) if "value" in given else None


def unroll_loop(flat: Flat, node: Any, where: str, body: Scope, outer: Place) -> None:
    """Put a Loop into the flat graph.

    ``UnsupportedError`` where rows are stacked whose number is not known from the model.
    """
    given = [outer.of(name) for name in node.input]
    state = given[2:]
    stacked = len(body.outputs) - 1 - len(state)
    if len(given) < 2 or len(body.inputs) != len(given) or stacked < 0 or len(node.output) > len(body.outputs) - 1:
        raise CheckError(f"{where}: a body of {len(body.inputs)} inputs and {len(body.outputs)} outputs does not fit the node")
    count = flat.number(given[0]) if given[0] else None
    trips = _begin(flat, node, where, body, outer, state)
    if count is None or count < 0 or count * len(body.nodes) > MOST_UNROLLED:
        _roll_loop(trips, given[0], given[1], stacked)
        return
    condition = trips.constant("always", BOOL, 1) if not given[1] else given[1]
    guarded = flat.number(condition) != 1 or not _keeps_condition(body)
    if guarded and stacked:
        raise UnsupportedError(f"{where}: stacks rows until a condition ends it; how many is not known, so drop the condition")
    for number in range(count):
        frames = (*outer.frames, Guard(condition, True)) if guarded else outer.frames
        formals = [trips.constant(f"trip{number}", INT64, number), condition, *trips.state]
        results = trips.run(number, formals, frames)
        trips.rows.append(results[1 + len(state) :])
        after = results[1 : 1 + len(state)]
        if guarded:
            after = [
                flat.merged(f"{trips.path}[{number}].{index}", (condition, new, old), outer.frames)
                for index, (new, old) in enumerate(zip(after, trips.state, strict=True))
            ]
            never = trips.constant("never", BOOL, 0)
            condition = flat.merged(f"{trips.path}[{number}].on", (condition, results[0], never), outer.frames)
        trips.state = after
    trips.finish(state, [(0, False)] * stacked)


def _roll_loop(trips: Trips, count: str, condition: str, stacked: int) -> None:
    if stacked and any(list(trips.node.output)[len(trips.state) :]):
        raise UnsupportedError(
            f"{trips.where}: updates a cache and stacks rows, but how many is not known from the model; make the number of trips "
            "an initializer, or carry the rows in a cache of their own"
        )
    frames = trips.outer.frames
    bound = trips.scalar(count, "count", frames) if count else ""
    Rolled(trips, bound, trips.scalar(condition, "begin", frames) if condition else "").roll([])


def _keeps_condition(body: Scope) -> bool:
    """Whether the body's condition is the one it was given, or true."""
    name = body.outputs[0]
    while name in body.producer and body.nodes[body.producer[name].node].op_type == "Identity":
        name = body.nodes[body.producer[name].node].input[0]
    if name == body.inputs[1]:
        return True
    maker = body.nodes[body.producer[name].node] if name in body.producer else None
    if maker is not None:
        return maker.op_type == "Constant" and constant_number(maker) == 1
    return name in body.initializers and number_of(body.initializers[name]) == 1


def unroll_scan(flat: Flat, node: Any, where: str, body: Scope, outer: Place) -> None:
    """Put a Scan into the flat graph; ``UnsupportedError`` where rows are stacked whose number is not declared."""
    given = attributes(node)
    scanned = given.get("num_scan_inputs", 0)
    names = [outer.of(name) for name in node.input]
    state = names[: len(names) - scanned]
    stacked = len(body.outputs) - len(state)
    axes, directions = given.get("scan_input_axes", [0] * scanned), given.get("scan_input_directions", [0] * scanned)
    out_axes, out_directions = given.get("scan_output_axes", [0] * stacked), given.get("scan_output_directions", [0] * stacked)
    fits = 0 < scanned <= len(names) == len(body.inputs) and stacked >= 0 and len(axes) == len(directions) == scanned
    if not fits or len(out_axes) != stacked or len(out_directions) != stacked or len(node.output) > len(body.outputs):
        raise CheckError(f"{where}: a body of {len(body.inputs)} inputs and {len(body.outputs)} outputs does not fit the node")
    lengths = (flat.length(name, axis) for name, axis in zip(names[len(state) :], axes, strict=True))
    counts = {length for length in lengths if length is not None}
    if len(counts) > 1:
        raise CheckError(f"{where}: scans values of {sorted(counts)} rows; give all of them one length")
    count = next(iter(counts), None)
    trips = _begin(flat, node, where, body, outer, state)
    if count is None or count * len(body.nodes) > MOST_UNROLLED:
        if any(list(node.output)[len(state) :]):
            raise UnsupportedError(
                f"{where}: updates a cache and stacks rows, and the length of what it scans is not declared; give it a number"
            )
        length = scanned_length(trips, names[len(state)], axes[0], outer)
        Rolled(trips, length, "").roll(list(zip(names[len(state) :], axes, map(bool, directions), strict=True)))
        return
    for number in range(count):
        rows = [
            _row(trips, name, axis, count - 1 - number if backwards else number)
            for name, axis, backwards in zip(names[len(state) :], axes, directions, strict=True)
        ]
        results = trips.run(number, [*trips.state, *rows], outer.frames)
        trips.state = results[: len(state)]
        trips.rows.append(results[len(state) :])
    trips.finish(state, [(axis, bool(backwards)) for axis, backwards in zip(out_axes, out_directions, strict=True)])


def _row(trips: Trips, name: str, axis: int, number: int) -> str:
    """One row of what is scanned: a view."""
    bounds = [trips.constant(f"at{value}", INT64, value, (1,)) for value in (number, number + 1, axis)]
    part = trips.op("Slice", [name, *bounds], f"part{number}.{name}", trips.outer.frames)
    return trips.op("Squeeze", [part, bounds[2]], f"row{number}.{name}", trips.outer.frames)


LOOPS: dict[str, Callable[[Flat, Any, str, Scope, Place], None]] = {"Loop": unroll_loop, "Scan": unroll_scan}
