"""A model that can read and write text, from a path or a known name."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tenonnx.errors import PayloadError, UnsupportedError
from tenonnx.text.registry import KNOWN, Progress, silent
from tenonnx.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tenonnx.runtime import Session

_GGUF_MAGIC = b"GGUF"
PAGE_TOKENS = 64  # of a page of a model converted in memory


def _cache_bytes_allocated() -> int:
    from tenonnx.runtime import ledger

    return int(ledger()["cache"]["total"])


@dataclass(frozen=True)
class Names:
    """What the graph calls the inputs and the output of a decoder; "" for one that it does not have.

    From the metadata ``tenonnx.inputs``, JSON from these roles to names; a model without it has our own names.
    """

    input_ids: str = "input_ids"  # INT64[batch, n]
    position_ids: str = "position_ids"  # INT64[batch, n]
    logit_rows: str = "logit_rows"  # INT64[k]: the rows of n whose logits are computed; all without it
    attention_mask: str = ""  # INT64[batch, positions], 1 where a position counts
    logits: str = "logits"

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> Names:
        """``PayloadError`` for metadata that is no JSON object of names."""
        text = metadata.get("tenonnx.inputs")
        if text is None:
            return cls()
        try:
            given = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise PayloadError(f"metadata tenonnx.inputs is not JSON: {error}; convert the model again") from error
        if not isinstance(given, dict) or not all(isinstance(name, str) for name in given.values()):
            raise PayloadError(f"metadata tenonnx.inputs is {text[:60]!r}; expected a JSON object of names")
        return cls(**{role.name: given.get(role.name, "") for role in fields(cls)})

    @property
    def inputs(self) -> list[str]:
        """The inputs that the graph has to have."""
        return [name for name in (self.input_ids, self.position_ids, self.logit_rows, self.attention_mask) if name]


@dataclass(frozen=True)
class TextModel:
    """A session, its tokenizer, and what generation needs to know of the model."""

    session: Session
    tokenizer: Tokenizer
    context_length: int | None  # tokens that the model was trained for
    load_s: float = 0.0
    cache_bytes_allocated: Callable[[], int] = field(default=_cache_bytes_allocated, repr=False)  # ever, by the process
    names: Names = field(default_factory=Names)


def find_model(name: str | os.PathLike[str], progress: Progress = silent) -> Path:
    """The file that a path or a known name stands for; a known model is pulled on first use.

    Raises ``PayloadError`` for a name that is neither, and for a folder that onnxruntime-genai would not load.
    """
    path = Path(name)
    if path.is_dir() and not _is_genai(path):
        raise PayloadError(f"{path}: is a folder without genai_config.json; name the .onnx or .gguf file in it")
    if path.exists():
        if not (path.is_file() or path.is_dir()):  # a pipe would be waited for
            raise PayloadError(f"{path}: is not a regular file; name the file that holds the model")
        return path
    found = KNOWN.get(str(name).lower())
    if found is not None:
        return found.place if found.present else found.pull(progress)
    raise PayloadError(f"{name}: no such file, and no known model; known are: {', '.join(KNOWN)}")


def read_model(
    name: str | os.PathLike[str], progress: Progress = silent, *, portable: bool = False, paged: bool = False
) -> tuple[Any, Path]:
    """The ModelProto of an .onnx file or a known name, or of a GGUF or onnxruntime-genai folder, both converted in memory.

    With it comes the folder of its external data. ``portable`` leaves out packs that are damaged beyond reading, rather than
    refusing the file. ``paged`` gives a GGUF caches in pages; an .onnx file has those that it was converted with.
    """
    path = find_model(name, progress)
    if path.is_dir():
        from tenonnx.convert import from_onnx

        model, data_root, _ = from_onnx(path)
        return model, data_root
    if _is_gguf(path):
        from tenonnx.convert import from_gguf

        model, data_root = from_gguf(path, PAGE_TOKENS if paged else 0)
        return model, Path(data_root)
    if path.suffix.lower() != ".onnx":
        raise UnsupportedError(f"{path}: is neither an .onnx file nor a GGUF; convert it to one of them first")
    from tenonnx.schema.files import data_folder, load, load_portable

    model = load_portable(path)[0] if portable else load(path)
    return model, data_folder(model, path)


def _is_genai(path: Path) -> bool:
    return (path / "genai_config.json").is_file()


def _is_gguf(path: Path) -> bool:
    # By content too: files in a download cache often lie under a digest, without a suffix.
    try:
        with path.open("rb") as stream:
            return path.suffix.lower() == ".gguf" or stream.read(len(_GGUF_MAGIC)) == _GGUF_MAGIC
    except OSError as error:
        raise PayloadError(f"{path}: cannot be read: {error.strerror}") from error


def load_model(
    name: str | os.PathLike[str],
    *,
    threads: int | Literal["auto"] = "auto",
    paged: bool = False,
    progress: Progress = silent,
) -> TextModel:
    """A model ready for ``generate``, ``stream`` and ``Conversation``: an .onnx file, a GGUF, an
    onnxruntime-genai folder or a known name.

    ``paged`` is for caches in pages, whose formats a policy chooses. Raises ``UnsupportedError`` for a model without a
    tokenizer or without the inputs of a decoder.
    """
    start = time.perf_counter()
    model, data_root = read_model(name, progress, portable=True, paged=paged)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    names = Names.from_metadata(metadata)
    found = {value.name for value in model.graph.input}
    missing = [value for value in names.inputs if value not in found]
    if missing:
        raise UnsupportedError(
            f"{name}: has no input {', '.join(missing)}, which text needs beside caches that the model declares; "
            f"convert it first: tenonnx convert {name} OUT.onnx"
        )
    longest = context_length(metadata)
    from tenonnx.runtime import Session

    with ThreadPoolExecutor(1) as beside:  # a large vocabulary takes as long to read as the session takes to plan
        tokenizer = beside.submit(Tokenizer.from_metadata, metadata)
        session = Session(model, threads=threads, data_root=data_root)
    if not session.fed_inputs:
        raise UnsupportedError(
            f"{name}: no input says where new rows of its caches go, so that no cache can fill it; text needs one, as "
            "`tenonnx convert` makes it where it can (its report says why it could not)"
        )
    return TextModel(session, tokenizer.result(), longest, time.perf_counter() - start, names=names)


def context_length(metadata: Mapping[str, str]) -> int | None:
    """Tokens that a model was trained for, by its metadata; ``PayloadError`` where that is no number of tokens."""
    text = metadata.get("tenonnx.context_length", "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > 9 or int(text) == 0:
        raise PayloadError(f"metadata tenonnx.context_length is {text!r}; expected a number of tokens")
    return int(text)
