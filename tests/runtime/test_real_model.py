"""The real model file end to end: logits against an independent float32 forward pass, text, and the storage contract."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tenonnx import Session, convert, ledger, text
from tests.model import divergence, log_softmax, log_softmax_of

TOKENS = 2000


@pytest.fixture(scope="module")
def session(smollm2_gguf: Path) -> Session:
    model, folder = convert.from_gguf(smollm2_gguf)
    return Session(model, data_root=folder)


def teacher_forced(session: Session, ids: np.ndarray, chunk: int) -> np.ndarray:
    """FLOAT[n, vocab]: logits after every token, fed ``chunk`` at a time through one cache."""
    cache = session.new_cache(context=len(ids))
    parts = []
    for begin in range(0, len(ids), chunk):
        part = ids[begin : begin + chunk]
        inputs = {
            "input_ids": part[None],
            "position_ids": np.arange(begin, begin + len(part))[None],
            "logit_rows": np.arange(len(part)),
        }
        parts.append(session.run(inputs, cache=cache)["logits"][0])
    assert cache.length == len(ids)
    return np.concatenate(parts)


def test_logits_diverge_from_the_float_model_by_no_more_than_llama_cpp(session: Session, smollm2_gguf: Path) -> None:
    ids, expected = log_softmax_of(smollm2_gguf, TOKENS)
    batch = log_softmax(teacher_forced(session, ids, 500))
    assert divergence(expected, batch).mean() <= 6e-3
    assert (expected.argmax(-1) == batch.argmax(-1)).mean() >= 0.95


def test_a_prompt_in_one_batch_and_token_by_token_are_one_model(session: Session, smollm2_gguf: Path) -> None:
    ids, expected = log_softmax_of(smollm2_gguf, TOKENS)
    ids = ids[:400]
    batch = log_softmax(teacher_forced(session, ids, 400))
    steps = log_softmax(teacher_forced(session, ids, 1))
    assert divergence(batch, steps).mean() <= 6e-3
    assert divergence(expected[:400], steps).mean() <= 6e-3


def test_threads_and_repetition_do_not_change_a_bit(session: Session, smollm2_gguf: Path) -> None:
    model, folder = convert.from_gguf(smollm2_gguf)
    alone = Session(model, threads=1, data_root=folder)
    two = Session(model, threads=2, data_root=folder)
    ids = np.arange(1000, 1100)
    for chunk in (100, 33, 1):
        first = teacher_forced(two, ids, chunk)
        assert first.tobytes() == teacher_forced(two, ids, chunk).tobytes()
        assert first.tobytes() == teacher_forced(alone, ids, chunk).tobytes()


def test_weights_are_resident_once_and_a_run_allocates_no_cache(session: Session) -> None:
    cache = session.new_cache(context=64)
    before = ledger()["cache"]
    ids = np.arange(100, 132)[None]
    session.run({"input_ids": ids, "position_ids": np.arange(32)[None], "logit_rows": np.array([31])}, cache=cache)
    assert ledger()["cache"] == before
    assert session.weight_bytes < 97e6


def test_the_capital_of_france(smollm2_gguf: Path) -> None:
    made = text.generate(str(smollm2_gguf), "The capital of France is", max_tokens=24, temperature=0)
    assert "Paris" in made.text
    assert made.extra_cache_bytes == 0
