"""Files that take the place of others whole or not at all: temporary file, fsync, rename."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tenonnx.errors import PayloadError


class _Draft:
    """A temporary file beside ``path``, with the permissions of the file whose place it will take."""

    def __init__(self, path: Path) -> None:
        refuse_special(path)
        self.path = path
        self._temporary = path.with_name(f".tenonnx-{secrets.token_hex(8)}")
        self._former = self._temporary.with_suffix(".former")
        self._placed = False
        # Not tempfile's private 0600: a new model is as readable as any new file of this user.
        descriptor = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self.stream: BinaryIO = os.fdopen(descriptor, "wb")
        with contextlib.suppress(OSError):
            os.fchmod(descriptor, stat.S_IMODE(path.stat().st_mode))

    def finish(self) -> None:
        """Everything written is on the disk."""
        self.stream.flush()
        os.fsync(self.stream.fileno())
        self.stream.close()

    def place(self, keep_former: bool) -> None:
        """Take the place of ``path``; with ``keep_former`` its file stays at hand, where the file system has hard links."""
        if keep_former:
            with contextlib.suppress(OSError):
                os.link(self.path, self._former, follow_symlinks=False)
        os.replace(self._temporary, self.path)
        self._placed = True

    def undo(self) -> None:
        """Leave ``path`` as it was."""
        with contextlib.suppress(OSError):
            self.stream.close()
        with contextlib.suppress(OSError):
            os.unlink(self._temporary)
        if self._placed:
            with contextlib.suppress(OSError):
                if os.path.lexists(self._former):
                    os.replace(self._former, self.path)
                else:
                    os.unlink(self.path)
        self.forget()

    def forget(self) -> None:
        """Let the replaced file go."""
        with contextlib.suppress(OSError):
            os.unlink(self._former)


def refuse_special(path: Path) -> None:
    """``PayloadError`` for a place that no file can take: a folder, or a device or pipe, which a rename would remove."""
    if path.is_dir():
        raise PayloadError(f"{path}: is a folder; name a file in it")
    if path.exists() and not path.is_file():
        raise PayloadError(f"{path}: is a device or a pipe, not a file; name a file, to be written whole or not at all")


@contextlib.contextmanager
def replacing_all(*paths: Path) -> Iterator[list[BinaryIO]]:
    """Streams to temporary files that take the places of ``paths``, in this order, when the block ends well.

    All are complete on the disk before the first rename, and a rename that fails puts the earlier ones back: after an
    error every path holds what it held before. Raises ``PayloadError`` when a file cannot be written.
    """
    drafts: list[_Draft] = []
    try:
        for path in paths:
            drafts.append(_Draft(path))
        yield [draft.stream for draft in drafts]
        for draft in drafts:
            draft.finish()
        for draft in drafts:
            draft.place(keep_former=draft is not drafts[-1])
    except BaseException as error:
        for draft in reversed(drafts):
            draft.undo()
        if isinstance(error, OSError):
            reason = error.strerror or error
            raise PayloadError(f"{paths[-1]}: cannot be written: {reason}; nothing was changed, name another place") from error
        raise
    for draft in drafts:
        draft.forget()


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A temporary file beside ``path`` that takes its place when the block ends well, and vanishes when it does not."""
    with replacing_all(path) as streams:
        yield streams[0]
