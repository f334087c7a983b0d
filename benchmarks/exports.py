"""Make the ONNX models that people have of SmolLM2-135M-Instruct, for `tenonnx convert`.

    python benchmarks/exports.py FOLDER [dynamo] [int4] [fp32]

Needs, beside tenonnx: torch, transformers, accelerate, onnxscript, gguf, and onnxruntime-genai for int4 and fp32.
Everything is made from the GGUF that `tenonnx pull smollm2-135m` fetches.

    FOLDER/hf/           the transformers model, weights decoded to float32, with its tokenizer
    FOLDER/dynamo/       torch.onnx.export(dynamo=True) at opset 23: input_ids, attention_mask, position_ids and
                         past_key_values.N.key / .value in, logits and present.N.key / .value out; the tokenizer beside
    FOLDER/int4, fp32/   what onnxruntime-genai's builder makes
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

OPSET = 23


def transformers_model(gguf: Path, folder: Path) -> None:
    """The GGUF's weights, decoded, as a folder that transformers and onnxruntime-genai's builder read."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    vars(model.config).pop("quantization_config", None)  # some versions keep it, and then refuse the saved folder
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


def dynamo(source: Path, out: Path) -> None:
    """The concat-style export: each layer's present is its past with the new rows behind it."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.cache_utils import DynamicCache

    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    config = model.config
    layers, kv_heads = config.num_hidden_layers, config.num_key_value_heads
    head = config.hidden_size // config.num_attention_heads

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, past: list[Any]) -> Any:
            cache = DynamicCache(list(zip(past[::2], past[1::2], strict=True)))
            result = self.model(
                input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, past_key_values=cache
            )
            return result.logits, [part for layer in cache.layers for part in (layer.keys, layer.values)]

    batch, length, past_length = 1, 3, 5
    rows = torch.zeros(batch, length, dtype=torch.int64)
    mask = torch.ones(batch, past_length + length, dtype=torch.int64)
    past = [torch.zeros(batch, kv_heads, past_length, head) for _ in range(2 * layers)]
    names = [f"{layer}.{part}" for layer in range(layers) for part in ("key", "value")]
    length_dim, past_dim = torch.export.Dim("sequence_length"), torch.export.Dim("past_length")
    total = torch.export.Dim.DYNAMIC
    out.mkdir(parents=True, exist_ok=True)
    torch.onnx.export(
        Step(),
        (rows, mask, torch.arange(past_length, past_length + length)[None], past),
        out / "model.onnx",
        dynamo=True,
        opset_version=OPSET,
        input_names=["input_ids", "attention_mask", "position_ids", *(f"past_key_values.{name}" for name in names)],
        output_names=["logits", *(f"present.{name}" for name in names)],
        dynamic_shapes=({1: length_dim}, {1: total}, {1: length_dim}, [{2: past_dim} for _ in past]),
        external_data=True,
    )
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"):
        if (source / name).exists():
            shutil.copy(source / name, out)


def genai(source: Path, out: Path, precision: str) -> None:
    """What onnxruntime-genai's own builder makes of the transformers model for the CPU."""
    command = ["-m", "onnxruntime_genai.models.builder", "-i", source, "-o", out, "-p", precision, "-e", "cpu"]
    subprocess.run([sys.executable, *map(str, command), "--extra_options", "hf_token=false"], check=True)


def main(folder: Path, kinds: list[str]) -> None:
    """Make the models of ``kinds`` that are not there yet."""
    source = folder / "hf"
    if not source.exists():
        from tenonnx import text

        transformers_model(Path(text.known("smollm2-135m").path), source)
    for kind in kinds:
        if (folder / kind).exists():
            continue
        if kind == "dynamo":
            dynamo(source, folder / kind)
        else:
            genai(source, folder / kind, kind)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or ["dynamo", "int4", "fp32"])
