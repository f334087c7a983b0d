"""Loops and Scans that carry a cache: updated where it lies in every trip, every position checked before the first write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tenonnx import CapacityError, CheckError, Session, ShapesContext, check, plan, writable
from tenonnx.plan import Storage
from tests.loops import spoil
from tests.models import BOOL, FLOAT, INT64, Graph
from tests.oracle.functional import evaluate

DIMS = [2, 8, 3]


def outer() -> Graph:
    g = Graph()
    g.input("cache", FLOAT, DIMS, mutable=True)
    g.input("values", FLOAT, [2, 1, 3])
    g.input("position", INT64, [])
    return g


def loop_body(condition: str = "kept") -> Graph:
    """Row position + i of the carried cache is the carried sum; stacked: the row before and the trip."""
    b = Graph()
    for name, kind, dims in (("i", INT64, []), ("go", BOOL, []), ("c", FLOAT, DIMS), ("s", FLOAT, [2, 1, 3])):
        b.input(name, kind, dims)
    b.node("Add", ["position", "i"], "p")
    b.node("Add", ["s", "values"], "next")
    b.update("c", "next", "p", "u")
    b.node("Neg", ["s"], "row")
    if condition == "kept":
        b.node("Identity", ["go"], "on")
    else:
        b.node("Less", ["i", "last"], "on")
    b.output("on", BOOL, [])
    b.output("u", FLOAT, DIMS, alias_of="c")
    b.output("next", FLOAT, [2, 1, 3])
    if condition == "kept":
        b.output("row", FLOAT, [2, 1, 3])
        b.output("i", INT64, [])
    return b


def loop_model(trips: int = 3) -> Any:
    g = outer()
    g.constant("trips", np.array(trips, np.int64))
    g.constant("always", np.array(True))  # the reference evaluator takes an absent condition for a false one
    g.holding("Loop", ["trips", "always", "cache", "values"], "updated", "sum", "rows", "numbers", body=loop_body())
    g.node("Abs", ["updated"], "after")
    g.output("updated", FLOAT, DIMS, alias_of="cache")
    g.output("sum", FLOAT, [2, 1, 3])
    g.output("rows", FLOAT, [trips, 2, 1, 3])
    g.output("numbers", INT64, [trips])
    g.output("after", FLOAT, DIMS)
    return g.model


def until_model(trips: int = 4) -> Any:
    """Ends after trip ``last``."""
    g = outer()
    g.input("last", INT64, [])
    g.input("begin", BOOL, [])
    g.constant("trips", np.array(trips, np.int64))
    g.holding("Loop", ["trips", "begin", "cache", "values"], "updated", "sum", body=loop_body("until"))
    g.output("updated", FLOAT, DIMS, alias_of="cache")
    g.output("sum", FLOAT, [2, 1, 3])
    return g.model


def numbers(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(np.float32)


def inputs(**more: Any) -> dict[str, np.ndarray]:
    return {"cache": numbers(*DIMS), "values": numbers(2, 1, 3, seed=2), "position": np.array(2), **more}


def check_run(model: Any, given: dict[str, np.ndarray], threads: int = 2) -> None:
    expected = evaluate(model, given)
    cache = given["cache"].copy()
    found = Session(model, threads=threads).run({**given, "cache": writable(cache)})
    for name, value in expected.items():
        # The reference evaluator joins rows along an axis that they have, instead of stacking them along a new one.
        np.testing.assert_array_equal(found[name], value.reshape(found[name].shape), err_msg=name)
    for output in model.graph.output:
        assert (found[output.name] is cache) == bool(output.alias_of)


@pytest.mark.parametrize("trips", [1, 2, 5])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_loop_of_known_trips(trips: int, threads: int) -> None:
    model = loop_model(trips)
    assert check(model) == []
    check_run(model, inputs(), threads)
    shapes = ShapesContext(model)
    assert shapes["rows"].dims == (trips, 2, 1, 3) and shapes.alias_root("updated") == "cache"


def test_a_loop_without_a_condition() -> None:
    model = loop_model(3)
    given = inputs()
    expected = evaluate(model, given)
    next(node for node in model.graph.node if node.op_type == "Loop").input[1] = ""
    found = Session(model).run({**given, "cache": writable(given["cache"])})
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value.reshape(found[name].shape))


def test_no_trip_copies_the_cache() -> None:
    found = plan(loop_model(5))
    rows = [found.values[index] for index, _ in found.aliases]
    assert len(rows) >= 5 and all(found.values[row.root].storage is Storage.INPUT for row in rows)
    assert not any(row.dims == tuple(DIMS) and row.storage is Storage.ARENA for row in found.values)


def test_a_loop_of_no_trips() -> None:
    g = outer()
    g.constant("trips", np.array(0, np.int64))
    body = loop_body()
    del body.body.output[3:]
    g.holding("Loop", ["trips", "", "cache", "values"], "updated", "sum", body=body)
    g.output("updated", FLOAT, DIMS, alias_of="cache")
    g.output("sum", FLOAT, [2, 1, 3])
    check_run(g.model, inputs())


@pytest.mark.parametrize("last", [-1, 0, 1, 2, 9])
@pytest.mark.parametrize("begin", [True, False])
def test_a_loop_that_a_condition_ends(last: int, begin: bool) -> None:
    assert check(until_model()) == []
    check_run(until_model(), inputs(last=np.array(last), begin=np.array(begin)))


def test_the_last_trip_past_the_capacity_fails_before_the_first_writes() -> None:
    for model, more in ((loop_model(3), {}), (until_model(), {"last": np.array(9), "begin": np.array(True)})):
        given = inputs(position=np.array(6), **more)
        before = given["cache"].copy()
        with pytest.raises(CapacityError, match="position 8"):
            Session(model).run({**given, "cache": writable(given["cache"])})
        np.testing.assert_array_equal(given["cache"], before)
    check_run(until_model(), inputs(position=np.array(6), last=np.array(0), begin=np.array(True)))


@pytest.mark.parametrize("axis", [1, -2, 0])
@pytest.mark.parametrize("directions", [(0, 0), (1, 0), (0, 1)])
def test_a_scan(axis: int, directions: tuple[int, int]) -> None:
    b = Graph()
    b.input("c", FLOAT, DIMS)
    b.input("p", INT64, [])
    b.input("x", FLOAT, [2, 3])
    b.constant("one", np.array(1, np.int64))
    b.constant("axis", np.array([1], np.int64))
    b.node("Unsqueeze", ["x", "axis"], "row")
    b.update("c", "row", "p", "u")
    b.node("Add", ["p", "one"], "q")
    b.node("Neg", ["x"], "y")
    for name in ("u", "q", "y"):
        b.output(name, INT64 if name == "q" else FLOAT, None)
    shape = [2, 3]
    shape.insert(axis % 3, 4)
    g = Graph()
    g.input("cache", FLOAT, DIMS, mutable=True)
    g.input("position", INT64, [])
    g.input("rows", FLOAT, shape)
    g.holding("Scan", ["cache", "position", "rows"], "updated", "end", "ys", body=b)
    node = g.body.node[0]
    node.attribute.add(name="num_scan_inputs", type=2, i=1)
    node.attribute.add(name="scan_input_axes", type=7, ints=[axis])
    node.attribute.add(name="scan_input_directions", type=7, ints=directions[:1])
    node.attribute.add(name="scan_output_directions", type=7, ints=directions[1:])
    g.output("updated", FLOAT, DIMS, alias_of="cache")
    g.output("end", INT64, [])
    g.output("ys", FLOAT, [4, 2, 3])
    assert check(g.model) == []
    rows, cache = numbers(*shape, seed=3), numbers(*DIMS)
    expected = cache.copy()  # the reference evaluator scans along axis 0, forwards, alone
    ordered = np.moveaxis(rows, axis, 0)[:: -1 if directions[0] else 1]
    for number, row in enumerate(ordered):
        expected[:, 3 + number] = row
    found = Session(g.model).run({"cache": writable(cache), "position": np.array(3), "rows": rows})
    np.testing.assert_array_equal(found["updated"], expected)
    np.testing.assert_array_equal(found["ys"], -ordered[:: -1 if directions[1] else 1])
    assert found["end"] == 7


def test_a_loop_in_a_branch_of_a_function_called_twice() -> None:
    from tests.runtime.test_functions import add, function

    g = outer()
    g.input("flag", BOOL, [])
    body, made = function("Fill", ["c", "values", "position", "flag"], ["u"])
    then = Graph()
    then.constant("trips", np.array(2, np.int64))
    then.constant("always", np.array(True))
    then.holding("Loop", ["trips", "always", "c", "values"], "filled", "sum", body=_without_rows())
    then.output("filled", FLOAT, None)
    other = Graph()
    other.output("c", FLOAT, None)
    body.holding("If", ["flag"], "u", then_branch=then, else_branch=other)
    add(g, body, made)
    g.constant("zero", np.array(0, np.int64))
    g.node("Fill", ["cache", "values", "position", "flag"], "one", domain="local")
    g.node("Fill", ["one", "values", "zero", "flag"], "two", domain="local")
    g.output("two", FLOAT, DIMS, alias_of="cache")
    assert check(g.model) == []
    for flag in (True, False):
        check_run(g.model, inputs(flag=np.array(flag)))


def _without_rows() -> Graph:
    body = loop_body()
    del body.body.output[3:]
    return body


def spoiled(how: str) -> Any:
    return spoil(loop_model(), how)


@pytest.mark.parametrize(
    ("how", "rule"),
    [
        ("a body that breaks the chain", "loop-carried"),
        ("an update of the outer cache", "alias-fork"),
        ("an outer reader after the loop", "alias-reader"),
        ("READ_WRITE on a formal that is no cache", "formal-inputs"),
        ("output_alias of the sum", "body-alias"),
        ("too few inputs", "graph-names"),
    ],
)
def test_loops_that_break_a_rule(how: str, rule: str) -> None:
    found = check(spoiled(how))
    assert rule in {diagnostic.rule for diagnostic in found}, found
    with pytest.raises(CheckError):
        Session(spoiled(how))


def test_annotations_of_a_loop_that_are_true() -> None:
    model = loop_model()
    (loop,) = (node for node in model.graph.node if node.op_type == "Loop")
    loop.output_alias.add(output_index=0, input_index=2, kind=1)
    loop.attribute[0].g.input[2].access = 1
    assert check(model) == []
