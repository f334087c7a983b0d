"""The files that the benchmarks race over, made once in a folder from the pulled SmolLM2 or from random numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

REPOSITORY = Path(__file__).parents[1]
GENAI = {
    "genai-int4": ("int4", ["hf_token=false"]),
    "genai-int4-h8": ("int4", ["hf_token=false", "algo_config=rtn_last", "prune_lm_head=true"]),
    "genai-fp32": ("fp32", ["hf_token=false"]),
}
# Of llama.cpp's mixtures: more bits for half of the values and of the second feed-forward matrices, and for the embedding.
_Q6 = ["token_embd.weight", *(f"blk.{n}.{part}.weight" for n in range(0, 16, 2) for part in ("attn_v", "ffn_down"))]
MIXTURES = {"Q4_K_M": ("Q4_K", dict.fromkeys(_Q6, "Q6_K")), "Q6_K": ("Q6_K", {})}


def smollm2() -> Path:
    from tenonnx import text

    return Path(text.known("smollm2-135m").path)


def packed(folder: Path, source: Path) -> Path:
    """A GGUF converted, and its weights stored as kernels read them: what every start but the first finds."""
    from tenonnx import convert
    from tenonnx.compiled.store import build

    out = folder / source.stem / "model.onnx"
    if not out.exists():
        out.parent.mkdir(exist_ok=True)
        convert.convert(source, out, copy=True)
    build(out)  # what it lacks
    return out


def genai_folder(folder: Path, name: str) -> Path:
    """What onnxruntime-genai's own builder makes of SmolLM2's weights; needs torch and transformers the first time."""
    precision, options = GENAI[name]
    out, source = folder / name, folder / "hf"
    if not (out / "genai_config.json").exists():
        if not source.exists():
            from exports import transformers_model

            transformers_model(smollm2(), source)
        command = ["-m", "onnxruntime_genai.models.builder", "-i", source, "-o", out, "-p", precision, "-e", "cpu"]
        subprocess.run([sys.executable, *map(str, command), "--extra_options", *options], check=True)
    return out


def requantized(folder: Path, name: str) -> Path:
    """SmolLM2's GGUF with its matrices in another format, by the gguf package."""
    import gguf

    out = folder / f"SmolLM2-135M-Instruct.{name}.gguf"
    if out.exists():
        return out
    reader, kind, part = gguf.GGUFReader(smollm2()), gguf.GGMLQuantizationType[name], out.with_suffix(".part")
    writer = gguf.GGUFWriter(part, "llama")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            element = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=element)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if values.ndim == 2 and tensor.name != "token_embd.weight":
            writer.add_tensor(tensor.name, gguf.quants.quantize(values.astype(np.float32), kind), raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    _finish(writer)
    part.rename(out)
    return out


def random_llama(folder: Path, name: str) -> Path:
    """A llama of 16 layers, 1,024 wide, with random blocks: formats of 256 elements do not divide SmolLM2's 576."""
    sys.path.insert(0, str(REPOSITORY))
    from tests.gguf_files import write_llama

    out = folder / f"random-1024x16.{name}.gguf"
    if not out.exists():
        matrices, single = MIXTURES[name]
        part = out.with_suffix(".part")
        write_llama(
            part, layers=16, hidden=1024, ffn=2816, heads=16, kv_heads=4, format=matrices, formats=single, vocabulary="bpe",
            metadata={"context_length": 4096},
        )  # fmt: skip
        part.rename(out)
    return out


def _finish(writer: object) -> None:
    for step in ("write_header_to_file", "write_kv_data_to_file", "write_tensors_to_file", "close"):
        getattr(writer, step)()


OTHER_FILES = {"Q4_0": requantized, "Q8_0": requantized, "Q4_K_M": random_llama, "Q6_K": random_llama}
