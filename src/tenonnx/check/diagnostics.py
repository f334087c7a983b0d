"""What a check finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Diagnostic:
    """One finding of ``rule`` at ``where``, a path to a field such as ``struct_types[3].array.element_type``.

    ``kind`` is "invalid" for what the specification rejects, and "limit" for what is valid but more than this version takes.
    """

    severity: Literal["error", "warning"]
    kind: Literal["invalid", "limit"]
    rule: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.where}: {self.message} [{self.rule}]"
