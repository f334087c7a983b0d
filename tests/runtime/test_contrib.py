"""onnxruntime's own operators in native kernels: norms and GroupQueryAttention, as onnxruntime itself computes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tenonnx import CapacityError, Session, plan, writable
from tenonnx.errors import BindingError
from tests.models import FLOAT, Graph, declare

RANDOM = np.random.default_rng(0)
INT32 = 6
SIZE, CAPACITY = 16, 12


def numbers(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def contrib(opset: int = 21) -> Graph:
    g = Graph(opset=opset)
    g.model.opset_import.add(domain="com.microsoft", version=1)
    return g


def in_onnxruntime(model: Any, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    stock = onnx.ModelProto.FromString(model.SerializeToString())
    stock.ir_version = 10
    session = onnxruntime.InferenceSession(stock.SerializeToString())
    return dict(zip([value.name for value in session.get_outputs()], session.run(None, feeds), strict=True))


# ---- Norms


@pytest.mark.parametrize("epsilon", [1e-5, 0.5])
def test_simplified_layer_normalization(epsilon: float) -> None:
    g = contrib()
    g.input("x", FLOAT, [2, "n", 33])
    g.constant("scale", numbers(33))
    g.output(
        g.node("SimplifiedLayerNormalization", ["x", "scale"], "y", epsilon=epsilon, axis=-1, stash_type=1), FLOAT, [2, "n", 33]
    )
    feeds = {"x": numbers(2, 5, 33)}
    found = Session(g.model, engine="native").run(feeds)["y"]
    np.testing.assert_allclose(found, in_onnxruntime(g.model, feeds)["y"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("both", [False, True])
def test_skip_simplified_layer_normalization(bias: bool, both: bool) -> None:
    g = contrib()
    g.input("x", FLOAT, [2, "n", 33]), g.input("skip", FLOAT, [2, "n", 33])
    names = ["x", "skip", g.constant("scale", numbers(33)), *([g.constant("bias", numbers(33))] if bias else [])]
    outputs = ["y", "", "", "sum"] if both else ["y"]
    g.node("SkipSimplifiedLayerNormalization", names, *outputs, domain="com.microsoft", epsilon=1e-5)
    for name in outputs:
        if name:
            g.output(name, FLOAT, [2, "n", 33])
    feeds = {"x": numbers(2, 5, 33), "skip": numbers(2, 5, 33)}
    found = Session(g.model, engine="native").run(feeds)
    for name, expected in in_onnxruntime(g.model, feeds).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-5)


# ---- GroupQueryAttention


def attention(batch: int, heads: int, kv_heads: int, packed: bool, rotated: int, **attributes: Any) -> Graph:
    """One layer; ``rotated`` elements of a head are rotated, none where that is 0."""
    g = contrib()
    widths = {"q": heads + 2 * kv_heads} if packed else {"q": heads, "k": kv_heads, "v": kv_heads}
    for name, count in widths.items():
        g.input(name, FLOAT, [batch, "n", count * SIZE])
    for name in ("past_key", "past_value"):
        g.input(name, FLOAT, [batch, kv_heads, CAPACITY, SIZE], mutable=True)
    g.input("seqlens", INT32, [batch]), g.input("total", INT32, [])
    tables = []
    if rotated:
        angle = np.arange(CAPACITY)[:, None] * 10.0 ** -np.arange(rotated // 2)
        tables = [g.constant(name, table(angle).astype(np.float32)) for name, table in (("cos", np.cos), ("sin", np.sin))]
        attributes["do_rotary"] = 1
    names = ["q", *(("", "") if packed else ("k", "v")), "past_key", "past_value", "seqlens", "total", *tables]
    outputs = ["y", "present_key", "present_value"]
    g.node("GroupQueryAttention", names, *outputs, domain="com.microsoft", num_heads=heads, kv_num_heads=kv_heads, **attributes)
    for output, source in ((1, 3), (2, 4)):
        g.body.node[-1].output_alias.add(output_index=output, input_index=source, kind=1)
    g.output("y", FLOAT, [batch, "n", heads * SIZE])
    for part in ("key", "value"):
        g.output(f"present_{part}", FLOAT, [batch, kv_heads, CAPACITY, SIZE], alias_of=f"past_{part}")
    return g


def steps(g: Graph, lengths: list[list[int]], counts: list[int]) -> None:
    """Runs behind these lengths of each row: outputs and whole caches as in onnxruntime, which copies them."""
    session = Session(g.model, engine="native", threads=2)
    shapes = {name: session.inputs[name].dims for name in session.inputs}
    caches = {name: np.zeros(shapes[name], np.float32) for name in ("past_key", "past_value")}
    for behind, count in zip(lengths, counts, strict=True):
        valid = np.array(behind, np.int32) + count
        feeds = {name: numbers(shapes[name][0], count, shapes[name][2]) for name in ("q", "k", "v") if name in shapes}
        feeds |= {"seqlens": valid - 1, "total": np.array(valid.max(), np.int32)}
        expected = in_onnxruntime(g.model, {**feeds, **{name: cache.copy() for name, cache in caches.items()}})
        found = session.run({**feeds, **{name: writable(cache) for name, cache in caches.items()}})
        np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-4, atol=1e-5)
        for part in ("key", "value"):
            for row, end in enumerate(valid):
                mine, theirs = caches[f"past_{part}"][row, :, :end], expected[f"present_{part}"][row, :, :end]
                np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rotated, interleaved", [(0, 0), (SIZE, 0), (SIZE, 1)])
@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (6, 2), (3, 1)])
def test_a_prompt_and_the_tokens_after_it(packed: bool, rotated: int, interleaved: int, heads: int, kv_heads: int) -> None:
    g = attention(1, heads, kv_heads, packed, rotated, rotary_interleaved=interleaved)
    steps(g, [[0], [7], [8], [9]], [7, 1, 1, 3])


@pytest.mark.parametrize("options", [{"scale": 0.4}, {"softcap": 2.0}, {"local_window_size": 3}, {"local_window_size": 1}])
def test_options(options: dict[str, Any]) -> None:
    steps(attention(1, 4, 2, True, SIZE, **options), [[0], [6], [7]], [6, 1, 1])


def test_rows_of_a_batch_behind_lengths_of_their_own() -> None:
    steps(attention(2, 4, 2, True, SIZE), [[0, 0], [5, 3], [6, 4]], [5, 1, 1])


def test_lengths_that_do_not_fit_are_refused_before_any_write() -> None:
    g = attention(1, 4, 2, True, SIZE)
    session = Session(g.model, engine="native")
    cache = np.zeros((1, 2, CAPACITY, SIZE), np.float32)
    feeds = {"q": numbers(1, 2, 8 * SIZE), "past_value": writable(cache.copy()), "past_key": writable(cache)}
    for valid in (CAPACITY + 1, 1, 2**31 - 1):
        with pytest.raises((CapacityError, BindingError)):
            session.run({**feeds, "seqlens": np.array([valid - 1], np.int32), "total": np.array(5, np.int32)})
    assert not cache.any()


def test_tables_shorter_than_the_cache_are_not_read_past_their_end() -> None:
    g = attention(1, 4, 2, True, SIZE)
    for tensor in g.body.initializer:
        if tensor.name in ("cos", "sin"):
            tensor.raw_data = tensor.raw_data[: 4 * 5 * SIZE // 2]
            tensor.dims[0] = 5
    cache = np.zeros((1, 2, CAPACITY, SIZE), np.float32)
    feeds = {"q": numbers(1, 1, 8 * SIZE), "past_value": writable(cache.copy()), "past_key": writable(cache)}
    with pytest.raises(BindingError, match="outside"):
        Session(g.model).run({**feeds, "seqlens": np.array([5], np.int32), "total": np.array(6, np.int32)})
    assert not cache.any()


@pytest.mark.parametrize("change", [{"smooth_softmax": 1}, {"num_heads": 3}, {"kv_num_heads": 0}, {"num_heads": -2}])
def test_what_no_kernel_has_is_left_to_onnxruntime(change: dict[str, int]) -> None:
    g = attention(1, 4, 2, True, SIZE)
    for attribute in g.body.node[-1].attribute:
        if attribute.name in change:
            attribute.i = change[attribute.name]
    if "smooth_softmax" in change:
        g.body.node[-1].attribute.add(name="smooth_softmax", type=2, i=1)
    with pytest.raises(Exception, match="no native kernel"):
        feeds = {"q": numbers(1, 1, 8 * SIZE), "seqlens": np.array([0], np.int32), "total": np.array(1, np.int32)}
        caches = {name: writable(np.zeros((1, 2, CAPACITY, SIZE), np.float32)) for name in ("past_key", "past_value")}
        Session(g.model, engine="native").run({**feeds, **caches})


def test_a_graph_with_others_of_its_operators_is_left_to_onnxruntime_whole() -> None:
    """Norms between products of packed codes, say, stay in one region with them."""
    g = contrib()
    g.input("x", FLOAT, [2, "n", 33])
    g.constant("scale", numbers(33))
    g.node("SkipSimplifiedLayerNormalization", ["x", "x", "scale"], "normed", domain="com.microsoft", epsilon=1e-5)
    g.node("QuickGelu", ["normed"], "active", domain="com.microsoft", alpha=1.5)
    g.node("SkipSimplifiedLayerNormalization", ["active", "x", "scale"], "y", domain="com.microsoft", epsilon=1e-5)
    for name in ("normed", "active"):
        declare(g.body.value_info.add(name=name), FLOAT, [2, "n", 33])
    g.output("y", FLOAT, [2, "n", 33])
    found = plan(g.model, {"n": 3})
    assert [step.kernel for step in found.steps] == [None]
    feeds = {"x": numbers(2, 3, 33)}
    np.testing.assert_array_equal(Session(g.model).run(feeds)["y"], in_onnxruntime(g.model, feeds)["y"])
