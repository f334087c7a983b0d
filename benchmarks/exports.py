"""The ONNX models that people have of SmolLM2-135M-Instruct: made, converted and measured against stock onnxruntime.

    python benchmarks/exports.py FOLDER [dynamo] [int4] [fp32] [--make] [--rounds N] [--json FILE]

    FOLDER/hf/           the transformers model, weights decoded to float32, with its tokenizer
    FOLDER/dynamo/       torch.onnx.export(dynamo=True) at opset 23: input_ids, attention_mask, position_ids and
                         past_key_values.N.key / .value in, logits and present.N.key / .value out; the tokenizer beside
    FOLDER/int4, fp32/   what onnxruntime-genai's builder makes

What FOLDER lacks is made from the GGUF that `tenonnx pull smollm2-135m` fetches; that needs torch, transformers, accelerate,
onnxscript, gguf, and onnxruntime-genai for int4 and fp32. `--make` ends there. Each model is converted to declared.onnx beside
it. Then stock onnxruntime with the export, and tenonnx with the converted model, decode the same English text, each in a
process of its own with 2 threads, taking turns: milliseconds of a token behind 16 and 3,000 others, the
logits' largest difference as a part of the largest logit of their row, and the peak of resident memory while decoding.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from processes import Process

OPSET = 23
DEPTHS = (16, 3000)
THREADS = 2
STEPS = 16  # tokens that one engine decodes in its turn


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


def make(folder: Path, kinds: list[str]) -> None:
    """Make the models of ``kinds`` that are not there yet."""
    source = folder / "hf"
    for kind in kinds:
        if (folder / kind / "model.onnx").exists():
            continue
        if not source.exists():
            from tenonnx import text

            transformers_model(Path(text.known("smollm2-135m").path), source)
        if kind == "dynamo":
            dynamo(source, folder / kind)
        else:
            genai(source, folder / kind, kind)


def convert(folder: Path) -> None:
    """declared.onnx beside an export, as `tenonnx convert` writes it."""
    from tenonnx import convert

    source = folder if (folder / "genai_config.json").exists() else folder / "model.onnx"
    convert.convert(source, folder / "declared.onnx")


def tokens(folder: Path, count: int) -> list[int]:
    """The first tokens of this project's documents."""
    from tenonnx import load, text

    documents = sorted((Path(__file__).parents[1] / "docs").glob("*.md"))
    metadata = {entry.key: entry.value for entry in load(folder / "declared.onnx").metadata_props}
    tokenizer = text.Tokenizer.from_metadata(metadata)
    found: list[int] = tokenizer.encode("\n".join(path.read_text() for path in documents))[:count]
    return found


def measured(folder: Path, rounds: int) -> dict[str, Any]:
    """Both engines on one export, in turns."""
    context = max(DEPTHS) + STEPS
    ids = tokens(folder, context)
    models = {"onnxruntime": folder / "model.onnx", "tenonnx": folder / "declared.onnx"}
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        engines = {kind: stack.enter_context(Process(kind, model, THREADS, context)) for kind, model in models.items()}
        found: dict[str, Any] = {"load_ms": {kind: round(engine.loaded["load"] * 1e3) for kind, engine in engines.items()}}
        for depth in DEPTHS:
            found[str(depth)] = _at(engines, ids[: depth + STEPS], depth, rounds, scratch / "logits.npy")
    return found


def _at(engines: dict[str, Process], ids: list[int], depth: int, rounds: int, scratch: Path) -> dict[str, Any]:
    rows: dict[str, np.ndarray] = {}
    times: dict[str, list[float]] = {kind: [] for kind in engines}
    for kind, engine in engines.items():
        engine("each", ids, str(scratch), depth)
        rows[kind] = np.load(scratch)
        engine("decode", depth, STEPS)
        engine("peak")
    for _ in range(rounds):
        for kind, engine in engines.items():
            times[kind].append(1e3 / engine("decode", depth, STEPS))
    theirs, ours = rows["onnxruntime"], rows["tenonnx"]
    medians = {kind: round(statistics.median(spent), 2) for kind, spent in times.items()}
    return {
        "step_ms": medians,
        "ratio": round(medians["onnxruntime"] / medians["tenonnx"], 2),
        "difference": float((np.abs(theirs - ours).max(1) / np.abs(theirs).max(1)).max()),
        "peak_mb": {kind: round(engine("peak") / 1e6) for kind, engine in engines.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("kinds", nargs="*", metavar="KIND", default=["dynamo", "int4", "fp32"])
    parser.add_argument("--make", action="store_true", help="make the models, and measure nothing")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    make(args.folder, args.kinds)
    if args.make:
        return
    figures = {}
    print("                onnxruntime  tenonnx         largest     peak MB    peak MB   load ms    load ms")
    print("model    cached          ms       ms  ratio  difference      theirs       ours    theirs       ours")
    for kind in args.kinds:
        convert(args.folder / kind)
        figures[kind] = measured(args.folder / kind, args.rounds)
        for depth in DEPTHS:
            row = figures[kind][str(depth)]
            cells = [*row["peak_mb"].values(), *figures[kind]["load_ms"].values()]
            print(f"{kind:8s} {depth:6d}", "{:11.1f} {:8.1f}".format(*row["step_ms"].values()), f"{row['ratio']:6.2f}", end=" ")
            print(f"{row['difference']:11.1e}", "{:11d} {:10d} {:9.0f} {:10.0f}".format(*cells), flush=True)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
