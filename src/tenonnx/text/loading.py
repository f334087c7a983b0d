"""A model that can read and write text, from a path or a known name."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tenonnx.errors import PayloadError, UnsupportedError
from tenonnx.text.registry import KNOWN, Progress, silent
from tenonnx.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tenonnx.runtime import Session

_INPUTS = ("input_ids", "position_ids", "logit_rows")
_GGUF_MAGIC = b"GGUF"


def _cache_bytes_allocated() -> int:
    from tenonnx.runtime import ledger

    return int(ledger()["cache"]["total"])


@dataclass(frozen=True)
class TextModel:
    """A session, its tokenizer, and what generation needs to know of the model."""

    session: Session
    tokenizer: Tokenizer
    context_length: int | None  # tokens that the model was trained for
    load_s: float = 0.0
    cache_bytes_allocated: Callable[[], int] = field(default=_cache_bytes_allocated, repr=False)  # ever, by the process


def find_model(name: str | os.PathLike[str], progress: Progress = silent) -> Path:
    """The file that a path or a known name stands for; a known model is pulled on first use.

    Raises ``PayloadError`` for a name that is neither, and for a folder.
    """
    path = Path(name)
    if path.is_dir():
        raise PayloadError(f"{path}: is a folder; name the .onnx or .gguf file in it")
    if path.exists():
        return path
    found = KNOWN.get(str(name).lower())
    if found is not None:
        return found.place if found.present else found.pull(progress)
    raise PayloadError(f"{name}: no such file, and no known model; known are: {', '.join(KNOWN)}")


def read_model(name: str | os.PathLike[str], progress: Progress = silent) -> tuple[Any, Path]:
    """The ModelProto of an .onnx file, a GGUF (converted in memory) or a known name, and the folder of its external data."""
    path = find_model(name, progress)
    if _is_gguf(path):
        from tenonnx.convert import from_gguf

        model, data_root = from_gguf(path)
        return model, Path(data_root)
    if path.suffix.lower() != ".onnx":
        raise UnsupportedError(f"{path}: is neither an .onnx file nor a GGUF; convert it to one of them first")
    from tenonnx.schema.files import data_folder, load

    model = load(path)
    return model, data_folder(model, path)


def _is_gguf(path: Path) -> bool:
    # By content too: files in a download cache often lie under a digest, without a suffix.
    try:
        with path.open("rb") as stream:
            return path.suffix.lower() == ".gguf" or stream.read(len(_GGUF_MAGIC)) == _GGUF_MAGIC
    except OSError as error:
        raise PayloadError(f"{path}: cannot be read: {error.strerror}") from error


def load_model(
    name: str | os.PathLike[str], *, threads: int | Literal["auto"] = "auto", progress: Progress = silent
) -> TextModel:
    """A model ready for ``generate``, ``stream`` and ``Conversation``: an .onnx file, a GGUF or a known name.

    Raises ``UnsupportedError`` for a model without a tokenizer or without the inputs of a decoder.
    """
    start = time.perf_counter()
    model, data_root = read_model(name, progress)
    found = {value.name for value in model.graph.input}
    missing = [value for value in _INPUTS if value not in found]
    if missing:
        raise UnsupportedError(
            f"{name}: has no input {', '.join(missing)}; text needs the inputs {', '.join(_INPUTS)} and caches, as "
            "`tenonnx convert` makes them from a GGUF"
        )
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    context_length = _context_length(metadata)
    from tenonnx.runtime import Session

    with ThreadPoolExecutor(1) as beside:  # a large vocabulary takes as long to read as the session takes to plan
        tokenizer = beside.submit(Tokenizer.from_metadata, metadata)
        session = Session(model, threads=threads, data_root=data_root)
    return TextModel(session, tokenizer.result(), context_length, time.perf_counter() - start)


def _context_length(metadata: dict[str, str]) -> int | None:
    text = metadata.get("tenonnx.context_length", "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > 9 or int(text) == 0:
        raise PayloadError(f"metadata tenonnx.context_length is {text!r}; expected a number of tokens")
    return int(text)
