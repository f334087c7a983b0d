"""Text from an onnxruntime-genai folder: the tokens of stock onnxruntime, from caches that nothing copies."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tenonnx import ShapeError, UnsupportedError, convert, text
from tenonnx.text.generation import Context
from tests.genai_folders import HEAD, KV_HEADS, LAYERS, config, gqa_model, write

PROMPT = [5, 7, 1, 6]


def greedy(model: onnx.ModelProto, prompt: list[int], count: int) -> list[int]:
    """As onnxruntime-genai goes about it: one mask as long as the text, presents fed back."""
    session = onnxruntime.InferenceSession(model.SerializeToString())
    names = [value.name for value in session.get_outputs()]
    pairs = {f"past_key_values.{i}.{part}": f"present.{i}.{part}" for i in range(LAYERS) for part in ("key", "value")}
    past = {name: np.zeros((1, KV_HEADS, 32, HEAD), np.float32) for name in pairs}
    new, found, length = list(prompt), [], 0
    for _ in range(count):
        length += len(new)
        feeds = {"input_ids": np.array([new]), "attention_mask": np.ones((1, length), np.int64)}
        results = dict(zip(names, session.run(None, {**feeds, **past}), strict=True))
        past = {name: results[present] for name, present in pairs.items()}
        new = [int(results["logits"][0, -1].argmax())]
        found += new
    return found


@pytest.mark.parametrize("written", [False, True])
def test_a_folder_writes_the_tokens_that_stock_onnxruntime_writes(tmp_path: Path, written: bool) -> None:
    path = write(tmp_path)
    if written:
        path = convert.convert(path, tmp_path / "declared.onnx").path
    model = text.load_model(path)
    context = Context(model, 32)
    before, found, new = model.cache_bytes_allocated(), [], PROMPT
    for _ in range(12):
        new = [int(context.run(new).argmax())]
        found += new
    assert found == greedy(gqa_model(), PROMPT, 12)
    assert context.cache.length == len(PROMPT) + 11
    assert model.cache_bytes_allocated() == before


def test_generate_takes_the_tokenizer_and_the_end_of_the_folder(tmp_path: Path) -> None:
    model = text.load_model(write(tmp_path))
    made = text.generate(model, "d", max_tokens=6, temperature=0)
    prompt = model.tokenizer.encode_prompt("d")
    assert prompt == [1, 5] and model.tokenizer.eos == {2, 3, 4}  # "b" in front, as the tokenizer's template says
    expected = greedy(gqa_model(), prompt, 6)
    end = next((number for number, token in enumerate(expected) if token in (2, 3, 4)), 5)
    assert made.token_ids == expected[: end + 1]
    assert made.extra_cache_bytes == 0


def with_an_operator_of_onnxruntime_alone() -> onnx.ModelProto:
    """Behind the layers a Mul and a QuickGelu, which has no native kernel."""
    stock = gqa_model()
    last = stock.graph.node[-1]
    last.input[0] = "active"
    square = onnx.helper.make_node("Mul", [f"x.{LAYERS}"] * 2, ["squared"])
    active = onnx.helper.make_node("QuickGelu", ["squared"], ["active"], domain="com.microsoft")
    for node in (square, active):
        stock.graph.node.insert(len(stock.graph.node) - 1, node)
    hidden = next(value for value in stock.graph.value_info if value.name == "x.0")
    stock.graph.value_info.add().CopyFrom(hidden)
    stock.graph.value_info[-1].name = "active"
    return stock


def test_prompt_and_steps_share_one_region_and_one_onnxruntime_session(tmp_path: Path) -> None:
    """Weights that onnxruntime lays out for itself exist once, and no operator with a kernel cuts the layers in two."""
    stock = with_an_operator_of_onnxruntime_alone()
    model = text.load_model(write(tmp_path, stock))
    context = Context(model, 32)
    for tokens in (PROMPT, [2], [3, 4]):
        context.run(tokens)
    plans = [executable.plan for executable in model.session._executables.values()]
    assert [sum(step.kernel is None for step in plan.steps) for plan in plans] == [1, 1, 1]
    assert len(model.session._regions._engines) == 1


def test_a_head_size_that_only_the_configuration_says(tmp_path: Path) -> None:
    stock = gqa_model()
    for value in (*stock.graph.input, *stock.graph.output):
        if value.name.startswith(("past", "present")):
            value.type.tensor_type.shape.dim[3].dim_param = "kv_cache_dim"
    folder = write(tmp_path, stock)
    with pytest.raises(ShapeError, match=r"kv_cache_dim.*give its number"):
        text.load_model(folder).session.new_cache(8)
    about = config()
    about["model"]["decoder"]["head_size"] = HEAD
    (folder / "genai_config.json").write_text(json.dumps(about))
    cache = text.load_model(folder).session.new_cache(8)
    assert cache["past_key_values.0.key"].shape == (1, KV_HEADS, 8, HEAD)


def test_lengths_from_elsewhere_are_no_text(tmp_path: Path) -> None:
    """A mask of ones as long as the caches would say that all of them is valid: wrong tokens, and no error."""
    stock = gqa_model()
    next(node for node in stock.graph.node if node.op_type == "Sub").op_type = "Add"
    with pytest.raises(UnsupportedError, match="no input says where new rows of its caches go"):
        text.load_model(write(tmp_path, stock))


def test_constants_of_a_declared_rank_that_is_wrong(tmp_path: Path) -> None:
    """The builder declares lists of INT64 as scalars."""
    stock = gqa_model()
    shape = onnx.numpy_helper.from_array(np.array([-1, 1, HEAD * 4], np.int64))
    stock.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["list"], value=shape))
    stock.graph.value_info.append(onnx.helper.make_tensor_value_info("list", onnx.TensorProto.INT64, []))
    last = next(node for node in stock.graph.node if node.output[0] == "logits")
    last.input[0] = "rows"
    position = list(stock.graph.node).index(last)
    stock.graph.node.insert(position, onnx.helper.make_node("Reshape", [f"x.{LAYERS}", "list"], ["rows"]))
    context = Context(text.load_model(write(tmp_path, stock)), 8)
    assert context.run([3]).shape == (13,)
