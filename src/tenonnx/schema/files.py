"""Models to and from disk. Weights over protobuf's limit go to a file beside the model."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from google.protobuf.message import DecodeError, EncodeError

from tenonnx.errors import CheckError, PayloadError, UnsupportedError
from tenonnx.schema.atomic import replacing, replacing_all
from tenonnx.schema.external import DataRoot, MappedFile, map_file, parse_external
from tenonnx.schema.messages import ModelProto, TensorProto, as_model
from tenonnx.schema.payload import INLINE_FIELDS, is_external, raw_bytes
from tenonnx.schema.places import as_path
from tenonnx.schema.sections import before_packs

_LOG = logging.getLogger("tenonnx")

PROTOBUF_LIMIT = 2**31 - 1  # bytes of one serialized message
_ALIGNMENT = 4096  # of a payload in the side file, so that it can be mapped alone
_INLINE = 1024  # bytes; smaller payloads stay in the model, where shape inference reads them


def load(path: str | os.PathLike[str]) -> Any:
    """Read a ModelProto. External data stays where it lies: ``Session(path)`` maps it from the model's folder.

    Raises ``PayloadError`` when the file cannot be read or is no ONNX model, ``CheckError`` when it is an empty one.
    """
    return parse(open_model(path).data.tobytes(), path)


def load_portable(path: str | os.PathLike[str]) -> tuple[Any, MappedFile]:
    """A ModelProto and its file. Where its packs cannot be parsed they are left out, and a warning is logged.

    A pack is a cache: damage to it makes no model unreadable. Raises as ``load`` does.
    """
    file = open_model(path)
    data = file.data.tobytes()
    try:
        return parse(data, path), file
    except PayloadError as error:
        kept = before_packs(data)
        if kept is None:
            raise
        model = parse(kept, path)
        _LOG.warning("%s: its packs are damaged and left out: %s", path, error.__cause__)
        return model, file


def open_model(path: str | os.PathLike[str]) -> MappedFile:
    """A model file, mapped; ``PayloadError`` when it cannot be read or is over protobuf's limit."""
    path = as_path(path, "model file")
    if path.is_dir():
        raise PayloadError(f"{path}: is a folder; name the .onnx file in it")
    file = map_file(path)
    size = file.data.size
    if size > PROTOBUF_LIMIT:
        raise PayloadError(f"{path}: is no ONNX model: its {size} bytes are over the {PROTOBUF_LIMIT} of a protobuf message")
    return file


def parse(data: bytes, path: str | os.PathLike[str]) -> Any:
    """The ModelProto in the bytes of the file at ``path``; raises as ``load``."""
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise PayloadError(f"{path}: is not an ONNX model, or is truncated ({error}); fetch or convert it again") from error
    if not (model.HasField("graph") or model.functions or model.struct_types):
        raise CheckError(f"{path}: holds no graph, function or structured type; expected an ONNX model")
    return model


def data_folder(model: Any, path: str | os.PathLike[str]) -> Path:
    """The folder that the external data of a model loaded from ``path`` lies in.

    It is the folder of ``path`` as the user typed it; where that is a link with no data beside it, of the file it links to.
    """
    path = Path(path)
    if path.is_symlink() and not all(os.path.lexists(path.parent / location) for location in _locations(model)):
        return path.resolve().parent
    return path.parent


def _locations(model: Any) -> Iterator[str]:
    """Every external location as it stands, well-formed or not."""
    for value in payloads(model):
        yield from (entry.value for entry in value.external_data if entry.key == "location" and "\0" not in entry.value)


def payloads(model: Any) -> Iterator[Any]:
    """Every TensorProto and StructProto of a model that may lie in another file: initializers, packs, tensors of attributes."""
    yield from _initializers(model)
    for attribute in _attributes(model):
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors


def _initializers(model: Any) -> Iterator[Any]:
    """The payloads that ``save`` may move out: not the tensors of attributes, which few runtimes read from another file."""
    for graph in _graphs(model):
        yield from graph.initializer
        yield from graph.struct_initializer
    for compiled in model.compiled_tensors:
        yield compiled.value


def _attributes(model: Any) -> Iterator[Any]:
    for graph in _graphs(model):
        for node in graph.node:
            yield from node.attribute
    for function in model.functions:
        yield from function.attribute_proto
        for node in function.node:
            yield from node.attribute


def _graphs(model: Any) -> Iterator[Any]:
    """The main graph first, then those inside it and inside the local functions."""
    pending = [graph for function in model.functions[::-1] for graph in _subgraphs(function.node)] + [model.graph]
    while pending:
        graph = pending.pop()
        yield graph
        pending += _subgraphs(graph.node)[::-1]


def _subgraphs(nodes: Iterable[Any]) -> list[Any]:
    attributes = [attribute for node in nodes for attribute in node.attribute]
    return [graph for found in attributes for graph in ([found.g] if found.HasField("g") else found.graphs)]


def external_files(model: Any) -> set[str]:
    """The external locations that a model names."""
    external = (value for value in payloads(model) if is_external(value))
    return {parse_external(f"value {value.name!r}", value.external_data).location for value in external}


def check_external(model: Any, root: DataRoot) -> None:
    """Every external range of the model lies in a file that ``root`` admits; else ``PayloadError``."""
    for value in payloads(model):
        if is_external(value):
            root.read(f"value {value.name!r}", value.external_data)


def save(
    model: Any,
    path: str | os.PathLike[str],
    *,
    data_root: str | os.PathLike[str] | None = None,
    threshold: int | None = None,
    made: Mapping[str, Iterable[Any]] | None = None,
    progress: Callable[[int], object] | None = None,
) -> None:
    """Write a ModelProto to ``path``, whole or not at all.

    Initializers of at least ``threshold`` bytes, or of 1 kB when the model passes protobuf's 2 GB, go to ``<path>.data``, and
    so do those that ``made`` yields while they are written: bytes in chunks, by the name of a struct initializer without any.
    External data of the model must lie in the folder of ``path``; with ``data_root`` naming the folder where it lies
    now, those bytes are copied into ``<path>.data`` instead, ``progress`` being called with the bytes of each. The given
    model is not changed.

    Raises ``PayloadError`` when a file cannot be written or external data is not where the saved model would look.
    """
    model, path = as_model(model), as_path(path, "model file")
    side = path.with_name(path.name + ".data")
    root = DataRoot(path.parent if data_root is None else data_root)
    check_external(model, root)
    if threshold is None and _size(model) > PROTOBUF_LIMIT:
        threshold = _INLINE
    copied = data_root is not None and any(map(is_external, payloads(model)))
    moved = threshold is not None and any(len(raw_bytes(value) or b"") >= threshold for value in _initializers(model))
    if not (copied or moved or made):
        with replacing(path) as stream:
            stream.write(_serialized(model))
        return
    written = ModelProto()
    written.CopyFrom(model)
    with replacing_all(side, path) as (data, stream):
        for value in payloads(written):
            # What lies in the file that is being replaced moves along, or the model would lose it.
            if is_external(value) and (copied or Path(_location(value)) == Path(side.name)):
                found = root.read(f"value {value.name!r}", value.external_data)
                _move(value, [found], data, side.name)
                if progress is not None:
                    progress(found.size)
        for value in written.graph.struct_initializer:
            if made and value.name in made:
                _move(value, made[value.name], data, side.name)
        if threshold is not None:
            for value in _initializers(written):
                inline = raw_bytes(value)
                if inline is not None and len(inline) >= threshold:
                    _move(value, [inline], data, side.name)
        stream.write(_serialized(written))


def _location(value: Any) -> str:
    return parse_external(f"value {value.name!r}", value.external_data).location


def _move(value: Any, chunks: Iterable[Any], stream: BinaryIO, location: str) -> None:
    """Append a payload to the side file at an aligned offset, and let ``value`` point at it."""
    stream.write(b"\0" * (-stream.tell() % _ALIGNMENT))
    offset = stream.tell()
    for chunk in chunks:
        stream.write(chunk)
    length = stream.tell() - offset
    del value.external_data[:]
    for key, text in (("location", location), ("offset", str(offset)), ("length", str(length))):
        value.external_data.add(key=key, value=text)
    value.ClearField("raw_data")
    if isinstance(value, TensorProto):
        value.data_location = TensorProto.EXTERNAL
        for field in INLINE_FIELDS:
            value.ClearField(field)


def _size(model: Any) -> float:
    """Serialized bytes; infinite where protobuf refuses to count them."""
    try:
        return float(model.ByteSize())
    except EncodeError:
        return math.inf


def _serialized(model: Any) -> bytes:
    if _size(model) > PROTOBUF_LIMIT:
        raise UnsupportedError(
            f"the model takes over {PROTOBUF_LIMIT} bytes even without its initializers; "
            "move large attribute tensors to initializers, and large metadata to a file of its own"
        )
    return bytes(model.SerializeToString())
