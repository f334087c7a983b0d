"""Weights into structured formats: a catalogue's, a user's own, or values that the user packed himself."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tenonnx.check import raise_errors
from tenonnx.convert.rewrite import Rewriter
from tenonnx.convert.weights import Weight, Weights
from tenonnx.errors import CheckError, PayloadError, ShapeError, UnsupportedError
from tenonnx.schema import files
from tenonnx.schema.atomic import refuse_special
from tenonnx.schema.external import DataRoot
from tenonnx.schema.messages import ModelProto
from tenonnx.structs import declare
from tenonnx.structs.catalogue import catalogue
from tenonnx.structs.formats import Format
from tenonnx.structs.resolve import find_format

_CHUNK = 1 << 20  # elements encoded and compared at a time


class Packed(NamedTuple):
    """A weight that the user packed himself: its format, and its blocks as bytes or as the leaves that ``pack`` takes."""

    format: str | Format
    values: Mapping[str, Any] | bytes | np.ndarray | None  # None: to be encoded


Target = str | Format | Packed | tuple[str | Format, Any]


@dataclass
class WeightError:
    """How far one weight moved, over its ``shape`` [out, in]: errors of the decoded values against those before."""

    name: str
    shape: tuple[int, ...]
    before: str  # format
    after: str
    nbytes: int  # of the new payload
    max_abs: float = 0.0
    rms: float = 0.0
    relative: float = 0.0  # rms of the error by rms of the values


@dataclass
class Quantized:
    """What ``quantize`` wrote: one row per weight, and the weights that a pattern matched but its format does not fit."""

    path: Path
    weights: list[WeightError]
    skipped: list[tuple[str, str]] = field(default_factory=list)  # name and reason


def quantize(
    model: str | os.PathLike[str] | Any,
    weights: Mapping[str, Target],
    out: str | os.PathLike[str],
    *,
    data_root: str | os.PathLike[str] | None = None,
    copy: bool = False,
    progress: Callable[[int], object] | None = None,
) -> Quantized:
    """Write ``model`` as the ONNX model ``out`` with some of its weights in other formats; their bytes go to ``<out>.data``.

    ``model`` is an .onnx file, a GGUF, or a ModelProto whose external data lies in ``data_root``. ``weights`` maps the name
    of a weight, or a pattern with ``*``, ``?`` and ``[…]``, to a format (of the catalogue, ``module:format``, or a
    ``Format``), or a name to ``(format, values)`` with values packed by the caller: bytes, or leaves by name. The last
    pattern that matches a weight decides. A pattern with wildcards selects what MatMul, Gemm or Gather read; a name selects
    any float initializer. A matrix is packed by rows of the inputs that one output reads, [out, in], and must be divisible
    by the block; of several weights that one pattern selects, those that are not are skipped and reported.

    Weights kept in other files stay there, in the folder of ``out``; with ``copy`` their bytes are copied beside the new
    ones. ``progress`` is called with the bytes of each new payload when it is written.

    Raises ``CheckError`` for a pattern that matches nothing, ``ShapeError`` for a weight that blocks do not divide,
    ``UnsupportedError`` for a format without encoder, and ``PayloadError`` for values that are not finite, packed values of
    the wrong size, or files that cannot be read or written.
    """
    refuse_special(Path(out))
    source, folder = _opened(model, data_root)
    raise_errors(source, folder)
    found = Weights(source, DataRoot(folder))
    chosen, skipped = _select(found, weights)
    _refuse_own_source(Path(out), model, source, folder)
    written = ModelProto()
    written.CopyFrom(source)
    rewriter = Rewriter(written)
    rows, made = [], {}
    for weight, packed in chosen:
        format = find_format(packed.format)
        rewriter.replace(weight, declare(written, format, weight.shape))
        row = WeightError(weight.name, weight.shape, weight.format, format.name, format.blocks(weight.shape) * format.nbytes)
        rows.append(row)
        made[weight.name] = _payload(found, weight, format, packed.values, row, progress)
    rewriter.finish()
    if not copy:
        _refuse_elsewhere(Path(out), written, folder)
    files.save(written, out, data_root=folder if copy else None, made=made)
    return Quantized(Path(out), rows, skipped)


def _opened(model: str | os.PathLike[str] | Any, data_root: str | os.PathLike[str] | None) -> tuple[Any, Path | None]:
    """A ModelProto, and the folder of its external data."""
    if not isinstance(model, (str, os.PathLike)):
        return model, None if data_root is None else Path(data_root)
    from tenonnx.convert import from_gguf, gguf

    if gguf.is_gguf(Path(model)):
        read, folder = from_gguf(model)
    else:
        read = files.load(model)
        folder = files.data_folder(read, model)
    return read, folder if data_root is None else Path(data_root)


def _refuse_own_source(out: Path, model: Any, source: Any, folder: Path | None) -> None:
    """``PayloadError`` where writing ``out`` would replace a file that is still read."""
    read = {Path(model).resolve()} if isinstance(model, (str, os.PathLike)) else set()
    read |= {(folder / location).resolve() for location in files.external_files(source)} if folder is not None else set()
    if {out.resolve(), out.with_name(out.name + ".data").resolve()} & read:
        raise PayloadError(f"{out}: would replace the model it is made from, or its weights; name another file")


def _refuse_elsewhere(out: Path, written: Any, folder: Path | None) -> None:
    """``PayloadError`` where the weights that stay in other files would not be found from ``out``."""
    kept = files.external_files(written)
    if kept and folder is not None and folder.resolve() != out.parent.resolve():
        raise PayloadError(
            f"{out}: the other weights stay in {', '.join(sorted(kept))} of {folder}, where a model elsewhere does not look; "
            f"write {folder / out.name} instead, or copy them with the option copy"
        )


Choice = tuple[Weight, Packed]


def _select(found: Weights, patterns: Mapping[str, Target]) -> tuple[list[Choice], list[tuple[str, str]]]:
    """The weights to write, in the order of the model, and those that a pattern matched in vain."""
    chosen: dict[str, Packed] = {}
    reasons: dict[str, str] = {}
    for pattern, target in patterns.items():
        names = _matching(found, pattern)
        packed = _packed(target, pattern, names)
        format = find_format(packed.format)
        if format.quantize is None and packed.values is None:
            encoders = ", ".join(name for name in catalogue if catalogue[name].quantize is not None)
            raise UnsupportedError(f"{format.name} has no encoder; give values that you packed yourself, or one of {encoders}")
        for name in names:
            try:
                format.grid(found[name].shape)
            except ShapeError as error:
                if len(names) == 1:
                    raise ShapeError(f"weight {name!r}: {error}") from error
                reasons[name] = str(error)
                chosen.pop(name, None)
            else:
                reasons.pop(name, None)
                chosen[name] = packed
    if not patterns:
        raise CheckError("no pattern is given; name weights and their formats, for example {'*': 'Q8_0'}")
    if not chosen:
        listed = "; ".join(f"{name}: {reason}" for name, reason in list(reasons.items())[:3])
        raise ShapeError(f"blocks divide none of the {len(reasons)} weights: {listed}")
    return [(weight, chosen[weight.name]) for weight in found if weight.name in chosen], list(reasons.items())


def _matching(found: Weights, pattern: str) -> list[str]:
    if pattern in found:
        return [pattern]
    names = [weight.name for weight in found if weight.read and fnmatchcase(weight.name, pattern)]
    if not names:
        every = [weight.name for weight in found if weight.read]
        close = difflib.get_close_matches(pattern, every, 3, 0.3) or every[:3]
        known = f"it has {', '.join(close)}{', …' if len(every) > len(close) else ''}" if every else "it has none"
        raise CheckError(f"no weight of the model matches {pattern!r}; {known}")
    return names


def _packed(target: Target, pattern: str, names: list[str]) -> Packed:
    if isinstance(target, (str, Format)):
        return Packed(target, None)
    if len(names) > 1:
        raise CheckError(f"packed values are for one weight, and {pattern!r} matches {len(names)}; give its name")
    return Packed(*target)


def _payload(
    found: Weights, weight: Weight, format: Format, given: Any, row: WeightError, progress: Callable[[int], object] | None
) -> Iterator[np.ndarray]:
    """The new payload in chunks of whole blocks, made while it is written; ``row`` gets the errors."""
    values = found.values(weight)
    whole = None if given is None else _given(format, weight, given)
    worst = squares = total = 0.0
    for begin, end in _chunks(format, weight.shape):
        before = np.asarray(values[begin:end], np.float32)
        if not np.isfinite(before).all():
            raise PayloadError(f"weight {weight.name!r} holds values that are not finite; {format.name} cannot stand for them")
        if whole is None:
            payload = format.encode(before)
        else:
            per_row = whole.size // weight.shape[0]
            payload = whole[begin * per_row : end * per_row]
        error = format.decode(payload, before.shape).astype(np.float64) - before
        worst = max(worst, float(np.abs(error).max(initial=0)))
        squares += float(np.square(error).sum())
        total += float(np.square(before, dtype=np.float64).sum())
        yield payload
    count = math.prod(weight.shape)
    row.max_abs, row.rms = worst, math.sqrt(squares / count) if count else 0.0
    row.relative = math.sqrt(squares / total) if total else 0.0
    if progress is not None:
        progress(row.nbytes)


def _chunks(format: Format, shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Ranges of the first dimension that are whole blocks, of about ``_CHUNK`` elements each."""
    if not shape:
        yield 0, 1
        return
    unit = format.block_shape[0] if len(format.block_shape) == len(shape) else 1
    step = max(1, _CHUNK // max(1, math.prod(shape[1:]) * unit)) * unit
    for begin in range(0, shape[0], step):
        yield begin, min(begin + step, shape[0])


def _given(format: Format, weight: Weight, values: Any) -> np.ndarray:
    """The payload that the caller packed, as UINT8[n]."""
    if isinstance(values, Mapping):
        return format.pack(weight.shape, **values)
    data = np.frombuffer(values, np.uint8)
    expected = format.blocks(weight.shape) * format.nbytes
    if data.size != expected:
        raise PayloadError(f"weight {weight.name!r}: {format.name}{list(weight.shape)} takes {expected} bytes, found {data.size}")
    return data
