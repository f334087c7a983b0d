"""What a shell offers to complete: known models, model files, policies and formats. Nothing heavy is imported."""

from __future__ import annotations

import os
from pathlib import Path

_POLICIES = ("F16", "BF16", "F32", "INT8_PAGE", "FP8_PAGE", "INT4_PAGE", "INT2_PAGE", "aged", "budget:64MiB")
_SUFFIXES = {".onnx", ".gguf"}
_SHELL = set("\\$`\"'")  # in names that are not offered: some shells evaluate what they are given


def known_models(incomplete: str) -> list[str]:
    """Known names that begin so."""
    from tenonnx.text.registry import KNOWN

    return [name for name in KNOWN if name.startswith(incomplete.lower())]


def models(incomplete: str) -> list[str]:
    """Known names, model files, and folders on the way to one."""
    folder, begin = (Path(incomplete), "") if incomplete.endswith("/") else (Path(incomplete).parent, Path(incomplete).name)
    try:
        found = sorted(path for path in folder.iterdir() if path.name.startswith(begin) and (begin or path.name[0] != "."))
    except OSError:
        found = []
    found = [path for path in found if path.name.isprintable() and not _SHELL & set(path.name)]
    files = [str(path) for path in found if path.suffix.lower() in _SUFFIXES]
    return known_models(incomplete) + files + [f"{path}/" for path in found if os.path.isdir(path)]


def policies(incomplete: str) -> list[str]:
    """Names of policies, in small letters for those who type them so."""
    names = [name.lower() if incomplete.islower() else name for name in _POLICIES]
    return [name for name in names if name.startswith(incomplete)]
