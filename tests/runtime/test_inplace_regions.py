"""GroupQueryAttention in an onnxruntime region: its caches are written where they lie, within their capacity."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from tenonnx import CapacityError, CheckError, Session, UnsupportedError, ledger, writable
from tenonnx.schema.messages import ValueAliasProto, ValueInfoProto, from_onnx

HEADS, KV, HEAD, CAPACITY = 4, 2, 16, 12


def gqa_model(layers: int = 2, extra: tuple = (), outputs: tuple = ()):
    """A chain of attention layers over caches; every layer adds its output to the hidden state."""
    floats, ints = TensorProto.FLOAT, TensorProto.INT32
    nodes, ins, outs = list(extra), [], []
    hidden = "x"
    for layer in range(layers):
        k, v = f"past_k.{layer}", f"past_v.{layer}"
        nodes += [
            helper.make_node("Slice", [hidden, "zero", "kv_width", "last_axis"], [f"kv.{layer}"]),
            helper.make_node(
                "GroupQueryAttention",
                [hidden, f"kv.{layer}", f"kv.{layer}", k, v, "seqlens", "total"],
                [f"y.{layer}", f"present_k.{layer}", f"present_v.{layer}"],
                name=f"attention.{layer}", domain="com.microsoft", num_heads=HEADS, kv_num_heads=KV,
            ),
            helper.make_node("Add", [hidden, f"y.{layer}"], [f"h.{layer}"]),
        ]  # fmt: skip
        hidden = f"h.{layer}"
        for name in (k, v):
            shape = ["batch", KV, "capacity", HEAD]
            ins.append(helper.make_tensor_value_info(name, floats, shape))
            outs.append(helper.make_tensor_value_info(name.replace("past", "present"), floats, shape))
    width = HEADS * HEAD
    inputs = [
        helper.make_tensor_value_info("x", floats, ["batch", "n", width]),
        helper.make_tensor_value_info("seqlens", ints, ["batch"]),
        helper.make_tensor_value_info("total", ints, []),
        *ins,
    ]
    results = [helper.make_tensor_value_info(hidden, floats, ["batch", "n", width]), *outs, *outputs]
    info = [helper.make_tensor_value_info(f"y.{layer}", floats, ["batch", "n", width]) for layer in range(layers)]
    constants = [
        helper.make_tensor("zero", TensorProto.INT64, [1], [0]),
        helper.make_tensor("kv_width", TensorProto.INT64, [1], [KV * HEAD]),
        helper.make_tensor("last_axis", TensorProto.INT64, [1], [2]),
    ]
    graph = helper.make_graph(nodes, "g", inputs, results, constants, value_info=info)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def declared(model):
    """The same model with its aliases declared."""
    model = from_onnx(model)
    for value in model.graph.input:
        if value.name.startswith("past"):
            value.access = ValueInfoProto.READ_WRITE
    for value in model.graph.output:
        if value.name.startswith("present"):
            value.alias_of = value.name.replace("present", "past")
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            node.output_alias.add(output_index=1, input_index=3, kind=ValueAliasProto.MUST_ALIAS)
            node.output_alias.add(output_index=2, input_index=4, kind=ValueAliasProto.MUST_ALIAS)
    return model


def feeds(rng, n: int, past: int):
    return {
        "x": rng.standard_normal((1, n, HEADS * HEAD)).astype(np.float32),
        "seqlens": np.array([past + n - 1], np.int32),
        "total": np.array(past + n, np.int32),
    }


def caches(layers: int = 2):
    names = [f"past_{part}.{layer}" for layer in range(layers) for part in "kv"]
    return {name: np.zeros((1, KV, CAPACITY, HEAD), np.float32) for name in names}


def test_a_prompt_and_steps_equal_onnxruntime_with_buffers_of_its_own():
    rng = np.random.default_rng(0)
    stock = onnxruntime.InferenceSession(gqa_model().SerializeToString(), providers=["CPUExecutionProvider"])
    session, ours, theirs = Session(declared(gqa_model())), caches(), caches()
    past = 0
    for n in (5, 1, 1, 3):
        given = feeds(rng, n, past)
        expected = dict(zip([o.name for o in stock.get_outputs()], stock.run(None, {**given, **theirs}), strict=True))
        before = ledger()["cache"]["total"]
        found = session.run({**given, **{name: writable(array) for name, array in ours.items()}})
        np.testing.assert_allclose(found["h.1"], expected["h.1"], rtol=1e-5, atol=1e-6)
        past += n
        for name in ours:
            present = name.replace("past", "present")
            assert found[present].ctypes.data == ours[name].ctypes.data
            np.testing.assert_allclose(ours[name][:, :, :past], expected[present][:, :, :past], rtol=1e-5, atol=1e-6)
            theirs[name] = np.array(expected[present])
        assert ledger()["cache"]["total"] == before


@pytest.mark.parametrize(
    ("seqlens", "total"), [(CAPACITY, CAPACITY), (2**31 - 1, 4), (-1, 4), (0, 4), (3, CAPACITY + 1), (3, -5)]
)
def test_lengths_past_the_cache_are_refused_before_a_byte_is_written(seqlens: int, total: int):
    rng = np.random.default_rng(1)
    session, ours = Session(declared(gqa_model())), caches()
    given = feeds(rng, 4, 0) | {"seqlens": np.array([seqlens], np.int32), "total": np.array(total, np.int32)}
    with pytest.raises(CapacityError, match="attention"):
        session.run({**given, **{name: writable(array) for name, array in ours.items()}})
    assert not any(array.any() for array in ours.values())
    session.run({**feeds(rng, 4, 0), **{name: writable(array) for name, array in ours.items()}})


def test_a_reader_of_the_old_name_sees_the_old_content():
    """onnxruntime alone may run such a reader after the update; a region of its own comes before."""
    total = helper.make_tensor_value_info("sum", TensorProto.FLOAT, [1, 1, 1, 1])
    late = helper.make_node("ReduceSum", ["past_k.0"], ["sum"], keepdims=1)
    model = gqa_model(outputs=(total,))
    model.graph.node.append(late)
    session, ours, rng = Session(declared(model)), caches(), np.random.default_rng(2)
    for array in ours.values():
        array += 1
    found = session.run({**feeds(rng, 3, 2), **{name: writable(array) for name, array in ours.items()}})
    assert found["sum"].item() == KV * CAPACITY * HEAD


def test_a_producer_between_the_input_and_the_update_is_refused():
    """A copy in front of the update would go unseen by an address check."""
    model = gqa_model(layers=1)
    model.graph.node.insert(0, helper.make_node("Identity", ["past_k.0"], ["copied"]))
    model.graph.node[2].input[3] = "copied"
    with pytest.raises(CheckError, match="past_k"):
        Session(declared(model))


def test_an_operator_that_only_copies_is_refused():
    model = declared(gqa_model(layers=1))
    attention = next(node for node in model.graph.node if node.op_type == "GroupQueryAttention")
    attention.output_alias[0].input_index = 4
    attention.output_alias[1].input_index = 3
    for value in model.graph.output:
        if value.alias_of:
            value.alias_of = "past_v.0" if "_k" in value.name else "past_k.0"
    session, ours = Session(model), caches(1)
    with pytest.raises(UnsupportedError, match="no kernel that writes it in place"):
        given = feeds(np.random.default_rng(3), 2, 0)
        session.run({**given, **{name: writable(array) for name, array in ours.items()}})
