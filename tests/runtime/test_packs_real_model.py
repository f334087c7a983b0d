"""Packs of the real model: the same bits with and without, the source unread, the weights resident once."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tenonnx import Session, convert, ledger
from tenonnx.compiled import store


@pytest.fixture(scope="module")
def model(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model with packs; its weights are a link-free copy of the GGUF beside it."""
    folder = tmp_path_factory.mktemp("smollm2")
    os.environ["TENONNX_CACHE"] = str(folder / "user-cache")
    gguf = folder / "weights.gguf"
    gguf.write_bytes(smollm2_gguf.read_bytes())
    convert.convert(gguf, folder / "m.onnx")
    store.build(folder / "m.onnx", threads=2)
    yield folder / "m.onnx"
    del os.environ["TENONNX_CACHE"]


def logits(session: Session) -> bytes:
    cache = session.new_cache(context=40)
    ids = np.arange(100, 133)[None]
    feed = {"input_ids": ids, "position_ids": np.arange(33)[None], "logit_rows": np.array([0, 32])}
    made = session.run(feed, cache=cache)["logits"].tobytes()
    step = {"input_ids": np.array([[7]]), "position_ids": np.array([[33]]), "logit_rows": np.array([0])}
    return made + session.run(step, cache=cache)["logits"].tobytes()


def test_results_are_the_same_bits_and_weights_take_no_memory(model: Path) -> None:
    before = ledger()["weight"]["allocations"]
    session = Session(model)
    assert {verdict.kind for verdict in session.packs} == {"hit"}
    assert ledger()["weight"]["allocations"] == before
    assert session.weight_bytes < 97e6
    assert logits(session) == logits(Session(model, packs="off"))


def resident(path: Path) -> int:
    """Bytes of a file that this process has in memory."""
    found, inside = 0, False
    with open("/proc/self/smaps") as stream:
        for line in stream:
            if "-" in line.split()[0]:
                inside = line.rstrip().endswith(str(path))
            elif inside and line.startswith("Rss:"):
                found += int(line.split()[1]) * 1024
    return found


def test_the_source_stays_out_of_memory(model: Path) -> None:
    source = model.parent / "weights.gguf"
    Session(model)
    session = Session(model)
    logits(session)
    assert resident(source) < 2e6
