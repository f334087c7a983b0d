"""Who may write which storage now: one process-wide registry, keyed by address range.

Ownership belongs to storage, not to Python objects: two arrays over the same bytes are one thing here.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from tenonnx.errors import BindingError, CapacityError, ConcurrentUseError, ImmutableStorageError, SharedStorageError

if TYPE_CHECKING:
    from tenonnx.cache.pages import PageTable


class Extent(NamedTuple):
    """Bytes [begin, end) bound to the input or output ``name``."""

    name: str
    begin: int
    end: int

    def overlaps(self, other: Extent) -> bool:
        """Whether a byte lies in both; an empty extent has none."""
        return max(self.begin, other.begin) < min(self.end, other.end)


class Writable:
    """An array whose owner lets the running call change it; made by ``writable``."""

    __slots__ = ("array",)

    def __init__(self, array: Any) -> None:
        self.array = array

    def __repr__(self) -> str:
        if not isinstance(self.array, np.ndarray):
            return f"writable({self.array!r})"
        return f"writable({self.array.dtype}{list(self.array.shape)} at {address(self.array):#x})"


def writable(array: np.ndarray | PageTable) -> Writable:
    """Opt one array, or the pages of one table, into mutation for the call it is given to.

    ``array`` must be a writable C-contiguous NumPy array, of the element type and shape of the READ_WRITE input it is
    bound to. Raises ``ImmutableStorageError`` for a read-only array, ``BindingError`` for anything that is no array, is not
    contiguous or is not aligned: a copy would not be the caller's storage.
    """
    from tenonnx.cache.pages import PageTable

    if isinstance(array, PageTable):
        return Writable(array)
    if not isinstance(array, np.ndarray):
        raise BindingError(
            f"writable: expected a NumPy array, found {type(array).__name__}; a copy of it would not be the caller's storage"
        )
    if not array.flags.writeable:
        raise ImmutableStorageError(
            f"writable: the array {array.dtype}{list(array.shape)} is read-only, so a run cannot update it; bind a writable array"
        )
    if not array.flags.c_contiguous:
        raise BindingError(
            f"writable: the array {array.dtype}{list(array.shape)} with strides {array.strides} is not contiguous; "
            "allocate the cache whole and bind it whole"
        )
    if not array.flags.aligned:
        raise BindingError(
            f"writable: the array {array.dtype}{list(array.shape)} at {address(array):#x} is not aligned to its element type; "
            "allocate the cache as an array of that type"
        )
    return Writable(array)


def address(array: np.ndarray) -> int:
    """Address of element 0."""
    return int(array.__array_interface__["data"][0])


def extent(name: str, array: np.ndarray) -> Extent:
    """The bytes of a contiguous array."""
    begin = address(array)
    return Extent(name, begin, begin + array.nbytes)


class _Registry:
    """The storage of all running calls: what each writes, and what it only reads."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start empty; a child of fork() has none of its parent's running calls."""
        self._lock = threading.Lock()
        # Weak: a call that Ctrl-C ends between two instructions leaves nothing behind when its ticket goes.
        self._held: WeakKeyDictionary[_Ticket, tuple[Sequence[Extent], Sequence[Extent]]] = WeakKeyDictionary()

    def enter(self, ticket: _Ticket, writes: Sequence[Extent], reads: Sequence[Extent]) -> None:
        with self._lock:
            for written, read in self._held.values():
                _refuse(writes, written, "has bound this storage as writable")
                _refuse(reads, written, "has bound this storage as writable")
                _refuse(writes, read, "reads this storage, which this call would write")
            self._held[ticket] = writes, reads

    def leave(self, ticket: _Ticket) -> None:
        with self._lock:
            self._held.pop(ticket, None)


class _Ticket:
    """Stands for one running call."""

    __slots__ = ("__weakref__",)


def _refuse(mine: Sequence[Extent], held: Sequence[Extent], what: str) -> None:
    for extent in mine:
        if any(extent.overlaps(other) for other in held):
            raise ConcurrentUseError(
                f"input {extent.name!r}: another call that is still running {what}; "
                "wait for it, or give each call a cache of its own"
            )


_registry = _Registry()
os.register_at_fork(after_in_child=_registry.forget)


def _check_distinct(writes: Sequence[Extent], reads: Sequence[Extent]) -> None:
    in_order = sorted((extent for extent in writes if extent.begin < extent.end), key=lambda extent: extent.begin)
    for a, b in pairwise(in_order):
        if a.overlaps(b):
            how = "the same array" if (a.begin, a.end) == (b.begin, b.end) else "overlapping arrays"
            raise SharedStorageError(f"inputs {a.name!r} and {b.name!r} are bound to {how}; each cache needs storage of its own")
    for read in reads:
        for write in in_order:
            if read.overlaps(write):
                raise SharedStorageError(
                    f"{read.name!r} overlaps the storage of {write.name!r}, which the run writes; pass a copy of it"
                )


@contextmanager
def owned(writes: Sequence[Extent], reads: Sequence[Extent]) -> Iterator[None]:
    """Hold ``writes`` for the running call; released on every way out.

    Raises ``SharedStorageError`` when bindings of this call overlap, ``ConcurrentUseError`` when another call writes one
    of them, or reads one that this call writes.
    """
    _check_distinct(writes, reads)
    ticket = _Ticket()
    try:
        _registry.enter(ticket, writes, reads)
        yield
    finally:
        _registry.leave(ticket)


def allocated(nbytes: int, purpose: str, way_out: str) -> Any:
    """A native Buffer, counted under ``purpose``; ``CapacityError`` for more than there is memory, or than any address space."""
    from tenonnx._native import Buffer

    try:
        if nbytes > sys.maxsize:
            raise MemoryError
        return Buffer(nbytes, purpose)
    except MemoryError as error:
        raise CapacityError(f"a {purpose} of {nbytes:,} bytes cannot be allocated; {way_out}") from error
