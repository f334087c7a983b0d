"""An onnxruntime-genai folder: its caches declared, its lengths explicit, its tokenizer carried along."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from tenonnx import Session, convert
from tenonnx.check import raise_errors
from tenonnx.errors import PayloadError, UnsupportedError
from tenonnx.schema.messages import ValueInfoProto
from tenonnx.text.loading import Names
from tests.genai_folders import HEAD, KV_HEADS, LAYERS, VOCABULARY, config, gqa_model, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path)


def change(folder: Path, **decoder: Any) -> None:
    changed = config()
    changed["model"]["decoder"].update(decoder)
    (folder / "genai_config.json").write_text(json.dumps(changed))


def test_every_pair_is_declared_on_node_input_and_output(folder: Path) -> None:
    model, root, findings = convert.from_onnx(folder)
    assert root == folder
    assert [cache.how for cache in findings.caches] == ["GroupQueryAttention writes in place"] * 2 * LAYERS
    writable = {value.name for value in model.graph.input if value.access == ValueInfoProto.READ_WRITE}
    outputs = {value.name: value for value in model.graph.output}
    for layer in range(LAYERS):
        for part in ("key", "value"):
            assert f"past_key_values.{layer}.{part}" in writable
            assert outputs[f"present.{layer}.{part}"].alias_of == f"past_key_values.{layer}.{part}"
    nodes = [node for node in model.graph.node if node.op_type == "GroupQueryAttention"]
    for node in nodes:
        assert [(entry.output_index, entry.input_index) for entry in node.output_alias] == [(1, 3), (2, 4)]
        assert [(entry.key, entry.value) for entry in node.metadata_props] == [("tenonnx.position", "position")]
    raise_errors(model)


def steps(model: onnx.ModelProto, explicit: bool, batch: int) -> list[np.ndarray]:
    """Logits of a prompt and of single tokens, presents fed back, by onnxruntime."""
    session = onnxruntime.InferenceSession(model.SerializeToString())
    names = [value.name for value in session.get_outputs()]
    pairs = {f"past_key_values.{i}.{part}": f"present.{i}.{part}" for i in range(LAYERS) for part in ("key", "value")}
    past = {name: np.zeros((batch, KV_HEADS, 16, HEAD), np.float32) for name in pairs}
    random, length, found = np.random.default_rng(1), 0, []
    for count in (5, 1, 1):
        feeds: dict[str, np.ndarray] = {"input_ids": random.integers(0, VOCABULARY, (batch, count))}
        if explicit:
            feeds |= {"position": np.array(length), "logit_rows": np.arange(count)}
        else:
            feeds["attention_mask"] = np.ones((batch, length + count), np.int64)
        results = dict(zip(names, session.run(None, {**feeds, **past}), strict=True))
        past = {name: results[present] for name, present in pairs.items()}
        length += count
        found.append(results["logits"])
    return found


@pytest.mark.parametrize("batch", [1, 3])
def test_the_position_tells_what_the_mask_told(folder: Path, batch: int) -> None:
    model, _, _ = convert.from_onnx(folder)
    inputs = [value.name for value in model.graph.input]
    assert "position" in inputs
    assert "attention_mask" not in inputs
    after = onnx.ModelProto.FromString(model.SerializeToString())
    for ours, theirs in zip(steps(after, True, batch), steps(gqa_model(), False, batch), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_rows_of_logits_that_are_asked_for_are_those_of_all(folder: Path) -> None:
    model, _, _ = convert.from_onnx(folder)
    session = Session(model)
    feeds = {"input_ids": np.array([[5, 7, 1, 6]])}
    made = [
        session.run(feeds | {"logit_rows": np.array(rows)}, cache=session.new_cache(context=8))["logits"]
        for rows in ([0, 1, 2, 3], [3], [2, 0])
    ]
    np.testing.assert_array_equal(made[1], made[0][:, [3]])
    np.testing.assert_array_equal(made[2], made[0][:, [2, 0]])


def test_logits_of_one_row_stay_as_they_are(folder: Path) -> None:
    stock = gqa_model()
    stock.graph.output[0].type.tensor_type.shape.dim[1].ClearField("dim_param")
    stock.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 1
    onnx.save(stock, folder / "model.onnx")
    model, _, _ = convert.from_onnx(folder)
    assert "logit_rows" not in [value.name for value in model.graph.input]


def test_a_mask_with_another_use_stays(folder: Path) -> None:
    stock = gqa_model()
    stock.graph.node.append(helper.make_node("Cast", ["attention_mask"], ["more"], to=1))
    stock.graph.output.append(helper.make_tensor_value_info("more", 1, ["batch_size", "total_sequence_length"]))
    onnx.save(stock, folder / "model.onnx")
    model, _, _ = convert.from_onnx(folder)
    inputs = [value.name for value in model.graph.input]
    assert {"attention_mask", "position"} <= set(inputs)


def test_lengths_from_elsewhere_stay(folder: Path) -> None:
    stock = gqa_model()
    next(node for node in stock.graph.node if node.op_type == "Sub").op_type = "Add"
    onnx.save(stock, folder / "model.onnx")
    model, _, findings = convert.from_onnx(folder)
    assert "position" not in [value.name for value in model.graph.input]
    assert any("lengths from elsewhere" in note for note in findings.notes)


def test_text_finds_its_way(folder: Path) -> None:
    model, _, _ = convert.from_onnx(folder)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    assert Names.from_metadata(metadata) == Names("input_ids", "", "logit_rows", "", "logits")
    assert metadata["tenonnx.context_length"] == "64"
    assert metadata["tenonnx.chat_template"] == "{{ messages[0].content }}"
    special = json.loads(metadata["tenonnx.special_tokens"])
    assert special["eos"] == [4, 2, 3]
    assert special["bos"] == 1
    assert special["add_bos"]


def test_written_beside_its_weights(folder: Path) -> None:
    report = convert.convert(folder, folder / "declared.onnx")
    assert len(report.caches) == 2 * LAYERS
    assert report.architecture == "llama"
    with pytest.raises(PayloadError, match="would replace"):
        convert.convert(folder, folder / "model.onnx")


@pytest.mark.parametrize(
    ("decoder", "message"),
    [
        ({"filename": None}, "no single decoder"),
        ({"pipeline": [{}]}, "no single decoder"),
        ({"inputs": {"input_ids": "input_ids"}}, "names no past and present key caches"),
    ],
)
def test_what_is_no_decoder_is_refused(folder: Path, decoder: dict[str, Any], message: str) -> None:
    change(folder, **decoder)
    with pytest.raises(UnsupportedError, match=message):
        convert.from_onnx(folder)


def test_hostile_configurations(folder: Path) -> None:
    change(folder, filename="../model.onnx")
    with pytest.raises(PayloadError, match="outside the folder"):
        convert.from_onnx(folder)
    change(folder, num_hidden_layers=3)
    with pytest.raises(PayloadError, match=r"past_key_values.2.key"):
        convert.from_onnx(folder)
    for text in ("", "[1]", "{", "[" * 100_000):
        (folder / "genai_config.json").write_text(text)
        with pytest.raises(PayloadError, match=r"genai_config.json"):
            convert.from_onnx(folder)
    for about in ({}, {"model": 3}, {"model": {"decoder": []}}):
        (folder / "genai_config.json").write_text(json.dumps(about))
        with pytest.raises(UnsupportedError):
            convert.from_onnx(folder)
