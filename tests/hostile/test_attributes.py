"""Nodes whose attributes, ports or tensors are not what their operator takes: refused by name, never run as something else."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

from tenonnx import Session, plan
from tenonnx.errors import CheckError, PayloadError, TenonnxError
from tenonnx.schema.messages import AttributeProto
from tests.models import FLOAT, INT64, Graph, cache_model, chain

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def one(op: str, *inputs: str, opset: int = 24, **attributes: Any) -> Graph:
    g = Graph(opset)
    g.input("x", FLOAT, [2, 3, 4])
    g.input("i", INT64, [2])
    g.node(op, inputs, "y", **attributes)
    g.output("y", FLOAT, None)
    return g


WRONG = [
    one("Transpose", "x", perm=1),
    one("Gather", "x", "i", axis=[0]),
    one("Softmax", "x", axis=1.5),
    one("Cast", "x", to="FLOAT"),
    one("Concat", "x", "x", axis=[1]),
    one("Attention", "x", "x", "x", q_num_heads=1, kv_num_heads=1, scale=2),
    one("Gelu", "x", approximate=1),
]


@pytest.mark.parametrize("g", WRONG, ids=lambda g: g.body.node[0].op_type)
def test_an_attribute_of_another_type(g: Graph) -> None:
    with pytest.raises(TenonnxError, match=rf"{g.body.node[0].op_type}.*({g.body.node[0].attribute[-1].name}|type)"):
        Session(g.model).run({"x": X, "i": np.zeros(2, np.int64)})


@pytest.mark.parametrize("value", [None, [0], "first"])
def test_an_axis_of_an_update_that_is_no_number(value: Any) -> None:
    model = cache_model()
    attribute = AttributeProto(name="axis")
    if isinstance(value, list):
        attribute.ints.extend(value)
        attribute.type = AttributeProto.INTS
    elif value is not None:
        attribute.s = value.encode()
        attribute.type = AttributeProto.STRING
    next(node for node in model.graph.node if node.op_type == "CacheUpdate").attribute.append(attribute)
    with pytest.raises(CheckError, match=r"CacheUpdate.*attribute 'axis' is .*, expected INT"):
        Session(model).new_cache(8)


def test_an_update_with_an_empty_name() -> None:
    model = cache_model()
    next(node for node in model.graph.node if node.op_type == "CacheUpdate").input[2] = ""
    with pytest.raises(TenonnxError, match="CacheUpdate"):
        Session(model)


@pytest.mark.parametrize("op", ["Cast", "Neg", "Add", "Softmax"])
def test_a_needed_input_left_out(op: str) -> None:
    with pytest.raises(TenonnxError, match=op):
        Session(one(op, "").model).run({"x": X, "i": np.zeros(2, np.int64)})


@pytest.mark.parametrize("dims", [[2**32], [2**62], [3]])
def test_small_tensors_that_claim_more_than_they_hold(dims: list[int]) -> None:
    g = one("Reshape", "x", "shape")
    g.constant("shape", np.array([24], np.int64))
    g.body.initializer[0].dims[:] = dims
    with pytest.raises(CheckError, match="shape"):
        Session(g.model)
    if dims == [3]:  # larger ones are not read for a plan
        with pytest.raises(PayloadError, match="shape"):
            plan(g.model)


def test_bounds_of_a_slice_that_are_no_integers() -> None:
    g = one("Slice", "x", "k", "k")
    g.constant("k", np.array([1.5], np.float32))
    with pytest.raises(TenonnxError, match="Slice"):
        Session(g.model).run({"x": X, "i": np.zeros(2, np.int64)})


@pytest.mark.parametrize("dims", [[4], [2, 2], [0], [16]])
def test_a_reshape_to_another_number_of_elements(dims: list[int]) -> None:
    g = Graph()
    g.input("x", FLOAT, ["n"])
    g.constant("shape", np.array(dims, np.int64))
    g.node("Reshape", ["x", "shape"], "y", allowzero=1)
    g.output("y", FLOAT, None)
    with pytest.raises(TenonnxError, match="Reshape"):
        Session(g.model).run({"x": np.arange(8, dtype=np.float32)})


def test_a_split_that_leaves_a_part_over() -> None:
    g = Graph()
    g.input("x", FLOAT, ["n"])
    g.node("Split", ["x"], "a", "b", axis=0, num_outputs=3)
    g.output("a", FLOAT, None)
    g.output("b", FLOAT, None)
    with pytest.raises(TenonnxError, match="Split"):
        Session(g.model).run({"x": np.arange(8, dtype=np.float32)})


@pytest.mark.parametrize("names", [["perm", "perm"], ["perm", "order"]])
def test_attributes_given_twice_or_unknown(names: list[str]) -> None:
    model = one("Transpose", "x", perm=[2, 0, 1]).model
    attribute = model.graph.node[0].attribute.add()
    attribute.CopyFrom(model.graph.node[0].attribute[0])
    attribute.name = names[1]
    with pytest.raises(TenonnxError, match=f"Transpose.*{names[1]}"):
        Session(model).run({"x": X, "i": np.zeros(2, np.int64)})


@pytest.mark.parametrize("opset", [8, 12, 13])
def test_the_default_axis_of_softmax_by_its_version(opset: int) -> None:
    model = one("Softmax", "x", opset=opset).model
    model.ir_version = 8
    del model.opset_import[1]
    feeds = {"x": X, "i": np.zeros(2, np.int64)}
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)[0]
    np.testing.assert_allclose(Session(model).run(feeds)["y"], expected, rtol=1e-5)


def test_masks_of_arrays_are_not_dropped() -> None:
    session = Session(chain(1))
    with pytest.raises(TenonnxError, match="masked"):
        session.run({"x0": np.ma.masked_array(np.zeros(4, np.float32), [0, 1, 0, 0])})
