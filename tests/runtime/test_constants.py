"""What no input changes is computed once: before the first run, for all plans, by whichever engine has the operator."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from tenonnx import BindingError, Session, UnsupportedError, ledger, plan, writable
from tenonnx.plan.constants import SMALL
from tests.models import BOOL, FLOAT, FLOAT16, INT64, Graph

BIG = (96, 512)  # FLOAT: three times what may be made of nothing
RANDOM = np.random.default_rng(0)


def numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RANDOM.integers(-9, 10, shape).astype(dtype)


def graph(*inputs: tuple[str, list[int | str]]) -> Graph:
    g = Graph(opset=22)
    g.constant("c", numbers(*BIG))
    for name, dims in inputs or [("x", ["n", 1, BIG[0]])]:
        g.input(name, FLOAT, dims)
    return g


def reference(model: Any, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    found: list[np.ndarray] = ReferenceEvaluator(onnx.ModelProto.FromString(model.SerializeToString())).run(None, feeds)
    return found


def labels(found: Any) -> list[str]:
    return [step.label for step in found.steps]


def transposed() -> Graph:
    """y = x + cᵀ, which a kernel reads through strides, and z = Sign(cᵀ), which needs the copy."""
    g = graph()
    g.node("Transpose", ["c"], "t")
    g.node("Sign", ["t"], "s")
    g.output(g.node("Mul", ["x", "s"], "y"), FLOAT, ["n", BIG[1], BIG[0]])
    return g


def test_a_transpose_and_its_reader_in_onnxruntime_run_once() -> None:
    g = transposed()
    found = plan(g.model, {"n": 2})
    assert labels(found) == ["y (Mul)"] and found.once is not None
    assert [step.kernel for step in found.once.steps] == ["copy", None]
    assert found.once.output_bytes == 4 * BIG[0] * BIG[1]
    session = Session(g.model)
    for n in (1, 3):
        feeds = {"x": numbers(n, 1, BIG[0])}
        np.testing.assert_array_equal(session.run(feeds)["y"], reference(g.model, feeds)[0])


def test_all_plans_share_what_was_made() -> None:
    session = Session(transposed().model)
    session.run({"x": numbers(1, 1, BIG[0])})
    before = ledger()["weight"]
    for n in range(2, 6):
        session.run({"x": numbers(n, 1, BIG[0])})
    assert ledger()["weight"]["allocations"] == before["allocations"]
    assert session.weight_bytes == 4 * BIG[0] * BIG[1]


def test_what_was_made_goes_with_the_last_plan_that_has_it() -> None:
    session = Session(transposed().model)
    session.run({"x": numbers(1, 1, BIG[0])})
    session._executables.clear()
    gc.collect()
    assert session.weight_bytes == 0


# The operators between a large constant ``c`` and a product with x, and whether they run once.
CHAINS: dict[str, tuple[list[tuple[str, dict[str, Any]]], bool]] = {
    "native": ([("Neg", {}), ("Abs", {}), ("Sqrt", {})], True),
    "onnxruntime": ([("Floor", {}), ("Ceil", {})], True),
    "both": ([("Floor", {}), ("Neg", {}), ("Round", {})], True),
    "narrowing": ([("Cast", {"to": TensorProto.FLOAT16}), ("Neg", {}), ("Cast", {"to": TensorProto.FLOAT})], True),
    "random": ([("RandomNormalLike", {}), ("Neg", {})], False),
}


@pytest.mark.parametrize("name", CHAINS)
def test_chains_of_operators_over_constants(name: str) -> None:
    operators, once = CHAINS[name]
    g = graph(("x", ["n", 1, BIG[1]]))
    value = "c"
    for number, (op, attributes) in enumerate(operators):
        value = g.node(op, [value], f"v{number}", **attributes)
    g.output(g.node("Mul", ["x", value], "y"), FLOAT, ["n", *BIG])
    found = plan(g.model, {"n": 2})
    assert (labels(found) == ["y (Mul)"]) == once
    if once:
        feeds = {"x": numbers(2, 1, BIG[1])}
        with np.errstate(invalid="ignore"):
            np.testing.assert_allclose(Session(g.model).run(feeds)["y"], reference(g.model, feeds)[0], rtol=1e-6)


def test_what_is_made_of_one_source_in_several_ways_is_told_apart() -> None:
    g = graph(("x", [1]))
    for number in (0, 100, 200):
        g.constant(f"at.{number}", np.array([number], np.int64))
    g.constant("axis", np.array([1], np.int64))
    made = {"minus": ("Neg", "c"), "size": ("Abs", "c"), "same": ("Neg", "c")}
    for begin, end in ((0, 100), (100, 200)):
        g.node("Slice", ["c", f"at.{begin}", f"at.{end}", "axis"], f"part.{begin}")
        made[f"sign.{begin}"] = ("Sign", f"part.{begin}")
    for name, (op, source) in made.items():
        g.node(op, [source], name)
        g.output(g.node("Mul", ["x", name], f"{name}.y"), FLOAT, [BIG[0], 100 if op == "Sign" else BIG[1]])
    found = plan(g.model)
    assert found.once is not None and len(found.once.outputs) == len(made) - 1  # two are the same
    feeds = {"x": np.float32([2])}
    for value, expected in zip(Session(g.model).run(feeds).values(), reference(g.model, feeds), strict=True):
        np.testing.assert_array_equal(value, expected)


def test_random_numbers_are_drawn_in_every_run() -> None:
    g = graph(("x", [1]))
    g.model.opset_import[0].version = 21  # the last for which onnxruntime has it
    g.node("RandomNormalLike", ["c"], "r")
    g.output(g.node("Mul", ["x", "r"], "y"), FLOAT, list(BIG))
    session, feeds = Session(g.model), {"x": np.ones(1, np.float32)}
    assert not np.array_equal(session.run(feeds)["y"], session.run(feeds)["y"])


@pytest.mark.parametrize("rows, once", [(SMALL // 4, True), (SMALL // 4 + 1, False)])
def test_what_grows_is_made_once_only_where_it_stays_small(rows: int, once: bool) -> None:
    g = Graph(opset=22)
    g.constant("repeats", np.array([rows], np.int64)), g.constant("c", np.ones(1, np.float32))
    g.input("x", FLOAT, [1])
    g.node("Tile", ["c", "repeats"], "wide")
    g.output(g.node("Mul", ["x", "wide"], "y"), FLOAT, [rows])
    found = plan(g.model)
    assert (found.once is not None) == once
    np.testing.assert_array_equal(Session(g.model).run({"x": np.float32([3])})["y"], np.full(rows, 3, np.float32))


def test_a_wider_copy_of_a_large_constant_is_made_in_each_run() -> None:
    g = Graph(opset=22)
    g.constant("c", numbers(*BIG, dtype=np.float16))
    g.input("x", FLOAT, [1])
    g.node("Cast", ["c"], "wide", to=FLOAT)
    g.output(g.node("Mul", ["x", "wide"], "y"), FLOAT, list(BIG))
    assert plan(g.model).once is None


def test_constants_of_shapes_are_those_of_their_own_plan() -> None:
    g = Graph(opset=22)
    g.input("x", INT64, ["n"])
    g.node("Neg", [g.node("Shape", ["x"], "dims")], "count")
    g.output(g.node("Mul", ["x", "count"], "y"), INT64, ["n"])
    session = Session(g.model)
    for n in (1, 5, 3, 5):
        np.testing.assert_array_equal(session.run({"x": np.full(n, 2)})["y"], np.full(n, -2 * n))
    assert labels(plan(g.model, {"n": 4})) == ["y (Mul)"]


def test_what_onnxruntime_makes_of_shapes_is_made_in_every_run() -> None:
    """A session of onnxruntime for each shape would cost more than it saves."""
    g = Graph(opset=22)
    g.input("x", INT64, ["n"])
    g.node("Sign", [g.node("Neg", [g.node("Shape", ["x"], "dims")], "minus")], "sign")
    g.output(g.node("Mul", ["x", "sign"], "y"), INT64, ["n"])
    assert labels(plan(g.model, {"n": 4})) == ["sign (Sign)", "y (Mul)"]
    np.testing.assert_array_equal(Session(g.model).run({"x": np.full(3, 2)})["y"], [-2] * 3)


def test_a_constant_result_is_the_callers_own() -> None:
    g = graph(("x", [1]))
    g.node("Neg", ["c"], "minus")
    g.output(g.node("Abs", ["minus"], "y"), FLOAT, list(BIG))
    g.output(g.node("Neg", ["x"], "z"), FLOAT, [1])
    session, feeds = Session(g.model), {"x": np.ones(1, np.float32)}
    first = session.run(feeds)["y"]
    expected = first.copy()
    first[:] = 0
    np.testing.assert_array_equal(session.run(feeds)["y"], expected)
    np.testing.assert_array_equal(expected, reference(g.model, feeds)[0])


def test_an_index_out_of_range_is_still_refused() -> None:
    g = graph(("x", [1]))
    g.constant("ids", np.array([0, BIG[0]], np.int64))
    g.node("Neg", [g.node("Gather", ["c", "ids"], "rows")], "minus")
    g.output(g.node("Mul", ["x", "minus"], "y"), FLOAT, [2, BIG[1]])
    with pytest.raises(BindingError, match="outside"):
        Session(g.model).run({"x": np.ones(1, np.float32)})


def test_native_alone_refuses_a_constant_of_onnxruntime() -> None:
    with pytest.raises(UnsupportedError, match="Sign"):
        Session(transposed().model, engine="native").run({"x": numbers(1, 1, BIG[0])})


def test_constants_in_branches_that_touch_a_cache() -> None:
    """What is native is made once all the same; what might fail stays in the branch that may not run."""
    g = Graph()
    g.constant("c", numbers(*BIG)), g.constant("ids", np.array([BIG[0]], np.int64)), g.constant("first", np.array([0], np.int64))
    g.input("cache", FLOAT, [8, BIG[1]], mutable=True)
    g.input("position", INT64, []), g.input("flag", BOOL, [])
    bodies = {}
    for name, ids in (("then_branch", "first"), ("else_branch", "ids")):
        b = bodies[name] = Graph()
        b.node("Gather", [b.node("Neg", ["c"], f"{name}.minus"), ids], f"{name}.row")
        b.update("cache", f"{name}.row", "position", f"{name}.updated")
        b.output(f"{name}.updated", FLOAT, None, alias_of="cache")
    g.holding("If", ["flag"], "updated", **bodies)
    g.output("updated", FLOAT, [8, BIG[1]], alias_of="cache")
    found = plan(g.model)
    assert found.once is not None and {step.kernel for step in found.once.steps} == {"neg"}
    session, cache = Session(g.model), np.zeros((8, BIG[1]), np.float32)
    feeds = {"cache": writable(cache), "position": np.array(2)}
    session.run({**feeds, "flag": np.array(True)})
    np.testing.assert_array_equal(cache[2], -np.frombuffer(g.body.initializer[0].raw_data, np.float32)[: BIG[1]])
    with pytest.raises(BindingError, match="outside"):
        session.run({**feeds, "flag": np.array(False)})


@pytest.mark.parametrize("kind", [FLOAT, FLOAT16])
def test_a_folded_weight_is_what_the_next_operator_reads(kind: int) -> None:
    """Slices and concatenations of a constant, then a product by onnxruntime's MatMul."""
    g = Graph(opset=22)
    dtype = np.float16 if kind == FLOAT16 else np.float32
    g.constant("c", numbers(*BIG, dtype=dtype))
    g.input("x", kind, ["n", BIG[0]])
    for name, number in (("from", 100), ("to", 300), ("axis", 1)):
        g.constant(name, np.array([number], np.int64))
    g.node("Slice", ["c", "from", "to", "axis"], "part")
    g.node("Concat", ["part", "part"], "twice", axis=1)
    g.output(g.node("MatMul", ["x", "twice"], "y"), kind, ["n", 400])
    feeds = {"x": numbers(3, BIG[0], dtype=dtype)}
    found = plan(g.model, {"n": 3})
    assert labels(found) == ["y (MatMul)"] and found.once is not None
    np.testing.assert_allclose(Session(g.model).run(feeds)["y"], reference(g.model, feeds)[0], rtol=2e-3)
