"""From other formats: a GGUF file as an ONNX model whose weights stay in the GGUF file."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tenonnx.convert import gguf, llama, rope, tokenizer
from tenonnx.convert.architectures import Decoder, decoder_of
from tenonnx.convert.builder import DOMAIN, GraphBuilder
from tenonnx.convert.gguf import Gguf
from tenonnx.errors import PayloadError, UnsupportedError
from tenonnx.schema import files
from tenonnx.schema.external import map_file
from tenonnx.schema.messages import ModelProto

_IR_VERSION, _OPSET = 12, 24
_KEPT_TEXTS = ("general.name", "general.license", "general.organization", "general.source.url", "general.size_label")


@dataclass(frozen=True)
class Report:
    """What a conversion wrote."""

    path: Path
    architecture: str
    weights: dict[str, int]  # number of tensors by format
    model_bytes: int  # of the .onnx
    copied_bytes: int  # of weights; 0 when they stay where they were


def from_gguf(path: str | os.PathLike[str]) -> tuple[Any, Path]:
    """A GGUF file as a ModelProto in memory, and the folder its external data lies in (``Session(model, data_root=…)``).

    Nothing is written and no weight is read. Raises ``PayloadError`` for a damaged or incomplete file and
    ``UnsupportedError`` for an architecture, tensor type or tokenizer that this version does not convert.
    """
    source = gguf.read(path)
    return _model(source), _folder(source)


def convert(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    copy: bool = False,
    progress: Callable[[int], object] | None = None,
) -> Report:
    """Write ``source`` (a GGUF file) as the ONNX model ``out``; its weights stay in the GGUF file, which must lie beside ``out``.

    With ``copy`` the weights are copied into ``<out>.data`` instead, ``progress`` being called with the bytes of each.
    An existing ``out`` is replaced whole or not at all. Raises what ``from_gguf`` does, and ``PayloadError`` when the
    weights do not lie in the folder of ``out`` or ``out`` would replace its source.
    """
    source, out = Path(source), Path(out)
    if not gguf.is_gguf(source):
        raise UnsupportedError(f"{source}: is not converted by this version; accepted is a GGUF file")
    read = gguf.read(source)
    folder = _folder(read)
    if {gguf.resolved(out), gguf.resolved(f"{out}.data")} & set(read.files):
        raise PayloadError(f"{out}: would replace the weights it is made from; name another file")
    if not copy and gguf.resolved(out.parent) != folder:
        raise PayloadError(
            f"{out}: a model finds its weights in its own folder, and these lie in {folder}; "
            f"write {folder / out.name} instead, or copy the weights ({_weight_bytes(read)} bytes) with --copy (copy=True)"
        )
    model = _model(read)
    files.save(model, out, data_root=folder if copy else None, progress=progress)
    return Report(
        path=out,
        architecture=read.metadata.text("general.architecture"),
        weights=dict(Counter(tensor.format for tensor in read.tensors.values())),
        model_bytes=out.stat().st_size,
        copied_bytes=_weight_bytes(read) if copy else 0,
    )


def _weight_bytes(source: Gguf) -> int:
    return sum(tensor.nbytes for tensor in source.tensors.values())


def _folder(source: Gguf) -> Path:
    folders = {file.parent for file in source.files}
    if len(folders) > 1:
        raise PayloadError(f"{source.files[0]}: its parts lie in {len(folders)} folders; put them into one")
    return folders.pop()


def _model(source: Gguf) -> Any:
    decoder = decoder_of(source)
    model = ModelProto(ir_version=_IR_VERSION, producer_name="tenonnx")
    for domain, version in (("", _OPSET), (DOMAIN, 1)):
        model.opset_import.add(domain=domain, version=version)
    model.graph.name = decoder.architecture.name
    rotation = rope.rotation(
        source.metadata, decoder.architecture.name, decoder.rotary, decoder.context_length, _rope_factors(source)
    )
    llama.build(GraphBuilder(model, source), decoder, rotation)
    for key, value in _properties(source, decoder).items():
        model.metadata_props.add(key=key, value=value)
    return model


def _rope_factors(source: Gguf) -> np.ndarray | None:
    tensor = source.tensors.get("rope_freqs.weight")
    if tensor is None:
        return None
    if tensor.format != "F32":
        raise UnsupportedError(f"{tensor.file}: tensor {tensor.name!r} has type {tensor.format}; expected F32")
    data = map_file(tensor.file).bytes_at(f"tensor {tensor.name!r}", tensor.offset, tensor.nbytes)
    return data.view("<f4").astype(np.float64)


def _properties(source: Gguf, decoder: Decoder) -> dict[str, str]:
    """metadata_props: what a text interface needs, and whose model this is."""
    metadata = source.metadata
    properties = {
        "tenonnx.architecture": decoder.architecture.name,
        "tenonnx.context_length": str(decoder.context_length),
    }
    vocabulary = tokenizer.vocabulary(metadata)
    if vocabulary is not None:
        if len(vocabulary.texts) > decoder.vocab:
            raise PayloadError(
                f"{source.files[0]}: has {len(vocabulary.texts)} tokens but {decoder.vocab} rows of embedding; convert it again"
            )
        properties["tenonnx.tokenizer"] = tokenizer.tokenizer_json(metadata, vocabulary)
        properties["tenonnx.special_tokens"] = json.dumps(tokenizer.special_tokens(metadata, vocabulary))
    if "tokenizer.chat_template" in metadata:
        properties["tenonnx.chat_template"] = metadata.text("tokenizer.chat_template")
    properties.update({key: metadata.text(key) for key in _KEPT_TEXTS if key in metadata})
    return properties
