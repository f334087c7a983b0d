"""The real model of the tests, and the text that it reads: both shared by every test that needs them."""

from __future__ import annotations

import pydoc_data.topics
from functools import cache
from pathlib import Path

import numpy as np


def smollm2() -> Path:
    """SmolLM2-135M-Instruct with Q4_1 matrices, pulled on first use as ``tenonnx pull`` does."""
    from tenonnx import text

    return Path(text.known("smollm2-135m").path)


def english() -> str:
    """Some 400 kB of English that Python ships."""
    return "\n\n".join(pydoc_data.topics.topics.values())


@cache
def log_softmax_of(path: Path, count: int) -> tuple[np.ndarray, np.ndarray]:
    """(token ids INT64[count] of ``english()``, FLOAT[count, vocab] log-probabilities by the float32 oracle)."""
    from tests.oracle.llama import Llama

    ids = np.array(tokenizer(path).encode(english()[: 16 * count])[:count])
    logits = Llama(path).logits(ids)
    return ids, log_softmax(logits)


@cache
def tokenizer(path: Path):
    from tenonnx import convert, text

    model, _ = convert.from_gguf(path)
    return text.Tokenizer.from_metadata({entry.key: entry.value for entry in model.metadata_props})


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """FLOAT[n, vocab] in place of ``logits``."""
    logits -= logits.max(-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True, dtype=np.float64)).astype(np.float32)
    return logits


def divergence(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """KL(p ‖ q) of each row, both given as log-probabilities: Σ p (log p − log q), in nats."""
    return (np.exp(p) * (p - q)).sum(-1, dtype=np.float64)
