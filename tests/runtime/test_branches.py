"""Ifs that touch a cache: run natively, guarded step by step, nothing copied and nothing written but what the branch says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tenonnx import AliasError, CapacityError, CheckError, Session, ShapesContext, UnsupportedError, check, ledger, plan, writable
from tenonnx.plan import Storage
from tests.models import BOOL, FLOAT, INT64, Graph
from tests.oracle.functional import evaluate

DIMS = [2, 8, 3]


def branch(build: Callable[[Graph], Any], *outputs: str, alias_of: str = "") -> Graph:
    g = Graph()
    build(g)
    for name in outputs:
        g.output(name, FLOAT, None, alias_of=alias_of if name == outputs[0] else "")
    return g


def outer() -> Graph:
    """cache, values, position and a flag."""
    g = Graph()
    g.input("cache", FLOAT, DIMS, mutable=True)
    g.input("values", FLOAT, [2, "n", 3])
    g.input("position", INT64, [])
    g.input("flag", BOOL, [])
    return g


def update_or_not() -> Any:
    """One branch updates the cache and sums it, the other leaves it as it is."""
    g = outer()
    then = branch(
        lambda b: (b.update("cache", "values", "position", "u"), b.node("Add", ["u", "u"], "s")), "u", "s", alias_of="cache"
    )
    other = branch(lambda b: b.node("Neg", ["cache"], "s"), "cache", "s")
    g.holding("If", ["flag"], "updated", "sum", then_branch=then, else_branch=other)
    g.node("Abs", ["updated"], "after")
    g.output("updated", FLOAT, DIMS, alias_of="cache")
    g.output("sum", FLOAT, DIMS)
    g.output("after", FLOAT, DIMS)
    return g.model


def numbers(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(np.float32)


def inputs(**more: Any) -> dict[str, np.ndarray]:
    return {"cache": numbers(*DIMS), "values": numbers(2, 2, 3, seed=2), "position": np.array(5), **more}


def check_run(model: Any, given: dict[str, np.ndarray], threads: int = 2) -> dict[str, np.ndarray]:
    expected = evaluate(model, given)
    cache = given["cache"].copy()
    found = Session(model, threads=threads).run({**given, "cache": writable(cache)})
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    for output in model.graph.output:
        assert (found[output.name] is cache) == bool(output.alias_of)
    return found


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("threads", [1, 2])
def test_one_branch_updates(flag: bool, threads: int) -> None:
    model = update_or_not()
    assert check(model) == []
    check_run(model, inputs(flag=np.array(flag)), threads)


def test_types_and_roots_through_branches() -> None:
    shapes = ShapesContext(update_or_not(), dims={"n": 2})
    assert [shapes[name].dims for name in ("updated", "updated.then_branch/u", "sum")] == [(2, 8, 3)] * 3
    assert shapes.alias_root("updated") == shapes.alias_root("updated.then_branch/u") == "cache"
    assert shapes.alias_class("cache") == ("cache", "updated.then_branch/u", "updated")


def test_nothing_is_copied() -> None:
    found = plan(update_or_not(), {"n": 2})
    rows = [found.values[index] for index, _ in found.aliases]
    assert {row.name for row in rows} >= {"updated.then_branch/u", "updated"}
    assert all(found.values[row.root].storage is Storage.INPUT for row in rows)
    session = Session(update_or_not(), threads=1)
    given = inputs(flag=np.array(True))
    given["cache"] = writable(given["cache"])
    session.run(given)
    before = ledger()
    session.run(given)
    after = ledger()
    assert after["output"]["total"] - before["output"]["total"] == 2 * 2 * 8 * 3 * 4  # sum and after
    assert after["arena"]["total"] == before["arena"]["total"] and after["cache"]["total"] == before["cache"]["total"]


def test_a_cache_object_grows_by_what_the_branch_wrote() -> None:
    session = Session(update_or_not(), threads=1)
    cache = session.new_cache(8)
    session.run({"values": numbers(2, 3, 3), "flag": np.array(True)}, cache=cache)
    assert cache.length == 3
    session.run({"values": numbers(2, 3, 3), "flag": np.array(False)}, cache=cache)
    assert cache.length == 3


def test_failure_in_the_branch_that_runs_and_none_in_the_other() -> None:
    session = Session(update_or_not(), threads=2)
    given = inputs(flag=np.array(True), position=np.array(7))
    before = given["cache"].copy()
    with pytest.raises(CapacityError, match="position 7 \\+ 2 new rows"):
        session.run({**given, "cache": writable(given["cache"])})
    np.testing.assert_array_equal(given["cache"], before)
    session.run({**given, "flag": np.array(False), "cache": writable(given["cache"])})
    np.testing.assert_array_equal(given["cache"], before)


def test_a_check_in_a_branch_comes_before_an_update_outside() -> None:
    g = outer()
    g.input("far", INT64, [])
    g.update("cache", "values", "position", "first")
    g.holding(
        "If",
        ["flag"],
        "second",
        then_branch=branch(lambda b: b.update("first", "values", "far", "u"), "u"),
        else_branch=branch(lambda b: None, "first"),
    )
    g.output("second", FLOAT, DIMS, alias_of="cache")
    for flag in (True, False):
        check_run(g.model, inputs(flag=np.array(flag), far=np.array(0)))
    given = inputs(flag=np.array(True), far=np.array(9))
    before = given["cache"].copy()
    with pytest.raises(CapacityError):
        Session(g.model).run({**given, "cache": writable(given["cache"])})
    np.testing.assert_array_equal(given["cache"], before)


@pytest.mark.parametrize("flag", [True, False])
def test_both_branches_update_another_number_of_times(flag: bool) -> None:
    g = outer()

    def twice(b: Graph) -> None:
        b.constant("one", np.array(1, np.int64))
        b.node("Add", ["values", "values"], "vv")
        b.node("Sub", ["position", "one"], "p")
        b.update("cache", "vv", "p", "u1")
        b.node("Neg", ["u1"], "n")
        b.node("Slice", ["n", "from", "to", "axis"], "rows")
        b.update("u1", "rows", "position", "u2")

    for name, value in (("from", 0), ("to", 2), ("axis", 1)):
        g.constant(name, np.array([value], np.int64))
    g.holding(
        "If",
        ["flag"],
        "updated",
        then_branch=branch(twice, "u2", alias_of="cache"),
        else_branch=branch(lambda b: b.update("cache", "values", "position", "u"), "u", alias_of="cache"),
    )
    g.node("Neg", ["updated"], "y")
    g.output("updated", FLOAT, DIMS, alias_of="cache")
    g.output("y", FLOAT, DIMS)
    assert check(g.model) == []
    check_run(g.model, inputs(flag=np.array(flag)))


@pytest.mark.parametrize("flags", [(a, b) for a in (True, False) for b in (True, False)])
def test_branches_in_branches_and_a_region_in_one(flags: tuple[bool, bool]) -> None:
    g = outer()
    g.input("other", BOOL, [1])

    def inner(b: Graph) -> None:
        b.node("Sign", ["values"], "sign")  # onnxruntime's
        b.node("Ceil", ["sign"], "ceil")
        b.update("cache", "ceil", "position", "u")

    def then(b: Graph) -> None:
        b.node("Not", ["other"], "not")
        b.holding("If", ["not"], "w", then_branch=branch(inner, "u"), else_branch=branch(lambda c: None, "cache"))
        b.node("Add", ["w", "w"], "ww")

    g.holding(
        "If",
        ["flag"],
        "updated",
        "y",
        then_branch=branch(then, "w", "ww"),
        else_branch=branch(
            lambda b: (b.update("cache", "values", "position", "u"), b.node("Relu", ["cache"], "old")), "u", "old"
        ),
    )
    g.output("updated", FLOAT, DIMS, alias_of="cache")
    g.output("y", FLOAT, DIMS)
    assert check(g.model) == []
    check_run(g.model, inputs(flag=np.array(flags[0]), other=np.array([flags[1]])))


def test_a_value_derived_in_one_branch_is_not_taken_for_the_other() -> None:
    g = outer()
    g.constant("perm", np.array([0], np.int64))
    g.node("Transpose", ["values"], "turned", perm=[2, 1, 0])  # a view: reading it densely copies

    def reads(position: str) -> Callable[[Graph], Any]:
        return lambda b: (
            b.constant("shape", np.array([-1], np.int64)),
            b.node("Reshape", ["turned", "shape"], "flat"),
            b.update("cache", "values", position, "u"),
        )

    g.holding(
        "If",
        ["flag"],
        "updated",
        "flat",
        then_branch=branch(reads("position"), "u", "flat"),
        else_branch=branch(reads("position"), "u", "flat"),
    )
    g.constant("shape", np.array([-1], np.int64))
    g.node("Reshape", ["turned", "shape"], "again")
    g.output("updated", FLOAT, DIMS, alias_of="cache")
    g.output("flat", FLOAT, None)
    g.output("again", FLOAT, None)
    for flag in (True, False):
        check_run(g.model, inputs(flag=np.array(flag)))


def test_the_same_function_in_both_branches() -> None:
    from tests.runtime.test_functions import add, function

    g = outer()
    body, append = function("Append", ["c", "v", "p"], ["u"])
    body.node("Add", ["v", "v"], "vv")
    body.update("c", "vv", "p", "u")
    add(g, body, append)
    g.constant("zero", np.array(0, np.int64))
    g.holding(
        "If",
        ["flag"],
        "updated",
        then_branch=branch(lambda b: b.node("Append", ["cache", "values", "position"], "u", domain="local"), "u"),
        else_branch=branch(lambda b: b.node("Append", ["cache", "values", "zero"], "u", domain="local"), "u"),
    )
    g.output("updated", FLOAT, DIMS, alias_of="cache")
    for flag in (True, False):
        check_run(g.model, inputs(flag=np.array(flag)))


def refused(
    then: Callable[[Graph], Any], a: str, other: Callable[[Graph], Any], b: str, extra: Callable[[Graph], Any] | None = None
) -> Graph:
    g = outer()
    g.input("second", FLOAT, DIMS, mutable=True)
    g.holding("If", ["flag"], "y", then_branch=branch(then, a), else_branch=branch(other, b))
    g.output("y", FLOAT, DIMS, alias_of="cache")
    if extra is not None:
        extra(g)
    return g


def _update(g: Graph) -> str:
    return g.update("cache", "values", "position", "u")


REFUSED = {
    "two caches": (lambda: refused(_update, "u", lambda b: None, "second"), "branch-roots"),
    "a cache and a new value": (lambda: refused(_update, "u", lambda b: b.node("Neg", ["cache"], "n"), "n"), "branch-roots"),
    "two caches that no branch updates": (lambda: refused(lambda b: None, "cache", lambda b: None, "second"), "branch-roots"),
    "forked outside": (
        lambda: refused(_update, "u", lambda b: None, "cache", lambda g: g.update("cache", "values", "position", "fork")),
        "alias-fork",
    ),
    "forked inside": (
        lambda: refused(lambda b: (_update(b), b.update("cache", "values", "position", "w")), "u", lambda b: None, "cache"),
        "alias-fork",
    ),
    "a late reader": (
        lambda: refused(_update, "u", lambda b: None, "cache", lambda g: g.node("Add", ["cache", "y"], "late")),
        "alias-reader",
    ),
    "a reader behind a condition made from the update": (
        lambda: refused(
            _update,
            "u",
            lambda b: None,
            "cache",
            lambda g: (
                g.node("ReduceMax", ["y"], "most", keepdims=0),
                g.node("Greater", ["most", "most"], "late"),
                g.holding(
                    "If",
                    ["late"],
                    "z",
                    then_branch=branch(lambda b: b.node("Neg", ["cache"], "n"), "n"),
                    else_branch=branch(lambda b: None, "values"),
                ),
            ),
        ),
        "alias-reader",
    ),
    "READ_WRITE in a body": (
        lambda: refused(
            lambda b: (_update(b), b.node("Neg", ["values"], "v"), b.body.value_info.add(name="v", access=1)),
            "u",
            lambda b: None,
            "cache",
        ),
        "formal-inputs",
    ),
    "alias_of of another value": (
        lambda: refused(
            lambda b: (_update(b), b.update("u", "values", "position", "w"), b.body.value_info.add(name="u", alias_of="values")),
            "w",
            lambda b: None,
            "cache",
        ),
        "alias-of-agrees",
    ),
    "an If that aliases its condition": (
        lambda: refused(
            _update,
            "u",
            lambda b: None,
            "cache",
            lambda g: g.body.node[0].output_alias.add(output_index=0, input_index=0, kind=1),
        ),
        "body-alias",
    ),
    "branches of another number of outputs": (
        lambda: refused(_update, "u", lambda b: b.output("cache", FLOAT, DIMS), "cache"),
        "graph-names",
    ),
}


@pytest.mark.parametrize("how", REFUSED)
def test_branches_that_break_a_rule(how: str) -> None:
    make, rule = REFUSED[how]
    found = check(make().model)
    assert rule in {diagnostic.rule for diagnostic in found}, found
    with pytest.raises(CheckError):
        Session(make().model)


def test_an_if_output_without_alias_of() -> None:
    model = update_or_not()
    model.graph.output[0].alias_of = ""
    assert [diagnostic.rule for diagnostic in check(model)] == ["aliased-outputs"]


def update_and_ask(g: Graph) -> None:
    """An update of the cache, and whether it then holds anything positive."""
    g.update("cache", "values", "position", "first")
    g.constant("axes", np.array([0, 1, 2], np.int64))
    g.node("ReduceMax", ["first", "axes"], "most", keepdims=0)
    g.constant("zero", np.array(0, np.float32))
    g.node("Greater", ["most", "zero"], "positive")


@pytest.mark.parametrize("checked", [True, False])
def test_conditions_made_from_an_updated_cache(checked: bool) -> None:
    g = outer()
    g.input("far", INT64, [])
    update_and_ask(g)
    g.holding(
        "If",
        ["positive"],
        "second",
        then_branch=branch(lambda b: b.update("first", "values", "position" if checked else "far", "u"), "u"),
        else_branch=branch(lambda b: None, "first"),
    )
    g.output("second", FLOAT, DIMS, alias_of="cache")
    if checked:  # the position is that of the first update, whose check needs no condition
        for sign in (1, -1):
            negative = {"cache": -np.abs(numbers(*DIMS)), "values": sign * np.abs(numbers(2, 2, 3)), "flag": np.array(True)}
            check_run(g.model, inputs(far=np.array(0)) | negative)
        return
    with pytest.raises(UnsupportedError, match="condition of its branch"):
        plan(g.model, {"n": 2})


def test_a_condition_made_from_an_updated_cache_where_nothing_is_written() -> None:
    g = outer()
    update_and_ask(g)
    g.holding(
        "If",
        ["positive"],
        "y",
        then_branch=branch(lambda b: b.node("Neg", ["first"], "n"), "n"),
        else_branch=branch(lambda b: b.node("Abs", ["first"], "n"), "n"),
    )
    g.output("first", FLOAT, DIMS, alias_of="cache")
    g.output("y", FLOAT, DIMS)
    for seed in (1, -1):
        check_run(
            g.model,
            inputs() | {"cache": -np.abs(numbers(*DIMS)), "values": seed * np.abs(numbers(2, 2, 3))} | {"flag": np.array(True)},
        )


def test_branches_of_two_shapes() -> None:
    g = outer()
    g.holding(
        "If",
        ["flag"],
        "updated",
        "y",
        then_branch=branch(lambda b: _update(b), "u", "values"),
        else_branch=branch(lambda b: None, "cache", "cache"),
    )
    g.output("updated", FLOAT, DIMS, alias_of="cache")
    g.output("y", FLOAT, None)
    assert "branch-roots" in {diagnostic.rule for diagnostic in check(g.model)}
    g.body.node[0].attribute[1].g.node.add(op_type="Neg", input=["cache"], output=["n"])
    g.body.node[0].attribute[1].g.output[1].name = "n"
    with pytest.raises(UnsupportedError, match="pad them to one shape"):
        plan(g.model, {"n": 2})


def test_a_plan_whose_guard_is_dropped_is_found_out() -> None:
    from dataclasses import replace

    from tenonnx.plan.verify import verify

    found = plan(update_or_not(), {"n": 2})
    verify(found)
    guarded = [number for number, step in enumerate(found.steps) if step.guards]
    assert guarded
    for number in guarded:
        step = found.steps[number]
        opposite = tuple((index, not expected) for index, expected in step.guards)
        for guards in [opposite] + [()] * (step.kernel in ("cache_update", "cache_keep", "copy")):
            steps = list(found.steps)
            steps[number] = replace(steps[number], guards=guards)
            with pytest.raises(AliasError):
                verify(replace(found, steps=tuple(steps)))
