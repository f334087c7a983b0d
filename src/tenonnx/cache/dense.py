"""Dense caches: all READ_WRITE inputs of a model in one allocation, with their valid length."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from tenonnx import dtypes
from tenonnx.cache import rows
from tenonnx.cache.ownership import Extent, address, allocated, owned
from tenonnx.errors import CapacityError

_ALIGNMENT = 64


class CacheSpec(NamedTuple):
    """One cache tensor: its element type, concrete dimensions, and the axis that its length runs along."""

    elem_type: int
    dims: tuple[int, ...]
    axis: int

    @property
    def nbytes(self) -> int:
        size = dtypes.BY_NUMBER[self.elem_type].bits // 8
        for dim in self.dims:
            size *= dim
        return size


def kept_length(length: int, valid: int) -> int:
    """A length to truncate to; ``CapacityError`` for what is no whole number from 0 to the valid length."""
    if isinstance(length, bool) or not isinstance(length, (int, np.integer)) or not 0 <= length <= valid:
        raise CapacityError(f"truncate to {length!r}: expected 0 to {valid}, the valid length")
    return int(length)


def planned_bytes(specs: Mapping[str, CacheSpec]) -> int:
    """Bytes that a Cache over these tensors allocates."""
    return sum(-(-spec.nbytes // _ALIGNMENT) * _ALIGNMENT for spec in specs.values())


class Cache:
    """Every cache of a model, and how many positions of them are valid.

    Pass it to ``Session.run``: the run binds each tensor as writable, feeds ``position`` with ``length``, and moves
    ``length`` on success alone. Rolling back is ``truncate``: bytes past the valid length mean nothing. While a call runs
    over it, everything that reads or changes its content is refused with ``ConcurrentUseError``.
    """

    def __init__(self, specs: Mapping[str, CacheSpec], limit: int | None = None) -> None:
        """Allocate the tensors; ``CapacityError`` for more than ``limit`` bytes, or more than there is memory."""
        self.specs: Mapping[str, CacheSpec] = MappingProxyType(dict(specs))
        self._length = 0
        self._capacity = min((spec.dims[spec.axis] for spec in specs.values()), default=0)
        wanted = planned_bytes(specs)
        if limit is not None and wanted > limit:
            raise CapacityError(
                f"a cache of {wanted:,} bytes is over the limit of {limit:,}; ask for a shorter context, or raise the limit"
            )
        self._buffer = allocated(wanted, "cache", "ask for a shorter context")
        whole = self._buffer.array()
        arrays: dict[str, np.ndarray] = {}
        offset = 0
        for name, spec in self.specs.items():
            part = whole[offset : offset + spec.nbytes]
            arrays[name] = part.view(dtypes.BY_NUMBER[spec.elem_type].numpy).reshape(spec.dims)
            offset += -(-spec.nbytes // _ALIGNMENT) * _ALIGNMENT
        self.arrays: Mapping[str, np.ndarray] = MappingProxyType(arrays)
        self.addresses = {name: address(array) for name, array in self.arrays.items()}
        self.extent = Extent("cache", self._buffer.address, self._buffer.address + wanted)

    @property
    def length(self) -> int:
        """Positions that hold valid content, the same in every tensor."""
        return self._length

    @property
    def capacity(self) -> int:
        """Positions that fit, in the tensor that holds fewest."""
        return self._capacity

    @property
    def nbytes(self) -> int:
        """Bytes allocated, whole capacity."""
        return int(self._buffer.nbytes)

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` positions; ``CapacityError`` when that is negative or more than are valid."""
        with owned([self.extent], []):
            self._length = kept_length(length, self._length)

    def reset(self) -> None:
        """Forget all content; the storage stays."""
        self.truncate(0)

    def fork(self, limit: int | None = None) -> Cache:
        """Another cache of the same capacity with a copy of the valid rows; neither changes with the other.

        Raises ``CapacityError`` when it cannot be allocated, or would take more than ``limit`` bytes.
        """
        with owned([], [self.extent]):
            made = Cache(self.specs, limit)
            rows.copy(self, made, self._length)
            made._length = self._length
            return made

    def save(self, path: str | os.PathLike[str], note: Any = None) -> None:
        """Write the valid rows to a file that ``load`` reads; an existing file is replaced whole or not at all.

        ``note``: anything that JSON holds, which ``saved_note(path)`` gives back. Raises ``PayloadError`` when the file
        cannot be written.
        """
        with owned([], [self.extent]):
            rows.save(self, path, note)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Replace the content by that of a file, which a cache of the same model and any capacity wrote.

        Raises ``PayloadError`` for a damaged, cut or foreign file, or one with more positions than fit; the cache is as it
        was then.
        """
        with owned([self.extent], []):
            self._length = rows.read(self, path)

    def advance(self, length: int) -> None:
        """Make ``length`` positions valid; for the runtime, after a run that wrote them."""
        if not 0 <= length <= self._capacity:
            raise CapacityError(f"length {length}: expected 0 to {self._capacity}, the capacity")
        self._length = length

    def __getitem__(self, name: str) -> np.ndarray:
        """The array of one cache input, over the cache's own storage."""
        return self.arrays[name]

    def __repr__(self) -> str:
        return f"Cache({len(self.arrays)} tensors, {self._length} of {self.capacity} positions, {self.nbytes:,} bytes)"
