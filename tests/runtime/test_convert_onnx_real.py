"""What PyTorch's exporters make of tiny transformers models (tests/data/make_exports.py), converted and run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tenonnx import convert
from tenonnx.check import check
from tests.exports import VOCABULARY, in_onnxruntime, in_tenonnx, original

DATA = Path(__file__).parents[1] / "data"
PROVED = ("llama_sdpa_23", "llama_eager_23", "llama_sdpa_18", "gpt2_sdpa_18")
BATCH, CAPACITY, LENGTHS = 2, 14, (5, 1, 1, 3)


def agree(name: str, model: Any, runner: Any, whole_mask: bool) -> None:
    export = onnx.load(DATA / f"{name}.onnx")
    before, after = original(export, BATCH), runner(model, BATCH, CAPACITY)
    taken = {value.name for value in model.graph.input}
    random, past = np.random.default_rng(6), 0
    mask = np.ones((BATCH, CAPACITY), np.int64)
    mask[1, 2] = 0
    for count in LENGTHS:
        feeds = {
            "input_ids": random.integers(0, VOCABULARY, (BATCH, count)),
            "position_ids": np.arange(past, past + count)[None].repeat(BATCH, 0),
            "attention_mask": mask[:, : past + count],
        }
        expected = before({key: value for key, value in feeds.items() if key in {v.name for v in export.graph.input}})
        given = {**feeds, "attention_mask": mask if whole_mask else mask[:, : past + count]}
        found = after({key: value for key, value in given.items() if key in taken})
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
        past += count


@pytest.mark.parametrize("name", PROVED)
def test_every_attention_reads_its_cache_in_place(name: str) -> None:
    model, _, findings = convert.from_onnx(DATA / f"{name}.onnx")
    assert [cache.how for cache in findings.caches] == ["CacheUpdate"] * 4
    assert any("is the causal mask and the padding in 'attention_mask'" in note for note in findings.notes)
    ops = [node.op_type for node in model.graph.node]
    assert (ops.count("CacheUpdate"), ops.count("Attention")) == (4, 2)
    assert not {"Softmax", "Range", "GatherND"} & set(ops)
    assert check(model) == []
    agree(name, model, in_tenonnx, whole_mask=True)
    agree(name, model, in_onnxruntime, whole_mask=True)


def test_a_mask_beyond_proof_stays_and_the_attentions_read_in_place() -> None:
    # TorchScript reads the padding from the flattened mask, at row * length + position.
    model, _, findings = convert.from_onnx(DATA / "llama_torchscript_17.onnx")
    assert len(findings.caches) == 4
    assert all(cache.how for cache in findings.caches)
    assert any("not proved to be causal" in note for note in findings.notes)
    assert [node.op_type for node in model.graph.node].count("Attention") == 2
    agree("llama_torchscript_17", model, in_onnxruntime, whole_mask=False)
