"""``engine="onnxruntime"``: all that it can run goes to it, in few regions that copy no cache; else refused at load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tenonnx import CapacityError, Session, UnsupportedError, convert, ledger, writable
from tenonnx.schema.messages import ValueAliasProto, ValueInfoProto, from_onnx
from tests.exports import Export, converted
from tests.genai_folders import VOCABULARY, write
from tests.models import FLOAT, INT64, Graph, cache_model


def regions(session: Session) -> list[int]:
    """Of each plan, how many regions it has."""
    return [sum(step.kernel is None for step in made.plan.steps) for made in session._executables.values()]


def kernels(session: Session) -> set[str]:
    return {step.kernel for made in session._executables.values() for step in made.plan.steps if step.kernel}


def walk(session: Session, feeds: Any, dims: dict[str, int]) -> list[np.ndarray]:
    cache = session.new_cache(16, dims=dims)
    before = ledger()["cache"]["total"]
    found = []
    for n in (5, 1, 1, 2):
        result = session.run(feeds(n, cache.length), cache=cache)
        found.append(np.array(next(value for name, value in result.items() if not name.startswith("present"))))
        for name, value in result.items():
            if name.startswith("present"):
                assert value is cache[name.replace("present", next(iter(cache.arrays)).split(".")[0])]
    assert cache.length == 9 and ledger()["cache"]["total"] == before
    return found


def test_a_whole_decoder_equals_the_native_engine(tmp_path: Path) -> None:
    """Only the updates stay native, so that every layer is a region, and its caches are read where they lie."""
    model, _ = converted(Export(mask="causal").build(), tmp_path)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 11, (2, 16))

    def feeds(n: int, past: int) -> dict[str, np.ndarray]:
        return {"input_ids": ids[:, past : past + n]}

    auto, whole = Session(model, threads=2), Session(model, threads=2, engine="onnxruntime")
    for a, b in zip(walk(auto, feeds, {"batch": 2}), walk(whole, feeds, {"batch": 2}), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    assert kernels(whole) <= {"cache_update", "check_position", "copy"}
    assert max(regions(whole)) <= 3 + 1  # the layers, what follows them, and lengths before the first check


def test_a_genai_decoder_is_lengths_and_one_region(tmp_path: Path) -> None:
    model, _, _ = convert.from_onnx(write(tmp_path))
    ids = np.random.default_rng(1).integers(0, VOCABULARY, (1, 16))

    def feeds(n: int, past: int) -> dict[str, np.ndarray]:
        return {"input_ids": ids[:, past : past + n], "logit_rows": np.arange(n)}

    auto, whole = Session(model), Session(model, engine="onnxruntime")
    for a, b in zip(walk(auto, feeds, {}), walk(whole, feeds, {}), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    assert set(regions(whole)) == {2} and set(regions(auto)) == {0}
    cache = whole.new_cache(8)
    with pytest.raises(CapacityError):
        whole.run(feeds(9, 0), cache=cache)
    assert cache.length == 0 and not any(array.any() for array in cache.arrays.values())


def test_an_alias_that_onnxruntime_would_copy_is_refused_at_load() -> None:
    g = Graph()
    g.input("state", FLOAT, [4], mutable=True)
    g.input("step", FLOAT, [4])
    g.node("Add", ["state", "step"], "next", alias=(0, 0))
    g.output("next", FLOAT, [4], alias_of="state")
    with pytest.raises(UnsupportedError, match=r"next.*'state'.*not known to write it in place; use engine=\"auto\""):
        Session(g.model, engine="onnxruntime")
    state = np.zeros(4, np.float32)
    Session(g.model).run({"state": writable(state), "step": np.ones(4, np.float32)})
    assert state.all()


def test_engines_are_named() -> None:
    with pytest.raises(UnsupportedError, match="auto, native, onnxruntime"):
        Session(cache_model(), engine="tensorrt")


def scatter(mode: str = "linear", position: bool = True) -> Any:
    from onnx import TensorProto, helper

    inputs = ["past", "rows", *(["at"] if position else [])]
    node = helper.make_node("TensorScatter", inputs, ["present"], mode=mode, axis=1)
    declared = [("past", TensorProto.FLOAT, ["batch", "capacity", 3]), ("rows", TensorProto.FLOAT, ["batch", "n", 3])]
    declared += [("at", TensorProto.INT64, ["batch"])] if position else []
    values = [helper.make_tensor_value_info(*value) for value in declared]
    end = helper.make_tensor_value_info("present", TensorProto.FLOAT, ["batch", "capacity", 3])
    graph = helper.make_graph([node], "g", values, [end])
    model = from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10))
    model.graph.input[0].access = ValueInfoProto.READ_WRITE
    model.graph.output[0].alias_of = "past"
    model.graph.node[0].output_alias.add(output_index=0, input_index=0, kind=ValueAliasProto.MUST_ALIAS)
    return model


@pytest.mark.parametrize("engine", ["auto", "onnxruntime"])
def test_a_cache_that_tensorscatter_updates(engine: str) -> None:
    session = Session(scatter(), engine=engine)
    assert session.fed_inputs == ("at",)
    cache = session.new_cache(4, dims={"batch": 2})
    for number in (1, 2, 3):
        result = session.run({"rows": np.full((2, 1, 3), number, np.float32)}, cache=cache)
        assert result["present"] is cache["past"]
    np.testing.assert_array_equal(cache["past"][:, :, 0], [[1, 2, 3, 0]] * 2)
    assert cache.length == 3 and cache.specs["past"].axis == 1
    with pytest.raises(CapacityError):
        session.run({"rows": np.zeros((2, 2, 3), np.float32)}, cache=cache)


def test_a_cache_without_a_position_goes_on_from_its_start() -> None:
    """TensorScatter without indices always writes row 0: no input is fed, and the rows are counted."""
    session = Session(scatter(position=False))
    assert session.fed_inputs == ()
    cache = session.new_cache(4)
    session.run({"rows": np.ones((1, 2, 3), np.float32)}, cache=cache)
    assert cache.length == 2


def test_an_input_that_no_known_operator_grows_is_bound_by_hand() -> None:
    g = Graph()
    g.input("state", FLOAT, ["n"], mutable=True)
    g.input("position", INT64, [])
    g.constant("one", np.ones(1, np.float32))
    g.node("Add", ["state", "one"], "next", alias=(0, 0))
    g.output("next", FLOAT, ["n"], alias_of="state")
    with pytest.raises(UnsupportedError, match=r"'state': no operator .* allocate and bind it yourself"):
        Session(g.model).new_cache(4)
