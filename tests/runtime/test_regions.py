"""Operators without a native kernel: onnxruntime regions over the plan's own memory, beside caches that they never copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tenonnx import ExecutionPlan, Session, TenonnxError, UnsupportedError, dtypes, ledger, plan, writable
from tenonnx.schema.messages import FunctionProto, GraphProto
from tests.models import BOOL, FLOAT, INT64, Graph, declare
from tests.oracle.functional import evaluate


def regions(found: ExecutionPlan) -> list[str]:
    return [step.label for step in found.steps if step.kernel is None]


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def check(model: Any, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    found = Session(model, threads=2).run(inputs)
    for name, value in evaluate(model, inputs).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, err_msg=name)
    return found


def test_neighbours_become_one_region() -> None:
    g = Graph()
    g.input("x", FLOAT, [3, 4])
    g.constant("axes", np.array([1], np.int64))
    g.node("Sign", ["x"], "a")
    g.node("Ceil", ["a"], "b")
    g.node("Neg", ["x"], "c")
    g.node("ReduceSum", ["b", "axes"], "d", keepdims=1)
    g.node("Mul", ["c", "d"], "y")
    g.output("y", FLOAT, [3, 4])
    assert regions(plan(g.model)) == ["a (Sign) + b (Ceil) + d (ReduceSum)"]
    check(g.model, x=numbers(3, 4))


def test_a_view_between_two_operators_of_a_region() -> None:
    g = Graph()
    g.input("x", FLOAT, [2, 3])
    g.constant("shape", np.array([6], np.int64))
    g.node("Sign", ["x"], "a")
    g.node("Reshape", ["a", "shape"], "flat")
    g.node("Ceil", ["flat"], "y")
    g.output("y", FLOAT, [6])
    check(g.model, x=numbers(2, 3))


@pytest.mark.parametrize("rows", [4, 2000])
def test_a_part_of_a_constant(rows: int) -> None:
    g = Graph()
    g.input("x", FLOAT, [2])
    g.constant("table", np.arange(2 * rows, dtype=np.float32).reshape(rows, 2))
    for name, bound in (("from", 1), ("to", 3)):
        g.constant(name, np.array([bound], np.int64))
    g.node("Slice", ["table", "from", "to"], "part")
    g.node("Max", ["part", "x"], "y")
    g.output("y", FLOAT, [2, 2])
    found = check(g.model, x=np.zeros(2, np.float32))
    np.testing.assert_array_equal(found["y"], [[2, 3], [4, 5]])


def _body(op: str) -> GraphProto:
    body = GraphProto(name=op)
    body.node.add(op_type=op, input=["x"], output=["branch"])
    declare(body.output.add(name="branch"), FLOAT, [3])
    return body


def test_if_reads_a_value_of_the_outer_graph() -> None:
    g = Graph()
    g.input("flag", BOOL, [])
    g.input("in", FLOAT, [3])
    g.node("Neg", ["in"], "x")
    node = g.body.node.add(op_type="If", name="if", input=["flag"], output=["y"])
    for name, op in (("then_branch", "Exp"), ("else_branch", "Sign")):
        node.attribute.add(name=name, type=5).g.CopyFrom(_body(op))
    g.output("y", FLOAT, [3])
    for flag in (True, False):
        check(g.model, flag=np.array(flag), **{"in": numbers(3)})


def test_loop_without_a_cache() -> None:
    body = GraphProto(name="body")
    for name, kind, dims in (("i", INT64, []), ("go", BOOL, []), ("carried", FLOAT, [2])):
        declare(body.input.add(name=name), kind, dims)
    body.node.add(op_type="Identity", input=["go"], output=["on"])
    body.node.add(op_type="Add", input=["carried", "step"], output=["next"])
    declare(body.output.add(name="on"), BOOL, [])
    declare(body.output.add(name="next"), FLOAT, [2])
    g = Graph()
    g.input("start", FLOAT, [2])
    g.input("step", FLOAT, [2])
    g.constant("trips", np.array(5, np.int64))
    g.constant("go", np.array(True))
    node = g.body.node.add(op_type="Loop", name="loop", input=["trips", "go", "start"], output=["y"])
    node.attribute.add(name="body", type=5).g.CopyFrom(body)
    g.output("y", FLOAT, [2])
    check(g.model, start=numbers(2), step=numbers(2, seed=1))


def test_local_functions() -> None:
    function = FunctionProto(name="Twice", domain="local", input=["x"], output=["y"])
    function.opset_import.add(domain="", version=24)
    function.node.add(op_type="Concat", input=["x", "x"], output=["y"]).attribute.add(name="axis", type=2, i=0)
    g = Graph()
    g.model.opset_import.add(domain="local", version=1)
    g.model.functions.append(function)
    g.input("a", FLOAT, [2])
    g.input("b", FLOAT, [3])
    for name in "ab":
        g.node("Twice", [name], f"{name}{name}", domain="local")
        g.output(f"{name}{name}", FLOAT, None)
    found = Session(g.model).run({"a": np.ones(2, np.float32), "b": np.ones(3, np.float32)})
    assert (found["aa"].shape, found["bb"].shape) == ((4,), (6,))


def cache_between_regions() -> Any:
    g = Graph()
    g.input("cache", FLOAT, [8, 64], mutable=True)
    g.input("values", FLOAT, [2, 64])
    g.input("position", INT64, [])
    g.constant("last", np.array([1], np.int64))
    g.node("ReduceMax", ["cache", "last"], "before", keepdims=0)
    g.node("Sign", ["values"], "rows")
    g.update("cache", "rows", "position", "updated")
    g.node("ReduceMax", ["updated", "last"], "after", keepdims=0)
    g.output("updated", FLOAT, [8, 64], alias_of="cache")
    g.output("before", FLOAT, [8])
    g.output("after", FLOAT, [8])
    return g.model


def test_no_boundary_copies_a_cache() -> None:
    model = cache_between_regions()
    found = plan(model)
    assert not [step for step in found.steps if step.kernel == "copy"] and found.arena_bytes == 512
    session = Session(model)
    cache, values = numbers(8, 64), numbers(2, 64, seed=1)
    expected = evaluate(model, {"cache": cache, "values": values, "position": np.array(3)})
    before = ledger()["arena"]["total"]
    result = session.run({"cache": writable(cache), "values": values, "position": 3})
    assert ledger()["arena"]["total"] - before == 512
    for name, value in expected.items():
        np.testing.assert_array_equal(result[name], value)


def test_a_region_that_should_update_in_place_is_refused() -> None:
    g = Graph()
    g.input("cache", FLOAT, [8, 4], mutable=True)
    g.node("Sign", ["cache"], "updated", alias=(0, 0))
    g.output("updated", FLOAT, [8, 4], alias_of="cache")
    with pytest.raises(UnsupportedError, match=r"updated \(Sign\).*'updated' must alias"):
        Session(g.model).run({"cache": writable(np.zeros((8, 4), np.float32))})


def test_values_of_no_elements() -> None:
    g = Graph()
    g.input("x", FLOAT, ["n", 3])
    g.node("Sign", ["x"], "y")
    g.output("y", FLOAT, ["n", 3])
    session = Session(g.model)
    for n in (2, 0, 1):
        assert session.run({"x": np.ones((n, 3), np.float32)})["y"].shape == (n, 3)


@pytest.mark.parametrize(
    "options",
    [
        {"engine": "fast"},
        {"packs": "maybe"},
        {"formats": "some"},
        {"threads": 0},
        {"threads": True},
        {"threads": "two"},
        {"threads": 257},
    ],
)
def test_options_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(TenonnxError, match=next(iter(options))):
        Session(cache_between_regions(), **options)


def test_the_native_engine_alone() -> None:
    session = Session(cache_between_regions(), engine="native")
    given = {"cache": writable(np.zeros((8, 64), np.float32)), "values": np.ones((2, 64), np.float32), "position": 0}
    with pytest.raises(UnsupportedError, match=r'ReduceMax.*no native kernel.*engine="auto"'):
        session.run(given)


@pytest.mark.parametrize(("elem_type", "text"), [(8, "no fixed width"), (22, "no native storage"), (17, "no native storage")])
def test_element_types_that_cannot_run(elem_type: int, text: str) -> None:
    g = Graph()
    g.input("x", elem_type, [2])
    g.node("Identity", ["x"], "y")
    g.output("y", elem_type, [2])
    dtype = dtypes.BY_NUMBER[elem_type].numpy if elem_type in dtypes.BY_NUMBER else np.dtype(object)
    with pytest.raises(UnsupportedError, match=text):
        Session(g.model).run({"x": np.zeros(2, dtype)})


def test_an_operator_that_nobody_has() -> None:
    g = Graph()
    g.model.opset_import.add(domain="custom", version=1)
    g.input("x", FLOAT, [2])
    g.node("Mystery", ["x"], "y", domain="custom")
    declare(g.body.value_info.add(name="y"), FLOAT, [2])
    g.output("y", FLOAT, [2])
    with pytest.raises(UnsupportedError, match=r"y \(Mystery\): has no native kernel, and onnxruntime refuses it"):
        Session(g.model).run({"x": np.zeros(2, np.float32)})


def test_a_failure_inside_onnxruntime() -> None:
    g = Graph()
    g.input("x", FLOAT, [2])
    g.input("i", INT64, [1])
    g.node("GatherElements", ["x", "i"], "y")
    g.output("y", FLOAT, [1])
    session = Session(g.model)
    with pytest.raises(UnsupportedError, match=r"y \(GatherElements\): onnxruntime:"):
        session.run({"x": np.zeros(2, np.float32), "i": np.array([7])})
    assert session.run({"x": np.ones(2, np.float32), "i": np.array([1])})["y"].tolist() == [1]


def test_ranks_past_the_native_limit() -> None:
    g = Graph()
    g.input("x", FLOAT, [1] * 9)
    g.node("Neg", ["x"], "y")
    g.output("y", FLOAT, [1] * 9)
    with pytest.raises(UnsupportedError, match="rank over 8"):
        Session(g.model).run({"x": np.zeros([1] * 9, np.float32)})
