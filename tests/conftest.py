from __future__ import annotations

from pathlib import Path

import pytest

from tests.model import smollm2


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct with Q4_1 matrices."""
    return smollm2()
