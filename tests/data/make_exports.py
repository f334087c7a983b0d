"""Makes the .onnx files beside it: tiny transformers models with random weights, as PyTorch exports them.

    python tests/data/make_exports.py

Needs torch, transformers and onnxscript, which the tests do not: they read the files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import torch
import transformers
from transformers.cache_utils import DynamicCache

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 11, "max_position_embeddings": 32}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SIZES, intermediate_size=24, num_key_value_heads=2),
    "gpt2": lambda: transformers.GPT2Config(n_embd=16, n_layer=2, n_head=4, vocab_size=11, n_positions=32),
}
EXPORTS = {  # file: (model, attention implementation, opset, by torch.export)
    "llama_sdpa_23": ("llama", "sdpa", 23, True),
    "llama_eager_23": ("llama", "eager", 23, True),
    "llama_sdpa_18": ("llama", "sdpa", 18, True),
    "gpt2_sdpa_18": ("gpt2", "sdpa", 18, True),
    "llama_torchscript_17": ("llama", "sdpa", 17, False),
}


class Step(torch.nn.Module):
    """One call of a decoder, its caches as plain tensors."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, past: list[Any]) -> Any:
        cache = DynamicCache(list(zip(past[::2], past[1::2], strict=True)))
        result = self.model(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, past_key_values=cache)
        return result.logits, [part for layer in cache.layers for part in (layer.keys, layer.values)]


def export(path: Path, kind: str, attention: str, opset: int, dynamo: bool) -> None:
    torch.manual_seed(0)
    config = CONFIGS[kind]()
    config._attn_implementation = attention
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    kv_heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
    head = config.hidden_size // config.num_attention_heads
    batch, n, past = 2, 3, 5
    names = [f"{layer}.{part}" for layer in range(config.num_hidden_layers) for part in ("key", "value")]
    caches = [torch.zeros(batch, kv_heads, past, head) for _ in names]
    positions = torch.arange(past, past + n)[None].repeat(batch, 1)
    arguments = (torch.zeros_like(positions), torch.ones(batch, past + n, dtype=torch.int64), positions, caches)
    options: dict[str, Any] = {
        "opset_version": opset,
        "input_names": ["input_ids", "attention_mask", "position_ids", *(f"past.{name}" for name in names)],
        "output_names": ["y", *(f"present.{name}" for name in names)],
        "dynamo": dynamo,
    }
    if dynamo:
        dim = torch.export.Dim
        b, rows, length = dim("batch"), dim("n"), dim("past")
        cache = [{0: b, 2: length} for _ in names]
        options |= {"dynamic_shapes": ({0: b, 1: rows}, {0: b, 1: dim.DYNAMIC}, {0: b, 1: rows}, cache)}
        options |= {"external_data": False, "verbose": False}
    else:
        axes = {name: {0: "batch", 1: "n"} for name in ("input_ids", "position_ids", "y")}
        axes["attention_mask"] = {0: "batch", 1: "total"}
        axes |= {f"past.{name}": {0: "batch", 2: "past"} for name in names}
        axes |= {f"present.{name}": {0: "batch", 2: "past + n"} for name in names}
        options["dynamic_axes"] = axes
    torch.onnx.export(Step(model), arguments, path, **options)
    strip(path)


def strip(path: Path) -> None:
    """Drop stack traces and other notes on where a node comes from."""
    model = onnx.load(path)
    del model.metadata_props[:]
    for part in (model.graph, *model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    onnx.save(model, path)


if __name__ == "__main__":
    for file, arguments in EXPORTS.items():
        export(Path(__file__).with_name(f"{file}.onnx"), *arguments)
