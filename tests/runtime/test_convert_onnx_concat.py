"""Exports that grow their caches by Concat: what they compute is kept, what they copy is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tenonnx.check import check
from tests.exports import VOCABULARY, Export, converted, in_onnxruntime, in_tenonnx, original

RUNNERS = {"tenonnx": in_tenonnx, "onnxruntime": in_onnxruntime}
LENGTHS = (5, 1, 1, 3)
CAPACITY = 13  # 3 more than the steps write


def ops(model: Any) -> list[str]:
    return [node.op_type for node in model.graph.node]


def agree(export: onnx.ModelProto, model: Any, runner: str, batch: int, mask: np.ndarray | None = None) -> None:
    before, after = original(export, batch), RUNNERS[runner](model, batch, CAPACITY)
    random, past = np.random.default_rng(3), 0
    for count in LENGTHS:
        feeds = {"input_ids": random.integers(0, VOCABULARY, (batch, count))}
        if mask is not None:
            feeds["attention_mask"] = mask[:, : past + count]
        expected = before(feeds)
        if mask is not None:  # of one length at every step; what lies past the valid length does not count
            feeds["attention_mask"] = mask
        np.testing.assert_allclose(after(feeds), expected, rtol=0, atol=1e-5 * np.abs(expected).max())
        past += count


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("spelled_out", [False, True])
@pytest.mark.parametrize(("q_heads", "kv_heads", "head"), [(6, 2, 8), (3, 3, 4), (7, 1, 6)])
def test_causal_attention_reads_the_cache_where_it_lies(
    tmp_path: Path, runner: str, spelled_out: bool, q_heads: int, kv_heads: int, head: int
) -> None:
    export = Export(q_heads=q_heads, kv_heads=kv_heads, head=head, spelled_out=spelled_out).build()
    model, findings = converted(export, tmp_path)
    assert [cache.how for cache in findings.caches] == ["CacheUpdate"] * 4
    left = ops(model)
    assert left.count("CacheUpdate") == 4
    assert left.count("Attention") == 2
    assert not {"Expand", "Softmax", "Range", "LessOrEqual"} & {*left} - {"Expand"}
    assert left.count("Expand") == 1  # of the valid length to the batch
    assert check(model) == []
    agree(export, model, runner, batch=2)


@pytest.mark.parametrize("scores", [False, True])
@pytest.mark.parametrize("runner", RUNNERS)
def test_padding_is_kept_and_its_length_may_be_the_capacity(tmp_path: Path, runner: str, scores: bool) -> None:
    export = Export(mask="padding", scores=scores).build()
    model, findings = converted(export, tmp_path)
    assert any("padding in 'attention_mask'" in note for note in findings.notes)
    mask = np.ones((2, CAPACITY), np.int64)
    mask[1, 3] = 0  # a position that is masked from the second step on, and inside the prompt
    agree(export, model, runner, batch=2, mask=mask)


def test_a_fixed_batch_of_one(tmp_path: Path) -> None:
    export = Export(batch=1, mask="padding").build()
    model, _ = converted(export, tmp_path)
    agree(export, model, "tenonnx", batch=1, mask=np.ones((1, CAPACITY), np.int64))


@pytest.mark.parametrize("spelled_out", [False, True])
def test_no_mask_at_all(tmp_path: Path, spelled_out: bool) -> None:
    export = Export(mask="none", spelled_out=spelled_out).build()
    model, _ = converted(export, tmp_path)
    assert all(not any(a.name == "is_causal" for a in n.attribute) for n in model.graph.node if n.op_type == "Attention")
    agree(export, model, "tenonnx", batch=2)


def test_a_mask_that_is_not_causal_stays(tmp_path: Path) -> None:
    export = Export(mask="window").build()
    model, findings = converted(export, tmp_path)
    assert any("not proved to be causal" in note for note in findings.notes)
    agree(export, model, "onnxruntime", batch=2)


def test_scaled_keys(tmp_path: Path) -> None:
    export = Export(spelled_out=True, scale_keys=True).build()
    model, _ = converted(export, tmp_path)
    assert "Softmax" not in ops(model)
    agree(export, model, "tenonnx", batch=2)


@pytest.mark.parametrize("opset", [14, 17, 18])
def test_older_operator_versions(tmp_path: Path, opset: int) -> None:
    export = Export(spelled_out=True, opset=max(opset, 15)).build()
    model, _ = converted(export, tmp_path)
    assert [entry.version for entry in model.opset_import if not entry.domain] == [24]
    agree(export, model, "tenonnx", batch=2)


def test_an_unknown_reader_gets_the_valid_range_and_a_line(tmp_path: Path) -> None:
    made = Export()
    graph = made.build()
    # The sum of all keys, scaled down, is added to the output: no attention, but a reader of the present.
    total = helper.make_node("ReduceSum", ["present.0.key"], ["sum"], name="spy", keepdims=0)
    small = helper.make_node("Mul", ["sum", "tiny"], ["small"])
    graph.graph.initializer.append(numpy_helper.from_array(np.float32(1e-3), "tiny"))
    last = graph.graph.node.pop()
    graph.graph.node.extend([total, small, helper.make_node("Add", [last.input[0], "small"], ["y"])])
    model, findings = converted(graph, tmp_path)
    lines = [str(cache) for cache in findings.caches]
    assert "past.0.key -> present.0.key: CacheUpdate; spy read a copy of its valid range" in lines
    agree(graph, model, "onnxruntime", batch=2)


def test_who_asks_for_a_shape_gets_the_lengths_that_it_had(tmp_path: Path) -> None:
    graph = Export().build()
    last = graph.graph.node.pop()
    nodes = [
        helper.make_node("Shape", ["past.0.key"], ["whole"]),
        helper.make_node("Shape", ["present.0.value"], ["rows"], start=-2),
        helper.make_node("Shape", ["present.0.value"], ["heads"], start=0, end=2),
        helper.make_node("Concat", ["whole", "rows", "heads"], ["all"], axis=0),
        helper.make_node("Cast", ["all"], ["all.float"], to=1),
        helper.make_node("Gather", ["all.float", "numbers"], ["picked"]),
        helper.make_node("ReduceSum", ["picked"], ["sum"], keepdims=0),
        helper.make_node("Add", [last.input[0], "sum"], ["y"]),
    ]
    graph.graph.initializer.append(numpy_helper.from_array(np.arange(8), "numbers"))
    graph.graph.node.extend(nodes)
    model, _ = converted(graph, tmp_path)
    agree(graph, model, "onnxruntime", batch=2)
    agree(graph, model, "tenonnx", batch=2)


class OtherRepeats(Export):
    """Values that look like heads repeated for their queries and are not."""

    axis, target = 2, (0, 2, -1, 8)

    def repeated(self, value: str) -> str:
        opened = self.node("Unsqueeze", [value, self.ints(self.axis)], f"{value}.opened")
        sizes = [1, 1, 1, 1, 1]
        sizes[self.axis] = 3
        wide = self.node("Expand", [opened, self.ints(*sizes)], f"{value}.expanded")
        return self.node("Reshape", [wide, self.ints(*self.target)], f"{value}.repeated")


class OtherOrder(OtherRepeats):
    """Heads in the order 0 1 0 1 0 1, where grouped queries want 0 0 0 1 1 1."""

    axis, target = 1, (0, 6, -1, 8)


@pytest.mark.parametrize("kind", [OtherRepeats, OtherOrder])
def test_other_repetitions_are_unknown_readers(tmp_path: Path, kind: type[Export]) -> None:
    heads = 6 if kind is OtherOrder else 2
    export = kind(q_heads=heads, kv_heads=2, mask="none").build()
    model, findings = converted(export, tmp_path)
    assert all("read a copy of its valid range" in cache.how for cache in findings.caches)
    agree(export, model, "onnxruntime", batch=2)


# ---- What is no such cache


def refused(graph: onnx.ModelProto, folder: Path) -> str:
    _, findings = converted(graph, folder)
    (line,) = [str(cache) for cache in findings.caches if cache.source == "past.0.key"]
    return line


def test_the_new_rows_in_front(tmp_path: Path) -> None:
    graph = Export(mask="none").build()
    concat = next(node for node in graph.graph.node if node.output[0] == "present.0.key")
    concat.input[:] = reversed(concat.input)
    assert "expected the past and the new rows" in refused(graph, tmp_path)


def test_a_past_that_is_read_elsewhere(tmp_path: Path) -> None:
    graph = Export(mask="none").build()
    graph.graph.node.append(helper.make_node("ReduceSum", ["past.0.key"], ["extra"], name="spy"))
    graph.graph.output.append(helper.make_tensor_value_info("extra", 1, None))
    assert "not converted: node spy reads the past as well" in refused(graph, tmp_path)


def test_a_fixed_past(tmp_path: Path) -> None:
    graph = Export(mask="none").build()
    graph.graph.input[1].type.tensor_type.shape.dim[2].dim_value = 4
    graph.graph.output[1].type.tensor_type.shape.dim[2].dim_param = "longer"
    assert "its length is fixed to 4" in refused(graph, tmp_path)


def test_pasts_of_two_lengths(tmp_path: Path) -> None:
    graph = Export(mask="none").build()
    for value in graph.graph.input:
        if value.name == "past.1.value":
            value.type.tensor_type.shape.dim[2].dim_param = "another"
    _, findings = converted(graph, tmp_path)
    line = next(str(cache) for cache in findings.caches if cache.source == "past.1.value")
    assert "its length another is not that of past.0.key, past_length" in line


def test_a_past_that_nobody_continues(tmp_path: Path) -> None:
    graph = Export(mask="none").build()
    graph.graph.input.append(helper.make_tensor_value_info("encoder.past.key", 1, ["batch", 2, "e", 8]))
    _, findings = converted(graph, tmp_path)
    assert "encoder.past.key: not converted: no Concat" in str(findings.caches[-1])
