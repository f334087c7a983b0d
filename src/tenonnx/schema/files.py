"""Models to and from disk. Weights over protobuf's limit go to a file beside the model."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from google.protobuf.message import DecodeError

from tenonnx.errors import CheckError, PayloadError, UnsupportedError
from tenonnx.schema.external import DataRoot, parse_external
from tenonnx.schema.messages import ModelProto, TensorProto

PROTOBUF_LIMIT = 2**31 - 1  # bytes of one serialized message
_ALIGNMENT = 4096  # of a payload in the side file, so that it can be mapped alone
_INLINE = 1024  # bytes; smaller payloads stay in the model, where shape inference reads them


def load(path: str | os.PathLike[str]) -> Any:
    """Read a ModelProto. External data stays where it lies: ``Session(path)`` maps it from the model's folder.

    Raises ``PayloadError`` when the file cannot be read or is no ONNX model.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except IsADirectoryError as error:
        raise PayloadError(f"{path}: is a folder; name the .onnx file in it") from error
    except OSError as error:
        raise PayloadError(f"{path}: cannot be read: {error.strerror}") from error
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        found = "is not an ONNX model (a protobuf ModelProto), or is truncated"
        raise PayloadError(f"{path}: {found}; fetch or convert it again") from error
    if not (model.HasField("graph") or model.functions or model.struct_types):
        raise CheckError(f"{path}: holds no graph, function or structured type; expected an ONNX model")
    return model


def payloads(model: Any) -> Iterator[Any]:
    """Every TensorProto initializer and StructProto of a model's main graph, and the values of its compiled tensors."""
    yield from model.graph.initializer
    yield from model.graph.struct_initializer
    for compiled in model.compiled_tensors:
        yield compiled.value


def _point(value: Any, location: str, offset: int, length: int) -> None:
    del value.external_data[:]
    for key, text in (("location", location), ("offset", str(offset)), ("length", str(length))):
        value.external_data.add(key=key, value=text)
    if isinstance(value, TensorProto):
        value.data_location = TensorProto.EXTERNAL
    value.ClearField("raw_data")


def _move_payloads(model: Any, location: str, stream: BinaryIO, threshold: int) -> None:
    """Move inline payloads of at least ``threshold`` bytes out of ``model`` into ``stream``, each at an aligned offset."""
    for value in payloads(model):
        data = value.raw_data  # one copy out of protobuf: fetched once
        if len(data) < threshold:
            continue
        stream.write(b"\0" * (-stream.tell() % _ALIGNMENT))
        offset = stream.tell()
        stream.write(data)
        _point(value, location, offset, len(data))


def check_external(model: Any, root: DataRoot) -> None:
    """Every external range of the model lies in a file that ``root`` admits; else ``PayloadError``."""
    for value in payloads(model):
        if value.external_data:
            root.read(f"value {value.name!r}", value.external_data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A temporary file beside ``path`` that takes its place when the block ends well, and vanishes when it does not."""
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise PayloadError(f"{path}: cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(name)
        if isinstance(error, OSError):
            raise PayloadError(f"{path}: cannot be written: {error.strerror}") from error
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _inline_bytes(model: Any) -> int:
    return sum(value.ByteSize() for value in payloads(model))


def save(
    model: Any,
    path: str | os.PathLike[str],
    *,
    data_root: str | os.PathLike[str] | None = None,
    threshold: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> None:
    """Write a ModelProto to ``path``, whole or not at all.

    Payloads of at least ``threshold`` bytes, or of 1 kB when the model passes protobuf's 2 GB, go to ``<path>.data``.
    External data of the model must lie in the folder of ``path``; with ``data_root`` naming the folder where it lies
    now, those bytes are copied into ``<path>.data`` instead. The given model is not changed.

    Raises ``PayloadError`` when a file cannot be written or external data is not where the saved model would look.
    """
    path = Path(path)
    location = path.name + ".data"
    if threshold is None and _inline_bytes(model) > PROTOBUF_LIMIT - 2**20:
        threshold = _INLINE
    copied = data_root is not None and any(value.external_data for value in payloads(model))
    if not copied:
        check_external(model, DataRoot(path.parent))
    if threshold is None and not copied:
        with replacing(path) as stream:
            stream.write(_serialized(model))
        return
    written = ModelProto()
    written.CopyFrom(model)
    with replacing(path) as stream, replacing(path.with_name(location)) as side:
        if copied:
            _copy_external(written, DataRoot(data_root), location, side, progress)
        if threshold is not None:
            _move_payloads(written, location, side, threshold)
        stream.write(_serialized(written))


def _copy_external(model: Any, root: DataRoot, location: str, side: BinaryIO, progress: Callable[[int], object] | None) -> None:
    for value in payloads(model):
        if not value.external_data:
            continue
        data = root.read(f"value {value.name!r}", value.external_data)
        side.write(b"\0" * (-side.tell() % _ALIGNMENT))
        offset = side.tell()
        side.write(data.data)
        _point(value, location, offset, data.size)
        if progress is not None:
            progress(data.size)


def _serialized(model: Any) -> bytes:
    try:
        return bytes(model.SerializeToString())
    except (ValueError, DecodeError) as error:
        raise UnsupportedError(
            f"the model takes over {PROTOBUF_LIMIT} bytes even without its weights' payloads ({error}); "
            "move large attribute tensors to initializers"
        ) from error


def external_files(model: Any) -> set[str]:
    """The external locations that a model names."""
    external = (value for value in payloads(model) if value.external_data)
    return {parse_external(f"value {value.name!r}", value.external_data).location for value in external}
