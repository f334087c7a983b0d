"""What a saved cache says beside its content, whether dense or in pages."""

from __future__ import annotations

import os
from typing import Any

from tenonnx.cache import rows, store


def saved_note(path: str | os.PathLike[str]) -> Any:
    """The note that was given to ``save``, None without one; rows and pages are not read.

    Raises ``PayloadError`` for a file that holds no cache, or a damaged header.
    """
    return (store if store.is_saved(path) else rows).read_header(path).note
