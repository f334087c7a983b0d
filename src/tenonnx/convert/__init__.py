"""From other formats: a GGUF file, an ONNX export or an onnxruntime-genai folder as a model that declares its storage.

``quantize`` writes weights in other formats.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tenonnx.collection import uncollected
from tenonnx.convert import genai, gguf, opset, rope, tokenizer
from tenonnx.convert.architectures import Decoder, decoder_of
from tenonnx.convert.builder import GraphBuilder
from tenonnx.convert.decoder import build
from tenonnx.convert.exported import explicit
from tenonnx.convert.gguf import Gguf
from tenonnx.convert.quantize import Packed, Quantized, WeightError, quantize
from tenonnx.convert.report import CacheFinding, Findings, Report
from tenonnx.convert.weights import Weight, Weights
from tenonnx.dtypes import BY_NUMBER
from tenonnx.errors import OptionError, PayloadError, UnsupportedError
from tenonnx.layouts.pages import MAX_PAGE_TOKENS
from tenonnx.schema import files
from tenonnx.schema.atomic import refuse_special
from tenonnx.schema.domains import DOMAIN
from tenonnx.schema.external import map_file, parse_external
from tenonnx.schema.messages import ModelProto

__all__ = [
    "CacheFinding",
    "Findings",
    "Packed",
    "Quantized",
    "Report",
    "Weight",
    "WeightError",
    "Weights",
    "convert",
    "from_gguf",
    "from_onnx",
    "quantize",
]

_IR_VERSION = 12
_KEPT_TEXTS = ("general.name", "general.license", "general.organization", "general.source.url", "general.size_label")


@uncollected()
def from_gguf(path: str | os.PathLike[str], paged: int = 0) -> tuple[Any, Path]:
    """A GGUF file as a ModelProto in memory, and the folder its external data lies in (``Session(model, data_root=…)``).

    Its architecture is one of ``convert.architectures.ARCHITECTURES``: llama, qwen2, qwen3, gemma, gemma2, gemma3.
    With ``paged`` its caches are tables of pages of so many tokens, up to 256.
    Nothing is written and no weight is read. Raises ``PayloadError`` for a damaged or incomplete file and
    ``UnsupportedError`` for an architecture, tensor type or tokenizer that this version does not convert.
    """
    if isinstance(paged, bool) or not isinstance(paged, (int, np.integer)):
        raise OptionError(f"paged is {paged!r}; expected the tokens of a page, or 0 for dense caches")
    source = gguf.read(path)
    return _model(source, int(paged)), _folder(source)


@uncollected()
def from_onnx(path: str | os.PathLike[str], aliases: Mapping[str, str] | None = None) -> tuple[Any, Path, Findings]:
    """An .onnx file or an onnxruntime-genai folder with its caches declared, the folder of its external data, and what was found.

    Caches that grow by Concat become caches of a capacity, updated in place; those that operators can update in place are
    annotated; ``aliases`` {output: input} adds others by hand. Nothing is written. Raises ``PayloadError`` when the source
    cannot be read, ``AliasError`` for an alias that the graph cannot have, ``CheckError`` when the result breaks the contract.
    """
    findings = Findings()
    model, folder = explicit(path, aliases or {}, findings)
    return model, folder, findings


def convert(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    copy: bool = False,
    aliases: Mapping[str, str] | None = None,
    portable: str | None = None,
    paged: int = 0,
    progress: Callable[[int], object] | None = None,
) -> Report:
    """Write ``source`` (a GGUF file, an .onnx file or an onnxruntime-genai folder) as the model ``out``.

    Its weights stay where they are, which must be the folder of ``out``. With ``copy`` they are copied into ``<out>.data``
    instead, ``progress`` being called with the bytes of each. ``aliases``: {output: input} that share storage, by hand.
    ``paged``: tokens of a page, for caches in pages (of a GGUF alone).
    ``portable`` ("float32", "float16" or "nbits") writes a model that stock onnxruntime runs, with its weights in it.
    An existing ``out`` is replaced whole or not at all. Raises what ``from_gguf`` and ``from_onnx`` do, and ``PayloadError``
    when the weights do not lie in the folder of ``out`` or ``out`` would replace its source.
    """
    source, out = Path(source), Path(out)
    refuse_special(out)
    is_gguf = not source.is_dir() and gguf.is_gguf(source)
    if is_gguf and aliases:
        raise UnsupportedError(f"{source}: a GGUF's caches are declared already; aliases are for ONNX models")
    if paged and not is_gguf:
        raise UnsupportedError(f"{source}: only a GGUF is converted with pages, and this is none; leave out the option paged")
    if paged and portable is not None:
        raise UnsupportedError(
            f"{source}: pages are no standard type, which a portable model is made of; leave out the option paged"
        )
    read = _gguf_source(source, paged) if is_gguf else _onnx_source(source, aliases)
    if {gguf.resolved(out), gguf.resolved(f"{out}.data")} & read.files:
        raise PayloadError(f"{out}: would replace the weights it is made from; name another file")
    model = read.model
    if portable is not None:
        from tenonnx.convert.portable import portable as stock

        model = stock(model, read.folder, portable)
    elif read.external_bytes and not copy and gguf.resolved(out.parent) != gguf.resolved(read.folder):
        raise PayloadError(
            f"{out}: a model finds its weights in its own folder, and these lie in {read.folder}; "
            f"write {read.folder / out.name} instead, or copy the weights ({read.external_bytes} bytes) with the option copy"
        )
    copied = copy and portable is None
    files.save(model, out, data_root=read.folder if copied else None, progress=progress)
    return Report(
        path=out,
        architecture=read.architecture,
        weights=read.weights,
        model_bytes=out.stat().st_size,
        copied_bytes=read.external_bytes if copied else 0,
        caches=tuple(read.findings.caches),
        notes=tuple(read.findings.notes),
    )


@dataclass(frozen=True)
class _Source:
    """A model read, and what its conversion has to know of where it came from."""

    model: Any
    folder: Path  # of its external data
    files: set[Path]  # that must not be replaced
    external_bytes: int
    architecture: str
    weights: dict[str, int]  # number of tensors by format
    findings: Findings


def _gguf_source(path: Path, paged: int) -> _Source:
    read = gguf.read(path)
    return _Source(
        model=_model(read, paged),
        folder=_folder(read),
        files=set(read.files),
        external_bytes=_weight_bytes(read),
        architecture=read.metadata.text("general.architecture"),
        weights=dict(Counter(tensor.format for tensor in read.tensors.values())),
        findings=Findings(),
    )


def _onnx_source(path: Path, aliases: Mapping[str, str] | None) -> _Source:
    model, folder, findings = from_onnx(path, aliases)
    external = [value for value in files.payloads(model) if value.external_data]
    ranges = [parse_external(f"value {value.name!r}", value.external_data) for value in external]
    kinds = Counter(BY_NUMBER[tensor.data_type].name for tensor in model.graph.initializer if tensor.data_type in BY_NUMBER)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    return _Source(
        model=model,
        folder=folder,
        files={
            gguf.resolved(genai.model_file(path) if path.is_dir() else path),
            *(gguf.resolved(folder / found.location) for found in ranges),
        },
        external_bytes=sum(found.length or 0 for found in ranges),
        architecture=metadata.get("tenonnx.architecture", ""),
        weights=dict(kinds),
        findings=findings,
    )


def _weight_bytes(source: Gguf) -> int:
    return sum(tensor.nbytes for tensor in source.tensors.values())


def _folder(source: Gguf) -> Path:
    folders = {file.parent for file in source.files}
    if len(folders) > 1:
        raise PayloadError(f"{source.files[0]}: its parts lie in {len(folders)} folders; put them into one")
    return folders.pop()


def _model(source: Gguf, paged: int) -> Any:
    if not 0 <= paged <= MAX_PAGE_TOKENS:
        raise OptionError(f"pages of {paged} tokens; expected 1 to {MAX_PAGE_TOKENS}")
    decoder = decoder_of(source)
    model = ModelProto(ir_version=_IR_VERSION, producer_name="tenonnx")
    standard = opset.WINDOWED_ATTENTION if decoder.window and not paged else opset.CACHED_ATTENTION
    for domain, version in (("", standard), (DOMAIN, 1)):
        model.opset_import.add(domain=domain, version=version)
    model.graph.name = decoder.architecture.name
    build(GraphBuilder(model, source), decoder, _rotations(source, decoder), paged)
    for key, value in _properties(source, decoder).items():
        model.metadata_props.add(key=key, value=value)
    return model


def _rotations(source: Gguf, decoder: Decoder) -> tuple[rope.Rotation, rope.Rotation]:
    """Of layers that see all tokens, and of those that see a window."""
    metadata, name, window = source.metadata, decoder.architecture.name, decoder.architecture.window
    full = rope.rotation(metadata, name, decoder.rotary, decoder.context_length, _rope_factors(source))
    if window is None or not window.rope_base or not decoder.window:
        return full, full
    return full, rope.windowed_rotation(metadata, name, decoder.rotary, window.rope_base)


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
