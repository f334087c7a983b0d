"""What has been hashed on this machine: digests by the state of the file they were computed from.

One small file in the user's cache for each state (device, inode, size, mtime, ctime) of a data file. The ctime cannot be set
back, so content that has changed has another state, even where its mtime was restored. Clocks of file systems tick in
milliseconds, so a file that was touched within the last ticks is hashed, but not remembered.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from pathlib import Path

from tenonnx.errors import TenonnxError
from tenonnx.schema.external import FileIdentity, MappedFile
from tenonnx.schema.places import cache_folder

SETTLED_NS = 20_000_000  # two ticks of a clock of 100 Hz
_KEPT = 1024  # files; the oldest go first


class Memory:
    """The digests known of one data file in its state when this was made; nothing is kept where there is no cache."""

    def __init__(self, file: MappedFile, *, forget: bool = False) -> None:
        self._file = file
        self.identity = file.identity()
        unchanged = self.identity == file.state  # else what was parsed from it may be older than what it holds now
        self._settled = unchanged and settled(self.identity)
        self._path = _place(self.identity)
        self._known: dict[str, str] = {} if forget or not unchanged else _read(self._path)
        self._new: dict[str, str] = {}

    def get(self, key: bytes) -> bytes | None:
        """The digest remembered under ``key``, which says of what part of the file it is and how it was computed."""
        found = self._known.get(key.hex())
        return None if found is None else bytes.fromhex(found)

    def put(self, key: bytes, digest: bytes) -> None:
        """Note a digest; ``save`` remembers it."""
        self._new[key.hex()] = digest.hex()

    def save(self) -> None:
        """Remember what was noted, unless the file has changed meanwhile or only just before."""
        if not self._new or self._path is None or not self._settled or self._file.identity() != self.identity:
            return
        draft = self._path.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):  # a cache that cannot be written only costs the next start
            self._path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(json.dumps({**_read(self._path), **self._new}))
            os.replace(draft, self._path)
            _drop_oldest(self._path.parent)
        self._new.clear()


def settled(identity: FileIdentity) -> bool:
    """Whether a change from now on shows in the file's times."""
    return time.time_ns() - max(identity.mtime_ns, identity.ctime_ns) > SETTLED_NS


def _place(identity: FileIdentity) -> Path | None:
    try:
        return cache_folder() / "digests" / f"{hashlib.sha256(repr(tuple(identity)).encode()).hexdigest()[:32]}.json"
    except TenonnxError:
        return None


def _read(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        found = json.loads(path.read_bytes())
        for key, digest in found.items():
            bytes.fromhex(key), bytes.fromhex(digest)
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
    return dict(found)


def _drop_oldest(folder: Path) -> None:
    files = list(folder.iterdir())
    if len(files) <= _KEPT:
        return
    for path in sorted(files, key=lambda path: path.stat().st_mtime)[:-_KEPT]:
        path.unlink(missing_ok=True)
