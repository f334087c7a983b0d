"""The one door to bytes outside a model file: confined paths, checked ranges, mapped read-only.

A location read from a file may name only a regular file inside the model's folder (``data_root``): relative, no ``..``, no
symlink on the way out, no second hard link. What a user types on a command line is trusted and does not come through here.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tenonnx.errors import PayloadError

_KEYS = ("location", "offset", "length", "checksum", "basepath")
_MAX_SIZE = 2**63 - 1
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # not to wait for the writer of a pipe


class ExternalRange(NamedTuple):
    """Where a payload lies: a path relative to the data root, and bytes [offset, offset + length); None: to the end."""

    location: str
    offset: int
    length: int | None


def _size(where: str, key: str, text: str) -> int:
    # isdecimal also admits other scripts' digits; a file offset is written in ASCII.
    if not (text.isascii() and text.isdecimal()) or len(text) > 19 or int(text) > _MAX_SIZE:
        raise PayloadError(f"{where}: external_data {key} is {text!r}; expected a byte count from 0 to 2^63-1")
    return int(text)


def parse_external(where: str, entries: Iterable[Any]) -> ExternalRange:
    """The range that ``external_data`` entries name; ``PayloadError`` for unknown or repeated keys and bad numbers."""
    found: dict[str, str] = {}
    for entry in entries:
        if entry.key not in _KEYS:
            raise PayloadError(f"{where}: external_data has key {entry.key!r}; known are {', '.join(_KEYS)}")
        if entry.key in found:
            raise PayloadError(f"{where}: external_data repeats key {entry.key!r}; keep one")
        found[entry.key] = entry.value
    if not found.get("location"):
        raise PayloadError(f"{where}: external_data names no location; add the file that holds the bytes")
    length = _size(where, "length", found["length"]) if "length" in found else None
    return ExternalRange(found["location"], _size(where, "offset", found.get("offset", "0")), length)


class FileIdentity(NamedTuple):
    """What changes when a file is edited or replaced; ``ctime_ns`` cannot be set back, as the others can."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


def _identity(status: os.stat_result) -> FileIdentity:
    return FileIdentity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class _Descriptor:
    """An open file, closed when nothing refers to it any more."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


@dataclass(frozen=True)
class MappedFile:
    """A read-only map of one file, alive as long as an array over it."""

    path: Path
    data: np.ndarray  # UINT8[size], read-only
    state: FileIdentity  # when it was mapped
    _file: _Descriptor  # open as long as the map: a path may name another file by now
    _map: mmap.mmap | None = None

    def identity(self) -> FileIdentity:
        """The state of the mapped file now."""
        return _identity(os.fstat(self._file.number))

    def bytes_at(self, where: str, offset: int, length: int | None) -> np.ndarray:
        """UINT8[length] at ``offset``, without a copy; to the end when ``length`` is None."""
        size = self.data.size
        if offset > size or (length is not None and length > size - offset):
            wanted = f"{length} bytes at offset {offset}" if length is not None else f"offset {offset}"
            raise PayloadError(
                f"{where}: {self.path.name} holds {size} bytes but the model asks for {wanted}; "
                "the file is truncated or belongs to another model: fetch or convert it again"
            )
        end = size if length is None else offset + length
        return self.data[offset:end]

    def release(self) -> None:
        """Give the pages read so far back to the system; they are read again from the file when touched."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)


def map_file(path: Path) -> MappedFile:
    """Map a regular file that the user named read-only; ``PayloadError`` when it cannot be opened."""
    try:
        descriptor = os.open(path, _READ)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise PayloadError(f"{path}: cannot be opened: {getattr(error, 'strerror', None) or error}") from error
    return _mapped(descriptor, str(path), path)


def _mapped(descriptor: int, where: str, path: Path, confined: bool = False) -> MappedFile:
    """A map of an open file; everything is asked of the descriptor, since a path can change meanwhile."""
    file = _Descriptor(descriptor)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise PayloadError(f"{where}: is not a regular file; name the file that holds the data")
        if confined and status.st_nlink > 1:
            raise PayloadError(f"{where}: has a second hard link, maybe outside the model's folder; copy it into the folder")
        mapped = mmap.mmap(descriptor, status.st_size, access=mmap.ACCESS_READ) if status.st_size else None
    except (OSError, ValueError) as error:
        raise PayloadError(f"{where}: cannot be mapped: {error}") from error
    return MappedFile(path, np.frombuffer(b"" if mapped is None else mapped, np.uint8), _identity(status), file, mapped)


class DataRoot:
    """The folder that a model's external data must lie in; maps each file once."""

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self.folder = None if folder is None else Path(folder)
        self._maps: dict[str, MappedFile] = {}

    def read(self, where: str, entries: Iterable[Any]) -> np.ndarray:
        """UINT8[length], read-only and mapped, for the ``external_data`` entries of the value named ``where``."""
        location, offset, length = parse_external(where, entries)
        return self.file(where, location).bytes_at(where, offset, length)

    def file(self, where: str, location: str) -> MappedFile:
        """The file that the value named ``where`` lies in, mapped on first use."""
        if location not in self._maps:
            self._maps[location] = self._map(where, location)
        return self._maps[location]

    def release(self) -> None:
        """Give back the pages of every file mapped so far."""
        for mapped in self._maps.values():
            mapped.release()

    def _map(self, where: str, location: str) -> MappedFile:
        if self.folder is None:
            raise PayloadError(
                f"{where}: its bytes lie in the external file {location!r}, but a model in memory has no folder; "
                "name its folder (data_root), or load the model by its path"
            )
        pieces = location.split("/")
        if "\\" in location or "\0" in location or not all(pieces) or ".." in pieces:
            raise PayloadError(f"{where}: external location {location!r} is not a plain path inside the model's folder")
        try:
            descriptor = _open_inside(self.folder, pieces)
        except OSError as error:
            raise PayloadError(f"{where}: external file {location!r} {_refusal(error, self.folder)}") from error
        return _mapped(descriptor, f"{where}: external file {location!r}", self.folder.joinpath(*pieces), confined=True)


def _open_inside(folder: Path, pieces: list[str]) -> int:
    """Open a file below ``folder`` one piece at a time: no step follows a link, so none can be swapped in after a check."""
    here = os.open(folder, _READ | os.O_DIRECTORY)
    try:
        for piece in pieces[:-1]:
            inner = os.open(piece, _READ | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
            os.close(here)
            here = inner
        return os.open(pieces[-1], _READ | os.O_NOFOLLOW, dir_fd=here)
    finally:
        os.close(here)


def _refusal(error: OSError, folder: Path) -> str:
    if error.errno in (errno.ELOOP, errno.ENOTDIR):  # ENOTDIR: a link where a folder is expected
        return "is reached through a symbolic link or a file that is no folder; copy it into the model's folder"
    if error.errno == errno.ENOENT:
        return f"is not in {str(folder)!r}; put it beside the model"
    return f"cannot be opened: {error.strerror}"
