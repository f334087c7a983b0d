"""Every architecture that GGUF files are converted from gives the logits that transformers gives, over every kind of cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from tenonnx import Session, convert, plan, text
from tenonnx.cache import Uniform
from tenonnx.convert import gguf
from tenonnx.convert.architectures import ARCHITECTURES, decoder_of
from tenonnx.convert.portable import portable
from tenonnx.errors import PayloadError
from tests.families import FAMILIES, GOLDEN, IDS, ROWS, write
from tests.runtime.test_convert_graph import Runner

CHUNKS = ((0, 23), (23, 24), (24, 25), (25, 40))  # a prompt, single steps and more at once, past every window
# Older versions of onnxruntime have no Attention with a window.
IN_ONNXRUNTIME = [
    family
    for family in FAMILIES
    if tuple(map(int, onnxruntime.__version__.split(".")[:2])) >= (1, 32) or not ARCHITECTURES[family.split()[0]].window
]


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as kept:
        return dict(kept)


def assert_logits(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found[ROWS], expected, rtol=0, atol=3e-4 * np.abs(expected).max())


def session_logits(session: Session, cache: Any) -> np.ndarray:
    """FLOAT[n, vocab] after each of ``IDS``, fed in ``CHUNKS``."""
    parts = []
    for begin, end in CHUNKS:
        given = {"input_ids": IDS[None, begin:end], "position_ids": np.arange(begin, end)[None]}
        parts.append(session.run(given | {"logit_rows": np.arange(end - begin)}, cache=cache)["logits"][0])
    return np.concatenate(parts)


def test_every_architecture_has_logits_of_transformers(golden: dict[str, np.ndarray]) -> None:
    assert {family.split()[0] for family in golden} == set(ARCHITECTURES)
    assert list(golden) == list(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("paged", [0, 1, 5, 64])
def test_logits_are_those_of_transformers(tmp_path: Path, golden: dict[str, np.ndarray], family: str, paged: int) -> None:
    model, folder = convert.from_gguf(write(tmp_path / "m.gguf", family), paged)
    session = Session(model, threads=2, data_root=folder)
    policy = Uniform("F16") if paged else None
    assert_logits(session_logits(session, session.new_cache(context=len(IDS), policy=policy)), golden[family])


@pytest.mark.parametrize(
    ("engine", "family"),
    [("reference", family) for family in FAMILIES] + [("onnxruntime", family) for family in IN_ONNXRUNTIME],
)
def test_the_graph_says_so_in_standard_operators(tmp_path: Path, golden: dict[str, np.ndarray], family: str, engine: str) -> None:
    path = write(tmp_path / "m.gguf", family)
    run = Runner(convert.from_gguf(path)[0], [path], engine, max_length=len(IDS))
    assert_logits(np.concatenate([run(IDS[None, begin:end], begin) for begin, end in CHUNKS], 1)[0], golden[family])


@pytest.mark.parametrize("family", IN_ONNXRUNTIME)
def test_stock_onnxruntime_runs_a_portable_model(tmp_path: Path, golden: dict[str, np.ndarray], family: str) -> None:
    model, folder = convert.from_gguf(write(tmp_path / "m.gguf", family))
    stock = onnxruntime.InferenceSession(portable(model, folder).SerializeToString())
    feed = {"input_ids": IDS[None], "position_ids": np.arange(len(IDS))[None], "position": np.array(0), "logit_rows": ROWS}
    caches = [value for value in stock.get_inputs() if "cache" in value.name]
    feed |= {value.name: np.zeros((1, value.shape[1], len(IDS), value.shape[3]), np.float16) for value in caches}
    (found,) = stock.run(["logits"], feed)
    np.testing.assert_allclose(found[0], golden[family], rtol=0, atol=3e-4 * np.abs(golden[family]).max())


@pytest.mark.parametrize("family", FAMILIES)
def test_no_step_is_left_to_onnxruntime(tmp_path: Path, family: str) -> None:
    path = write(tmp_path / "m.gguf", family)
    for n in (1, 23):
        dense = plan(convert.from_gguf(path)[0], {"batch": 1, "n": n, "k": 1, "max_length": 40})
        pages = plan(convert.from_gguf(path, 8)[0], {"n": n, "k": 1, "p": 4, "pages": 5})
        assert [step.label for found in (dense, pages) for step in found.steps if step.kernel is None] == []


@pytest.mark.parametrize("family", ARCHITECTURES)
@pytest.mark.parametrize("paged", [0, 5])
def test_joined_steps_give_the_same_bits(tmp_path: Path, family: str, paged: int) -> None:
    model, folder = convert.from_gguf(write(tmp_path / "m.gguf", family, format="Q8_0"), paged)
    policy = Uniform("F16") if paged else None
    joined, apart = (
        session_logits(session, session.new_cache(context=len(IDS), policy=policy))
        for session in (Session(model, threads=2, data_root=folder, fusions=fusions) for fusions in ("all", "none"))
    )
    np.testing.assert_array_equal(joined, apart)


@pytest.mark.parametrize("family", FAMILIES)
def test_text_over_dense_and_paged_caches(tmp_path: Path, family: str) -> None:
    vocabulary = "gemma" if family.startswith("gemma") else "bpe"
    path = write(tmp_path / "m.gguf", family, vocabulary=vocabulary, pre="qwen2")
    options: dict[str, Any] = {"max_tokens": 24, "temperature": 0, "threads": 1}
    prompt = "the  hello is in the tea\n\n\n"
    dense = text.generate(path, prompt, **options)
    paged = text.generate(path, prompt, kv=Uniform("F16"), **options)
    assert dense.generated_tokens == 24
    assert dense.token_ids == paged.token_ids and dense.text == paged.text
    small = text.generate(path, prompt, kv=Uniform("INT8_PAGE"), **options)
    assert small.cache_bytes < paged.cache_bytes and small.generated_tokens > 0


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("gemma2", {"score_cap": 50.0, "logit_cap": 30.0, "window": 4096, "window_period": 2, "scale": 24**-0.5}),
        ("gemma2 of 46 layers", {"scale": 16**-0.5}),
        ("gemma3", {"score_cap": 0.0, "logit_cap": 0.0, "window": 0, "scale": 24**-0.5}),
        ("gemma3 of 62 layers", {"scale": 16**-0.5}),
        ("qwen2", {"window": 0, "score_cap": 0.0}),
    ],
)
def test_what_metadata_leaves_out(tmp_path: Path, family: str, expected: dict[str, Any]) -> None:
    decoder = decoder_of(gguf.read(write(tmp_path / "m.gguf", family, metadata={})))
    assert {name: getattr(decoder, name) for name in expected} == pytest.approx(expected)


def test_a_gemma3_without_a_window_sees_all_in_every_layer(tmp_path: Path) -> None:
    model, _ = convert.from_gguf(write(tmp_path / "m.gguf", "gemma3", metadata={"attention.sliding_window": 0}))
    attentions = [node for node in model.graph.node if node.op_type == "Attention"]
    assert len(attentions) == 7
    assert not any(attribute.name == "left_window_size" for node in attentions for attribute in node.attribute)
    assert len([node for node in model.graph.node if node.op_type == "Cos"]) == 1


@pytest.mark.parametrize(
    ("family", "metadata", "message"),
    [
        ("gemma2", {"attention.sliding_window": 2**31}, "window of 2147483648 tokens"),
        ("gemma2", {"attention.sliding_window": "wide"}, "expected an integer"),
        ("gemma2", {"attn_logit_softcapping": -1.0}, "scores and logits at -1.0 and"),
        ("gemma2", {"attn_logit_softcapping": float("nan")}, "scores and logits at nan"),
        ("gemma2", {"final_logit_softcapping": float("inf")}, "and inf"),
        ("gemma3", {"attention.sliding_window_pattern": 0}, "sliding window pattern is 0"),
        ("gemma3", {"attention.sliding_window": 4, "rope.freq_base_swa": 1.0}, "rope base is 1.0"),
        ("qwen3", {"attention.key_length": 16}, r"expected \[64, 64\]"),
    ],
)
def test_metadata_that_makes_no_model(tmp_path: Path, family: str, metadata: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "m.gguf", family, metadata=metadata)
    with pytest.raises(PayloadError, match=message):
        convert.from_gguf(path)


@pytest.mark.parametrize(
    ("family", "missing"),
    [("qwen3", "attn_q_norm"), ("gemma2", "post_attention_norm"), ("gemma3", "post_ffw_norm"), ("gemma3", "attn_k_norm")],
)
def test_a_norm_that_the_architecture_has_is_missed(tmp_path: Path, family: str, missing: str) -> None:
    path = write(tmp_path / "m.gguf", family, without=[f"blk.1.{missing}.weight"])
    with pytest.raises(PayloadError, match=f"no tensor 'blk.1.{missing}.weight'"):
        convert.from_gguf(path)
