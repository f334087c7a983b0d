"""Folders of the user that this package keeps things in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tenonnx.errors import TenonnxError


def as_path(given: Any, what: str) -> Path:
    """A path from what a caller calls one: text, bytes or ``os.PathLike``. ``TypeError`` for a number, which would be read as
    an open file's, and for anything else.
    """
    try:
        return Path(os.fsdecode(given))
    except TypeError:
        raise TypeError(f"{what}: expected a path, found {type(given).__name__}; pass text or a pathlib.Path") from None


def cache_folder() -> Path:
    """The folder for what can be fetched or made again: TENONNX_CACHE, else ``tenonnx`` in the user's cache directory."""
    chosen = os.environ.get("TENONNX_CACHE")
    if chosen:
        return Path(chosen).absolute()
    shared = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(shared):  # the XDG specification has a relative one ignored
        return Path(shared, "tenonnx")
    try:
        return Path.home() / ".cache" / "tenonnx"
    except RuntimeError as error:
        raise TenonnxError(
            "the user has no home directory; set TENONNX_CACHE to a folder for pulled models and digests"
        ) from error
