"""What a conversion found and did."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class CacheFinding:
    """One cache of a model: converted by ``how``, or left as it was for the reason ``why_not``."""

    source: str  # the graph input
    output: str  # the graph output that continues it; "" where none was found
    how: str = ""
    why_not: str = ""

    def __str__(self) -> str:
        pair = f"{self.source} -> {self.output}" if self.output else self.source
        return f"{pair}: {self.how}" if self.how else f"{pair}: not converted: {self.why_not}"


@dataclass
class Findings:
    """The caches that a model has, and what else its user has to know."""

    caches: list[CacheFinding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def converted(self, source: str, output: str, how: str) -> None:
        self.caches.append(CacheFinding(source, output, how=how))

    def left(self, source: str, output: str, why: str) -> None:
        if not any(cache.source == source for cache in self.caches):
            self.caches.append(CacheFinding(source, output, why_not=why))

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


@dataclass(frozen=True)
class Report:
    """What a conversion wrote."""

    path: Path
    architecture: str
    weights: dict[str, int]  # number of tensors by format
    model_bytes: int  # of the .onnx
    copied_bytes: int  # of weights; 0 when they stay where they were
    caches: tuple[CacheFinding, ...] = ()
    notes: tuple[str, ...] = ()
