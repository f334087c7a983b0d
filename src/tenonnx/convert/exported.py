"""An ONNX model or an onnxruntime-genai folder with its caches declared: rewritten where they grow, annotated where not."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tenonnx.check import raise_errors
from tenonnx.convert import annotate, concat, folder, genai
from tenonnx.convert.editing import set_metadata
from tenonnx.convert.report import Findings
from tenonnx.errors import PayloadError
from tenonnx.schema import files

_ROLES = ("input_ids", "position_ids", "attention_mask")
_CACHE_NAME = re.compile(r"past|cache|present|(^|[._])kv([._]|$)", re.IGNORECASE)
_CACHE_RANK = 3


def explicit(path: str | os.PathLike[str], aliases: Mapping[str, str], findings: Findings) -> tuple[Any, Path]:
    """The model at ``path`` with every cache that can be declared declared, and the folder of its external data.

    ``aliases`` are {output: input}, by hand. After each pass the contract is checked: ``CheckError`` names what breaks it.
    """
    path = Path(path)
    if genai.is_genai(path):
        model, root = genai.read(path, findings)
    elif path.is_dir():
        raise PayloadError(f"{path}: is a folder without {genai.CONFIG}; name the .onnx file or the GGUF in it")
    else:
        model, root = files.load(path), path.parent
        if concat.rewrite(model, findings):
            raise_errors(model)
        annotate.annotate(model, findings)
        _describe(model, path)
    raise_errors(model)
    if aliases:
        annotate.by_hand(model, aliases)
        raise_errors(model)
        for output, source in aliases.items():
            findings.converted(source, output, "aliased by hand")
    _name_the_rest(model, findings)
    return model, root


def _name_the_rest(model: Any, findings: Findings) -> None:
    """Inputs that look like caches and were not met by any pass."""
    constants = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        named = _CACHE_NAME.search(value.name) and len(value.type.tensor_type.shape.dim) >= _CACHE_RANK
        if named and not annotate.is_mutable(value) and value.name not in constants:
            findings.left(value.name, "", "no Concat or in-place operator continues it as an output; name one with --alias")


def _describe(model: Any, path: Path) -> None:
    """The tokenizer and configuration that transformers leaves beside a model, or above a folder ``onnx``."""
    found = {value.name for value in model.graph.input}
    if "input_ids" not in found or any(entry.key == "tenonnx.tokenizer" for entry in model.metadata_props):
        return
    place = path.parent.parent if path.parent.name == "onnx" and not (path.parent / "tokenizer.json").exists() else path.parent
    config = folder.read_json(place / "config.json") if (place / "config.json").is_file() else {}
    logits = next((value.name for value in model.graph.output if value.name == "logits"), model.graph.output[0].name)
    folder.describe(model, place, inputs={role: role for role in _ROLES if role in found}, logits=logits, special=config)
    length = config.get("max_position_embeddings")
    if isinstance(length, int) and length > 0:
        set_metadata(model, "tenonnx.context_length", str(length))
