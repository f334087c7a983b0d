from __future__ import annotations

from pathlib import Path

import pytest

from tests.model import smollm2


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct with Q4_1 matrices."""
    return smollm2()


@pytest.fixture
def user_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's cache of its own, where nothing was verified before."""
    folder = tmp_path / "user-cache"
    monkeypatch.setenv("TENONNX_CACHE", str(folder))
    return folder
