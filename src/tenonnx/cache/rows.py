"""A dense cache as a file of ``cache.container``: the valid rows of each tensor alone, each behind its digest.

The header tells the tensors by name with element type, axis and dims. The digest of that signature is the model's: caches of
any capacity load it, those of another model don't.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from tenonnx import dtypes
from tenonnx.cache import container
from tenonnx.errors import PayloadError

if TYPE_CHECKING:
    from tenonnx.cache.dense import Cache, CacheSpec

_MAGIC = b"TENONNXCACHE\x01"
_CHUNK = 1 << 20  # bytes hashed at a time


class SavedRows(NamedTuple):
    """What a file holds: positions valid, the digest of the cache signature, and that of each tensor's rows."""

    length: int
    signature: str
    tensors: dict[str, list[Any]]  # name -> element type, axis, dims with None along the axis
    digests: list[bytes]
    note: Any = None  # what was saved beside the rows

    def elem_type(self, name: str) -> int:
        """ONNX element type of one tensor."""
        return int(self.tensors[name][0])

    def dims(self, name: str) -> tuple[int, ...]:
        """Dims of the rows of one tensor: its own, with the valid length along the axis that it grows along."""
        return tuple(self.length if dim is None else dim for dim in self.tensors[name][2:])

    def nbytes(self, name: str) -> int:
        """Bytes of the rows of one tensor."""
        return math.prod(self.dims(name)) * dtypes.BY_NUMBER[self.elem_type(name)].bits // 8


def _signature(specs: Mapping[str, CacheSpec]) -> dict[str, list[Any]]:
    """Element type, axis and dims of each tensor; None for the axis that its length runs along."""
    return {
        name: [spec.elem_type, spec.axis, *(None if axis == spec.axis else dim for axis, dim in enumerate(spec.dims))]
        for name, spec in specs.items()
    }


def _digest(signature: Any) -> str:
    return container.digest(json.dumps(signature, sort_keys=True).encode()).hex()


def _parts(array: np.ndarray, axis: int, length: int) -> Iterator[np.ndarray]:
    """The first ``length`` rows along ``axis``, in order, as the contiguous pieces that they lie in."""
    rows = array[(slice(None),) * axis + (slice(0, length),)]
    if not rows.nbytes:
        return
    for index in np.ndindex(*rows.shape[:axis]):
        yield rows[index].reshape(-1).view(np.uint8)


def copy(source: Cache, target: Cache, length: int) -> None:
    """The first ``length`` rows of every tensor, from one cache to another of the same specs."""
    for name, spec in source.specs.items():
        for mine, theirs in zip(
            _parts(source.arrays[name], spec.axis, length), _parts(target.arrays[name], spec.axis, length), strict=True
        ):
            theirs[...] = mine


def save(cache: Cache, path: str | os.PathLike[str], note: Any = None) -> None:
    """Write the valid rows; each is read twice, for its digest and for the file, and nothing is copied."""
    tensors = _signature(cache.specs)
    parts = {name: list(_parts(cache.arrays[name], spec.axis, cache.length)) for name, spec in cache.specs.items()}
    header = {
        "length": cache.length,
        "signature": _digest(tensors),
        "tensors": tensors,
        "digests": [container.digest(*mine).hex() for mine in parts.values()],
        **container.noted(note),
    }
    container.write(path, _MAGIC, header, (part.data for mine in parts.values() for part in mine))


def read_header(path: str | os.PathLike[str]) -> SavedRows:
    """What a file says that it holds; its header is checked, its rows are not read. ``PayloadError`` for another file
    and for one of another size.
    """
    where = str(path)
    with container.opened(path) as stream:
        saved = _header(stream, where)
        container.check_rest(stream, sum(map(saved.nbytes, saved.tensors)), where)
    return saved


def is_saved(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as one that ``save`` wrote."""
    return container.begins_with(path, _MAGIC)


def read(cache: Cache, path: str | os.PathLike[str]) -> int:
    """Fill a cache from a file and return its length.

    The file is read twice: nothing is written before every digest was found right. ``PayloadError`` otherwise.
    """
    where = str(path)
    with container.opened(path) as stream:
        saved = _header(stream, where)
        _refuse_foreign(cache, saved, where)
        begin = stream.tell()
        _verify(cache, saved, stream, where)
        container.refuse_more(stream, where)
        stream.seek(begin)
        for name in saved.tensors:
            for part in _parts(cache.arrays[name], cache.specs[name].axis, saved.length):
                container.read_into(stream, part, where)
    return saved.length


def _refuse_foreign(cache: Cache, saved: SavedRows, where: str) -> None:
    mine = _signature(cache.specs)
    if saved.signature != _digest(mine):
        name = next((name for name in {**mine, **saved.tensors} if mine.get(name) != saved.tensors.get(name)), "")
        raise PayloadError(
            f"{where}: holds a cache of another model: tensor {name!r} is {saved.tensors.get(name)} there, here {mine.get(name)} "
            "(element type, axis, dims); load it into a cache of the same model"
        )
    if saved.length > cache.capacity:
        raise PayloadError(
            f"{where}: holds {saved.length} positions, the cache takes {cache.capacity}; make one for a longer context"
        )


def _verify(cache: Cache, saved: SavedRows, stream: BinaryIO, where: str) -> None:
    buffer = np.empty(_CHUNK, np.uint8)
    for name, expected in zip(saved.tensors, saved.digests, strict=True):
        spec = cache.specs[name]
        state = hashlib.blake2b(digest_size=container.DIGEST)
        left = spec.nbytes // max(1, spec.dims[spec.axis]) * saved.length
        while left:
            piece = buffer[: min(left, _CHUNK)]
            container.read_into(stream, piece, f"{where}: tensor {name!r}")
            state.update(piece.data)
            left -= piece.size
        if state.digest() != expected:
            raise PayloadError(f"{where}: tensor {name!r} is not what was saved: its digest differs; the file is damaged")


def _header(stream: BinaryIO, where: str) -> SavedRows:
    return container.read_header(stream, _MAGIC, "dense cache", where, _parsed)


def _parsed(header: Any) -> SavedRows:
    """The header as typed values; raises ValueError and its like for one that no ``save`` wrote."""
    tensors = {str(name): list(entry) for name, entry in header["tensors"].items()}
    digests = [bytes.fromhex(text) for text in header["digests"]]
    length, signature = int(header["length"]), str(header["signature"])
    if length < 0 or len(digests) != len(tensors) or signature != _digest(tensors):
        raise ValueError(f"{length} positions of {len(tensors)} tensors with {len(digests)} digests")
    for name, (elem_type, axis, *dims) in tensors.items():
        fixed = [dim for place, dim in enumerate(dims) if place != axis]
        grows = len(fixed) + 1 == len(dims) and dims[axis] is None
        if elem_type not in dtypes.BY_NUMBER or not grows or not all(isinstance(dim, int) and dim >= 0 for dim in fixed):
            raise ValueError(f"tensor {name!r} of element type {elem_type}, axis {axis} and dims {dims}")
    return SavedRows(length, signature, tensors, digests, header.get("note"))
