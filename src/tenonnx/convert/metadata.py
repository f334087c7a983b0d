"""The key-value metadata of a GGUF file, read by key with the type that the reader of it expects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tenonnx.errors import PayloadError


class Metadata(dict[str, Any]):
    """Values by key. Each method raises ``PayloadError`` when the value has another type, or is absent without a default."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def _typed(self, key: str, kinds: tuple[type, ...], expected: str, default: Any) -> Any:
        if key not in self:
            if default is None:
                raise PayloadError(f"{self.path}: has no metadata {key!r} ({expected}); convert the model to GGUF again")
            return default
        value = self[key]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise PayloadError(f"{self.path}: metadata {key!r} is {_brief(value)}; expected {expected}")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        value: int = self._typed(key, (int,), "an integer", default)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        return float(self._typed(key, (int, float), "a number", default))

    def flag(self, key: str, default: bool | None = None) -> bool:
        value: bool = self._typed(key, (bool,), "true or false", default)
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value: str = self._typed(key, (str,), "a text", default)
        return value

    def texts(self, key: str) -> list[str]:
        values: list[str] = self._typed(key, (list,), "a list of texts", None)
        if values and not isinstance(values[0], str):
            raise PayloadError(f"{self.path}: metadata {key!r} is a list of lists; expected a list of texts")
        return values

    def numbers(self, key: str) -> np.ndarray:
        array: np.ndarray = self._typed(key, (np.ndarray,), "an array of numbers", None)
        return array

    def same_in_all_layers(self, key: str, default: int | None = None) -> int:
        """An integer that a file may also give once for each layer, as long as all are equal."""
        value = self.get(key)
        if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.size and (value == value[0]).all():
            return int(value[0])
        return self.integer(key, default)


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{type(value).__name__} {text[:60]}…"
