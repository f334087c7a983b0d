"""Small folders as onnxruntime-genai's builder writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LAYERS, HEADS, KV_HEADS, HEAD, VOCABULARY = 2, 4, 2, 8, 13
QKV = (HEADS + 2 * KV_HEADS) * HEAD


def gqa_model() -> onnx.ModelProto:
    """The graph that onnxruntime-genai's builder makes, but for its norms and feed-forward layers."""
    random = np.random.default_rng(2)
    weights = [numpy_helper.from_array(np.array(1, np.int64), "one"), numpy_helper.from_array(np.array([1], np.int64), "axis")]
    nodes = [
        helper.make_node("ReduceSum", ["attention_mask", "axis"], ["sum"], keepdims=0),
        helper.make_node("Sub", ["sum", "axis"], ["last"]),
        helper.make_node("Cast", ["last"], ["lengths"], to=TensorProto.INT32),
        helper.make_node("Shape", ["attention_mask"], ["mask_shape"]),
        helper.make_node("Gather", ["mask_shape", "one"], ["total64"], axis=0),
        helper.make_node("Cast", ["total64"], ["total"], to=TensorProto.INT32),
        helper.make_node("Gather", ["embedding", "input_ids"], ["x.0"]),
    ]
    width = HEADS * HEAD
    weights.append(numpy_helper.from_array(random.standard_normal((VOCABULARY, width)).astype(np.float32), "embedding"))
    past, present = [], []
    for layer in range(LAYERS):
        weight = random.standard_normal((width, QKV)) / np.sqrt(width)
        weights.append(numpy_helper.from_array(weight.astype(np.float32), f"w.{layer}"))
        nodes.append(helper.make_node("MatMul", [f"x.{layer}", f"w.{layer}"], [f"qkv.{layer}"]))
        caches = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
        inputs = [f"qkv.{layer}", "", "", *caches, "lengths", "total"]
        outputs = [f"x.{layer + 1}", *(f"present.{layer}.{part}" for part in ("key", "value"))]
        nodes.append(
            helper.make_node(
                "GroupQueryAttention", inputs, outputs, domain="com.microsoft", num_heads=HEADS, kv_num_heads=KV_HEADS
            )
        )
        for name, length, values in (*((c, "past_sequence_length", past) for c in caches),):
            values.append(helper.make_tensor_value_info(name, 1, ["batch_size", KV_HEADS, length, HEAD]))
        for name in outputs[1:]:
            present.append(helper.make_tensor_value_info(name, 1, ["batch_size", KV_HEADS, "total_sequence_length", HEAD]))
    head = random.standard_normal((width, VOCABULARY)).astype(np.float32)
    weights.append(numpy_helper.from_array(head, "head"))
    nodes.append(helper.make_node("MatMul", [f"x.{LAYERS}", "head"], ["logits"]))
    inputs = [
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch_size", "sequence_length"]),
        helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch_size", "total_sequence_length"]),
    ]
    outputs = [helper.make_tensor_value_info("logits", 1, ["batch_size", "sequence_length", VOCABULARY]), *present]
    hidden = ["batch_size", "sequence_length", width]
    info = [helper.make_tensor_value_info(f"x.{layer}", 1, hidden) for layer in range(LAYERS + 1)]
    graph = helper.make_graph(nodes, "genai", [*inputs, *past], outputs, weights, value_info=info)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, ir_version=10, opset_imports=opsets)


def config() -> dict[str, Any]:
    decoder = {
        "filename": "model.onnx",
        "num_hidden_layers": LAYERS,
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {"logits": "logits", "present_key_names": "present.%d.key", "present_value_names": "present.%d.value"},
    }
    model = {"type": "llama", "decoder": decoder, "context_length": 64, "eos_token_id": [4, 2], "bos_token_id": 1}
    return {"model": model, "search": {"past_present_share_buffer": True, "max_length": 64}}


def tokenizer_json() -> str:
    from tokenizers import Tokenizer, models, processors

    vocabulary = {text: number for number, text in enumerate("ab<>cdefgh")}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="c"))
    tokenizer.add_special_tokens(["<"])
    tokenizer.post_processor = processors.TemplateProcessing(single="b $A", special_tokens=[("b", 1)])
    return str(tokenizer.to_str())


def write(folder: Path, model: onnx.ModelProto | None = None) -> Path:
    """A whole folder: model, configuration, tokenizer, chat template."""
    onnx.save(model or gqa_model(), folder / "model.onnx")
    (folder / "genai_config.json").write_text(json.dumps(config()))
    (folder / "tokenizer.json").write_text(tokenizer_json())
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": ">"}, "chat_template": "old"}))
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    return folder
