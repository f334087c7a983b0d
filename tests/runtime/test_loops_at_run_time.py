"""Loops whose number of trips the run says: caches updated where they lie, all trips checked before the first write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tenonnx import AliasError, CapacityError, CheckError, Session, ShapesContext, UnsupportedError, check, plan, writable
from tenonnx.plan import ExecutionPlan, Storage
from tenonnx.plan.verify import verify
from tenonnx.runtime import ledger
from tests.loops import spoil
from tests.models import BOOL, FLOAT, INT64, Graph
from tests.oracle.functional import evaluate
from tests.runtime.test_loops import DIMS, check_run, inputs, loop_body, numbers, outer

TRUE = np.array(True)


def body_of(condition: str = "kept") -> Graph:
    body = loop_body(condition)
    del body.body.output[3:]
    return body


def with_loop(body: Graph, given: list[str], *outputs: str) -> Graph:
    g = outer()
    for name, kind in (("trips", INT64), ("begin", BOOL), ("last", INT64)):
        g.input(name, kind, [])
    g.holding("Loop", [*given, "cache", "values"], "updated", *outputs, body=body)
    g.output("updated", FLOAT, DIMS, alias_of="cache")
    return g


def loop_model(condition: str = "kept", given: tuple[str, ...] = ("trips", "begin")) -> Any:
    g = with_loop(body_of(condition), list(given), "sum")
    g.node("Abs", ["updated"], "after")
    g.output("sum", FLOAT, [2, 1, 3])
    g.output("after", FLOAT, DIMS)
    return g.model


def feeds(trips: int = 3, begin: bool = True, last: int = 9, **more: Any) -> dict[str, np.ndarray]:
    return inputs(trips=np.array(trips), begin=np.array(begin), last=np.array(last), **more)


# ---- As many trips as the run says


@pytest.mark.parametrize("trips", [-2, 0, 1, 2, 6])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_loop_runs_as_often_as_its_input_says(trips: int, threads: int) -> None:
    assert check(loop_model()) == []
    check_run(loop_model(), feeds(trips), threads)
    check_run(loop_model(), feeds(trips, begin=False), threads)


@pytest.mark.parametrize("last", [-1, 0, 3])
def test_a_condition_ends_a_loop(last: int) -> None:
    check_run(loop_model("until"), feeds(5, last=last))
    check_run(loop_model("until", ("trips", "begin")), feeds(2, last=last))


def test_a_loop_without_a_count_runs_while_its_condition_holds() -> None:
    model, given = loop_model("until", ("", "begin")), feeds(last=2)
    expected = evaluate(loop_model("until"), {**given, "trips": np.array(6)})
    found = Session(model).run({**given, "cache": writable(given["cache"])})
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


def test_a_loop_without_a_condition_runs_its_count() -> None:
    given = feeds(4)
    expected = evaluate(loop_model(), given)
    found = Session(loop_model(given=("trips", ""))).run({**given, "cache": writable(given["cache"])})
    np.testing.assert_array_equal(found["updated"], expected["updated"])


def test_one_session_runs_another_number_of_trips_each_time() -> None:
    session, cache = Session(loop_model(), threads=2), numbers(*DIMS)
    for trips in (3, 0, 5, 1):
        given = feeds(trips, cache=cache.copy())
        expected = evaluate(loop_model(), given)["updated"]
        session.run({**given, "cache": writable(cache)})
        np.testing.assert_array_equal(cache, expected)


def test_types_and_storage_pass_through_the_loop() -> None:
    shapes = ShapesContext(loop_model())
    assert shapes.alias_root("updated") == "cache" and shapes.alias_class("cache")[-1] == "updated"
    assert shapes["updated"] == shapes["cache"] and shapes["sum"].dims == (2, 1, 3)


# ---- In place


def large_model(capacity: int) -> Any:
    g, b = Graph(), Graph()
    g.input("cache", FLOAT, [capacity, 64], mutable=True)
    g.input("row", FLOAT, [1, 64])
    g.input("trips", INT64, [])
    g.constant("always", np.array(True))
    for name, kind, dims in (("i", INT64, []), ("go", BOOL, []), ("c", FLOAT, [capacity, 64])):
        b.input(name, kind, dims)
    b.update("c", "row", "i", "u")
    b.node("Identity", ["go"], "on")
    b.output("on", BOOL, [])
    b.output("u", FLOAT, None)
    g.holding("Loop", ["trips", "always", "cache"], "updated", body=b)
    g.output("updated", FLOAT, [capacity, 64], alias_of="cache")
    return g.model


def test_no_trip_copies_or_allocates_a_cache() -> None:
    small, large = plan(large_model(8)), plan(large_model(1 << 20))
    assert large.peak_bytes == small.peak_bytes < 1024 and large.extra_cache_bytes == 0
    assert not any(row.dims == (1 << 20, 64) and row.storage is not Storage.ALIAS for row in large.values[1:])
    session, cache = Session(large_model(4096), threads=1), np.zeros((4096, 64), np.float32)
    row = np.ones((1, 64), np.float32)
    session.run({"cache": writable(cache), "row": row, "trips": np.array(1)})
    before = {name: account["total"] for name, account in ledger().items()}
    session.run({"cache": writable(cache), "row": row, "trips": np.array(4096)})
    assert {name: account["total"] for name, account in ledger().items()} == before
    assert (cache == 1).all()


def test_the_valid_length_moves_by_the_rows_of_all_trips() -> None:
    g, b = Graph(), Graph()
    g.input("cache", FLOAT, [1, "capacity", 2], mutable=True)
    g.input("position", INT64, [])
    g.input("row", FLOAT, [1, 1, 2])
    g.input("trips", INT64, [])
    for name, kind, dims in (("i", INT64, []), ("go", BOOL, []), ("c", FLOAT, [1, "capacity", 2])):
        b.input(name, kind, dims)
    b.node("Add", ["position", "i"], "p")
    b.update("c", "row", "p", "u")
    b.node("Identity", ["go"], "on")
    b.output("on", BOOL, [])
    b.output("u", FLOAT, None)
    g.update("cache", "row", "position", "first")
    g.holding("Loop", ["trips", "", "first"], "updated", body=b)
    g.output("updated", FLOAT, [1, "capacity", 2], alias_of="cache")
    session = Session(g.model)
    cache = session.new_cache(context=8)
    for trips, length in ((3, 3), (0, 4), (4, 8)):
        session.run({"row": np.ones((1, 1, 2), np.float32), "trips": np.array(trips)}, cache=cache)
        assert cache.length == length


# ---- Every trip is checked before the first writes


def test_a_last_trip_past_the_capacity_fails_before_the_first_writes() -> None:
    for condition, trips, last in (("kept", 4, 0), ("until", 9, 3)):
        given = feeds(trips, last=last, position=np.array(5))
        before = given["cache"].copy()
        with pytest.raises(CapacityError, match=r"position 8 \+ 1 new rows.*capacity of 8"):
            Session(loop_model(condition)).run({**given, "cache": writable(given["cache"])})
        np.testing.assert_array_equal(given["cache"], before)
    check_run(loop_model("until"), feeds(9, last=2, position=np.array(5)))  # the condition ends it in time


def test_an_update_before_the_loop_waits_for_its_checks() -> None:
    g = with_loop(body_of(), ["trips", "begin"], "sum")
    model = g.model
    (loop,) = (node for node in model.graph.node if node.op_type == "Loop")
    g.constant("zero", np.array(0, np.int64))
    g.update("cache", "values", "zero", "earlier")
    loop.input[2] = "earlier"
    update = model.graph.node[-1]
    nodes = [type(node).FromString(node.SerializeToString()) for node in (update, loop)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    given = feeds(3, position=np.array(6))
    before = given["cache"].copy()
    with pytest.raises(CapacityError, match="position 8"):
        Session(model).run({**given, "cache": writable(given["cache"])})
    np.testing.assert_array_equal(given["cache"], before)
    check_run(model, feeds(3, position=np.array(4)))


def test_two_loops_are_checked_before_either_writes() -> None:
    g = with_loop(body_of(), ["trips", "begin"], "sum")
    second = body_of()
    g.holding("Loop", ["last", "begin", "updated", "sum"], "twice", "total", body=second)
    g.body.output[0].name = "twice"
    g.output("total", FLOAT, None)
    check_run(g.model, feeds(3, last=4))
    given = feeds(2, last=7)
    before = given["cache"].copy()
    with pytest.raises(CapacityError, match="position 8"):
        Session(g.model).run({**given, "cache": writable(given["cache"])})
    np.testing.assert_array_equal(given["cache"], before)


# ---- What passes from trip to trip


def two_values(swap: bool) -> Any:
    """Values a and b, which change places in each trip or stay; row position + i becomes a."""
    g, b = outer(), Graph()
    g.input("trips", INT64, [])
    g.input("other", FLOAT, [2, 1, 3])
    g.constant("always", np.array(True))
    for name, kind, dims in (
        ("i", INT64, []),
        ("go", BOOL, []),
        ("c", FLOAT, DIMS),
        ("a", FLOAT, [2, 1, 3]),
        ("b", FLOAT, [2, 1, 3]),
    ):
        b.input(name, kind, dims)
    b.node("Add", ["position", "i"], "p")
    b.update("c", "a", "p", "u")
    for name in ("go", "u", *(("b", "a") if swap else ("a", "b"))):
        b.output(name, FLOAT, None)
    g.holding("Loop", ["trips", "always", "cache", "values", "other"], "updated", "x", "y", body=b)
    g.output("updated", FLOAT, DIMS, alias_of="cache")
    g.output("x", FLOAT, None)
    g.output("y", FLOAT, None)
    return g.model


@pytest.mark.parametrize("swap", [True, False])
@pytest.mark.parametrize("trips", [0, 1, 4, 5])
def test_values_that_change_places(swap: bool, trips: int) -> None:
    given = inputs(trips=np.array(trips), other=numbers(2, 1, 3, seed=5))
    cache = given["cache"].copy()
    found = Session(two_values(swap)).run({**given, "cache": writable(given["cache"])})
    a, b = given["values"], given["other"]
    for trip in range(trips):
        cache[:, 2 + trip] = a[:, 0]
        a, b = (b, a) if swap else (a, b)
    for name, value in (("updated", cache), ("x", a), ("y", b)):
        np.testing.assert_array_equal(found[name], value)


def test_a_part_of_the_old_cache_that_the_body_reads_is_copied_once() -> None:
    body = body_of()
    body.body.node[1].input[1] = "old"  # next = s + row 0 of the cache as it was before
    g = with_loop(body, ["trips", "begin"], "sum")
    for name, bound in (("from", 0), ("to", 1), ("axis", 1)):
        g.constant(name, np.array([bound], np.int64))
    g.node("Slice", ["cache", "from", "to", "axis"], "old")
    nodes = list(g.body.node)
    del g.body.node[:]
    g.body.node.extend(reversed(nodes))
    for trips in (0, 1, 4):
        check_run(g.model, feeds(trips, position=np.array(0)))  # the first trip overwrites what the later ones read
    copies = [step for step in plan(g.model).steps if step.kernel == "copy" and step.label.startswith("copy of old")]
    assert len(copies) == 1 and not copies[0].guards


def test_operators_of_onnxruntime_in_a_body() -> None:
    body = body_of()
    body.node("Sign", ["next"], "signs")
    body.body.output[2].name = "signs"
    for trips in (0, 3):
        check_run(with_loop(body, ["trips", "begin"], "sum").model, feeds(trips))


def test_a_position_that_onnxruntime_computes() -> None:
    body = body_of()
    body.constant("seven", np.array(7, np.int64))
    body.body.node[0].output[0] = "p0"
    nodes = list(body.body.node)
    del body.body.node[:]
    body.body.node.append(nodes[0])
    body.node("Mod", ["p0", "seven"], "p")
    body.body.node.extend(nodes[1:])
    check_run(with_loop(body, ["trips", "begin"], "sum").model, feeds(6, position=np.array(4)))  # 4, 5, 6, 0, 1, 2


def test_a_branch_in_a_body_updates_or_not() -> None:
    body = body_of()
    body.constant("two", np.array(2, np.int64))
    nodes = list(body.body.node)
    add, following, update, _, on = nodes
    del body.body.node[:]
    body.body.node.extend([add, following, on])
    body.node("Less", ["i", "two"], "early")
    then, other = Graph(), Graph()
    then.body.node.append(update)
    then.output("u", FLOAT, None)
    other.output("c", FLOAT, None)
    body.holding("If", ["early"], "kept", then_branch=then, else_branch=other)
    body.body.output[1].name = "kept"
    model = with_loop(body, ["trips", "begin"], "sum").model
    for trips in (1, 5):
        check_run(model, feeds(trips))
    check_run(model, feeds(20, position=np.array(6)))  # later trips write nothing, so need no room


@pytest.mark.parametrize("flag", [True, False])
def test_a_branch_at_the_begin_of_a_body_does_not_end_the_loop(flag: bool) -> None:
    body, then, other = body_of(), Graph(), Graph()
    add, following, update, _, on = body.body.node
    kept = [type(node).FromString(node.SerializeToString()) for node in (following, on)]
    then.body.node.extend([add, update])
    then.body.node[1].input[1] = "s"
    then.output("u", FLOAT, None)
    other.output("c", FLOAT, None)
    del body.body.node[:]
    body.holding("If", ["flag"], "kept", then_branch=then, else_branch=other)
    body.body.node.extend(kept)
    body.body.output[1].name = "kept"
    g = with_loop(body, ["trips", "begin"], "sum")
    g.input("flag", BOOL, [])
    g.output("sum", FLOAT, None)
    check_run(g.model, feeds(3, flag=np.array(flag)))


def test_what_no_trip_changes_is_there_in_every_trip() -> None:
    """``b`` is read early in a trip, and nothing that the trip makes later takes its place."""
    model = two_values(swap=False)
    (loop,) = (node for node in model.graph.node if node.op_type == "Loop")
    body = loop.attribute[0].g
    early = body.node.add(op_type="Add", input=["a", "b"], output=["early"])
    update = body.node[1]
    update.input[1] = "early"
    for name, source in (("later", "u"), ("latest", "later")):
        body.node.add(op_type="Neg", input=[source], output=[name])
    body.node.add(op_type="Add", input=["later", "latest"], output=["wide"])
    body.node.add(op_type="Slice", input=["wide", "from", "to", "axis"], output=["a.next"])
    for name, number in (("from", 0), ("to", 1), ("axis", 1)):
        body.initializer.add(name=name, data_type=INT64, dims=[1], raw_data=number.to_bytes(8, "little"))
    nodes = [type(node).FromString(node.SerializeToString()) for node in (early, *body.node[:2], *body.node[3:])]
    del body.node[:]
    body.node.extend(nodes)
    body.output[2].name = "a.next"
    given = inputs(trips=np.array(4), other=numbers(2, 1, 3, seed=5))
    del model.graph.output[2]
    check_run(model, given)


def test_regions_of_a_body_whose_checks_need_one_of_them() -> None:
    body = body_of()
    body.constant("seven", np.array(7, np.int64))
    nodes = {node.output[0]: node for node in body.body.node}
    nodes["p"].output[0] = "p0"
    nodes["u"].input[1] = "signs"
    copies = {name: type(node).FromString(node.SerializeToString()) for name, node in nodes.items()}
    del body.body.node[:]
    body.body.node.append(copies["p"])
    body.node("Mod", ["p0", "seven"], "p")
    body.node("ReduceMax", ["c"], "most", keepdims=0)
    body.body.node.append(copies["next"])
    body.node("Add", ["next", "most"], "signs")
    body.body.node.extend([copies["u"], copies["on"]])
    check_run(with_loop(body, ["trips", "begin"], "sum").model, feeds(6, position=np.array(4)))


@pytest.mark.parametrize("taken", [True, False])
def test_a_loop_in_a_branch(taken: bool) -> None:
    g, then, other = outer(), Graph(), Graph()
    for name, kind in (("trips", INT64), ("begin", BOOL), ("flag", BOOL)):
        g.input(name, kind, [])
    then.holding("Loop", ["trips", "begin", "cache", "values"], "filled", "sum", body=body_of())
    then.output("filled", FLOAT, None)
    other.output("cache", FLOAT, None)
    g.holding("If", ["flag"], "updated", then_branch=then, else_branch=other)
    g.output("updated", FLOAT, DIMS, alias_of="cache")
    assert check(g.model) == []
    check_run(g.model, inputs(trips=np.array(3), begin=TRUE, flag=np.array(taken)))
    if not taken:  # nor are its trips checked
        check_run(g.model, inputs(trips=np.array(99), begin=TRUE, flag=np.array(taken)))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("backwards", [0, 1])
def test_a_scan_of_rows_whose_number_comes_with_their_shape(axis: int, backwards: int) -> None:
    b = Graph()
    for name, kind, dims in (("c", FLOAT, DIMS), ("p", INT64, []), ("x", FLOAT, [2, 3])):
        b.input(name, kind, dims)
    b.constant("one", np.array(1, np.int64))
    b.constant("axis", np.array([1], np.int64))
    b.node("Unsqueeze", ["x", "axis"], "row")
    b.update("c", "row", "p", "u")
    b.node("Add", ["p", "one"], "q")
    for name in ("u", "q"):
        b.output(name, FLOAT, None)
    g = Graph()
    g.input("cache", FLOAT, DIMS, mutable=True)
    g.input("position", INT64, [])
    g.input("rows", FLOAT, ["n" if index == axis else dim for index, dim in enumerate([2, 2, 3])] if axis else ["n", 2, 3])
    g.holding("Scan", ["cache", "position", "rows"], "updated", "end", body=b)
    node = g.body.node[0]
    node.attribute.add(name="num_scan_inputs", type=2, i=1)
    node.attribute.add(name="scan_input_axes", type=7, ints=[axis])
    node.attribute.add(name="scan_input_directions", type=7, ints=[backwards])
    g.output("updated", FLOAT, DIMS, alias_of="cache")
    g.output("end", INT64, [])
    assert check(g.model) == []
    session = Session(g.model)
    for count in (0, 1, 5):
        rows, cache = numbers(count, 2, 3, seed=3), numbers(*DIMS)
        expected = cache.copy()
        for number, row in enumerate(rows[:: -1 if backwards else 1]):
            expected[:, 3 + number] = row
        given = np.ascontiguousarray(np.moveaxis(rows, 0, axis))
        found = session.run({"cache": writable(cache), "position": np.array(3), "rows": given})
        np.testing.assert_array_equal(cache, expected)
        assert found["end"] == 3 + count


# ---- Refused, with what to do


def reading_outside() -> Any:
    body = body_of()
    body.node("ReduceMax", ["cache"], "most", keepdims=0)
    body.node("Add", ["next", "most"], "more")
    body.body.output[2].name = "more"
    return with_loop(body, ["trips", "begin"], "sum").model


def updating_outside() -> Any:
    body = body_of()
    body.body.node[2].input[0] = "cache"
    g = outer()
    for name, kind in (("trips", INT64), ("begin", BOOL)):
        g.input(name, kind, [])
    del body.body.input[2]
    del body.body.output[1]
    g.holding("Loop", ["trips", "begin", "values"], "sum", body=body)
    g.output("sum", FLOAT, None)
    return g.model


def nested() -> Any:
    inner = body_of()
    for value in inner.body.input:
        value.name = f"inner.{value.name}"
    for node in inner.body.node:
        for index, name in enumerate(node.input):
            node.input[index] = f"inner.{name}" if name in ("i", "go", "c", "s") else name
        node.output[0] = f"inner.{node.output[0]}"
        for index, name in enumerate(node.input):
            node.input[index] = f"inner.{name}" if name in ("p", "next") else name
    for output in inner.body.output:
        output.name, output.alias_of = f"inner.{output.name}", ""
    body = Graph()
    for name, kind, dims in (("i", INT64, []), ("go", BOOL, []), ("c", FLOAT, DIMS), ("s", FLOAT, [2, 1, 3])):
        body.input(name, kind, dims)
    body.holding("Loop", ["last", "go", "c", "s"], "u", "next", body=inner)
    for name in ("go", "u", "next"):
        body.output(name, FLOAT, None)
    return with_loop(body, ["trips", "begin"], "sum").model


def stacking() -> Any:
    return with_loop(loop_body(), ["trips", "begin"], "sum", "rows").model


def growing() -> Any:
    body = body_of()
    body.node("Concat", ["s", "s"], "wider", axis=1)
    body.body.output[2].name = "wider"
    return with_loop(body, ["trips", "begin"], "sum").model


def asking_the_cache(what: str) -> Any:
    body = body_of("until")
    body.constant("zero", np.array(0, np.int64))
    body.node("ReduceMax", ["u" if what == "the condition" else "c"], "most", keepdims=0)
    body.node("Cast", ["most"], "found", to=INT64)
    nodes = {node.output[0]: node for node in body.body.node}
    if what == "the condition":
        nodes["on"].input[0] = "found"
    else:
        nodes["p"].input[1] = "found"
    asked = ["most", "found"]
    order = [*asked, "p", "next", "u", "row", "on"] if what == "a position" else ["p", "next", "u", "row", *asked, "on"]
    del body.body.node[:]
    body.body.node.extend(nodes[name] for name in order)
    return with_loop(body, ["trips", "begin"], "sum").model


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            reading_outside,
            "carries the cache 'cache', and its body reads 'cache' of the graph around it.*read what the body carries",
        ),
        (updating_outside, "updates 'cache' of the graph around it; carry it from trip to trip"),
        (nested, "inside another loop, and neither number of trips is known.*make one an initializer"),
        (stacking, "stacks rows, but how many is not known.*make the number of trips an initializer"),
    ],
)
def test_a_loop_that_cannot_be_in_place_is_refused_at_load(make: Callable[[], Any], text: str) -> None:
    (found,) = check(make())
    assert found.kind == "limit" and found.severity == "error"
    with pytest.raises(UnsupportedError, match=text):
        Session(make())


@pytest.mark.parametrize("what", ["the condition", "a position"])
def test_trips_that_depend_on_the_cache_are_refused_before_any_runs(what: str) -> None:
    given = feeds()
    before = given["cache"].copy()
    with pytest.raises(UnsupportedError, match=r"is made from cache 'cache', which the loop updates.*pass positions and the"):
        Session(asking_the_cache(what)).run({**given, "cache": writable(given["cache"])})
    np.testing.assert_array_equal(given["cache"], before)


def test_a_value_that_grows_from_trip_to_trip_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"begins with .* of \[2, 1, 3\] and ends a trip with \[2, 2, 3\].*pad the value"):
        plan(growing())


def spoiled(how: str) -> Any:
    return spoil(loop_model(), how)


@pytest.mark.parametrize(
    ("how", "rule"),
    [
        ("a body that breaks the chain", "loop-carried"),
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


# ---- The verifier


def sound() -> ExecutionPlan:
    body = body_of("until")
    body.body.node[1].input[1] = "around"
    body.node("Neg", ["next"], "negated")
    body.body.output[2].name = "negated"
    g = with_loop(body, ["trips", "begin"], "sum")
    g.node("Abs", ["values"], "around")
    nodes = list(g.body.node)
    del g.body.node[:]
    g.body.node.extend(reversed(nodes))
    return plan(g.model)


def with_loop_row(**changes: Any) -> ExecutionPlan:
    found = sound()
    (row,) = found.loops
    return replace(found, loops=(replace(row, **changes),))


def without_dry(kernel: str) -> ExecutionPlan:
    found = sound()
    (row,) = found.loops
    gone = next(number for number in row.dry if found.steps[number].kernel == kernel and number >= row.body)
    return with_loop_row(dry=tuple(number for number in row.dry if number != gone))


def with_dry_write() -> ExecutionPlan:
    found = sound()
    write = next(number for number, step in enumerate(found.steps) if step.kernel == "cache_update")
    return with_loop_row(dry=tuple(sorted((*found.loops[0].dry, write))))


def not_carried(name: str) -> ExecutionPlan:
    found = sound()
    kept = tuple(pair for pair in found.loops[0].carried if name not in found.values[pair[0]].name)
    return with_loop_row(carried=kept)


def check_moved_behind_the_loop() -> ExecutionPlan:
    found = sound()
    (row,) = found.loops
    steps = [*found.steps[: row.check], *found.steps[row.check + 1 : row.last], found.steps[row.check], *found.steps[row.last :]]
    moved = {"first": row.first - 1, "body": row.body - 1, "last": row.last - 1, "check": row.last - 1}
    return replace(found, steps=tuple(steps), loops=(replace(row, dry=tuple(n - 1 for n in row.dry), **moved),))


def shared_bytes(mine: str, other: str) -> ExecutionPlan:
    """One value moved onto the bytes of another."""
    found = sound()
    places = (Storage.ARENA, Storage.INPLACE_REUSE)
    place = next(row.offset for row in found.values if row.name.endswith(other) and row.storage in places)
    moved = {index for index, row in enumerate(found.values) if row.name.endswith(mine) and row.storage in places}
    assert moved
    values = [replace(row, offset=place) if {index, row.root} & moved else row for index, row in enumerate(found.values)]
    return replace(found, values=tuple(values))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: with_loop_row(check=-1), "has a check.*not made before its first trip"),
        (lambda: without_dry("check_position"), "not made before its first trip"),
        (lambda: without_dry("add"), "reads version 1 of"),
        (lambda: without_dry("copy"), "does not leave|reads version"),
        (with_dry_write, "touches a cache that the loop updates"),
        (lambda: not_carried("cache"), "updates what it does not carry"),
        (lambda: not_carried("trip"), "updates what it does not carry"),
        (check_moved_behind_the_loop, "checks after"),
        (lambda: shared_bytes("next", "body/trip"), "after its bytes were given to another value"),
        (lambda: shared_bytes("negated", "around"), "reads 'around' after its bytes were given to another value"),
    ],
)
def test_the_verifier_refuses_a_loop_that_is_not_sound(make: Callable[[], ExecutionPlan], text: str) -> None:
    verify(sound())
    with pytest.raises(AliasError, match=text):
        verify(make())
