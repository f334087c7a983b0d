"""Files that packs are mapped from, watched while a session runs on them.

A file that is replaced by a rename stays mapped as it was. One that is changed in place changes under the session, which is
noticed at the start of its next run; a change while a run is going on is not, and cutting such a file short kills the process
that reads past its end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tenonnx.compiled.digest import digest
from tenonnx.errors import PayloadError
from tenonnx.schema.external import FileIdentity, MappedFile


class Sealed(NamedTuple):
    """A payload in use, with the digest over ``header`` and the bytes that it must have."""

    data: np.ndarray
    header: bytes
    seal: bytes
    algorithm: str

    def intact(self) -> bool:
        return digest([self.header, self.data.data], self.algorithm) == self.seal


@dataclass
class WatchedFile:
    """A mapped file, its state when its payloads were verified, and those payloads."""

    file: MappedFile
    identity: FileIdentity
    payloads: list[Sealed] = field(default_factory=list)

    def check(self) -> None:
        """``PayloadError`` when the file was changed in place.

        A change of ctime alone is what a rename over the file, a link or new permissions leave, or an edit that set the mtime
        back: then the content decides.
        """
        now = self.file.identity()
        if now == self.identity:
            return
        same = (now.size, now.mtime_ns) == (self.identity.size, self.identity.mtime_ns)
        if not same or not all(payload.intact() for payload in self.payloads):
            raise PayloadError(
                f"{self.file.path}: the packs of this session were changed in place while it runs, so its weights cannot be "
                "trusted; make a new session, and replace such files by renaming a new one over them"
            )
        self.identity = now
