"""Decoding with small llamas: every way of feeding the tokens through the caches gives the same logits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from tenonnx import CapacityError, Session, convert, writable
from tests.gguf_files import write_llama
from tests.oracle.functional import evaluate

IDS = np.random.default_rng(0).integers(0, 64, 48)


def llama(folder: Path, **options: Any) -> tuple[Any, Path]:
    return convert.from_gguf(write_llama(folder / "m.gguf", **options))


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    return llama(tmp_path_factory.mktemp("q"), format="Q4_1", formats={"token_embd.weight": "Q8_0"})


def feed(session: Session, cache: Any, ids: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """FLOAT[batch, n, vocab]: logits of all tokens, fed in pieces of the given sizes."""
    ids = np.atleast_2d(ids)
    parts, at = [], 0
    for size in sizes:
        rows = np.arange(size)
        given = {
            "input_ids": ids[:, at : at + size],
            "position_ids": np.broadcast_to(rows + cache.length, (len(ids), size)),
            "logit_rows": rows,
        }
        parts.append(session.run(given, cache=cache)["logits"])
        at += size
    return np.concatenate(parts, 1)


def close(found: np.ndarray, expected: np.ndarray, tolerance: float = 2e-3) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max())


def test_the_same_bits_for_any_number_of_threads_and_from_run_to_run(quantized: tuple[Any, Path]) -> None:
    model, root = quantized
    results = []
    for threads in (1, 2, 2, 3):
        session = Session(model, data_root=root, threads=threads)
        results.append([feed(session, session.new_cache(48), IDS, sizes) for sizes in ((48,), (40, *[1] * 8))])
    for other in results[1:]:
        for mine, first in zip(other, results[0], strict=True):
            np.testing.assert_array_equal(mine, first)


def test_one_session_for_a_prompt_a_token_and_a_prompt(quantized: tuple[Any, Path]) -> None:
    model, root = quantized
    session = Session(model, data_root=root, threads=2)
    whole = feed(session, session.new_cache(65), np.concatenate([IDS, IDS[:17]]), (65,))
    ids = np.concatenate([IDS, IDS[:17]])
    pieces = feed(session, session.new_cache(65), ids, (32, 1, 32))
    close(pieces, whole, 2e-2)
    np.testing.assert_array_equal(feed(session, session.new_cache(65), ids, (32, 1, 32)), pieces)


def test_token_by_token_and_in_one_batch(tmp_path: Path) -> None:
    model, root = llama(tmp_path)
    session = Session(model, data_root=root, threads=2)
    close(feed(session, session.new_cache(48), IDS, [1] * 48), feed(session, session.new_cache(48), IDS, (48,)))


def test_the_capacity_changes_no_result(quantized: tuple[Any, Path]) -> None:
    model, root = quantized
    session = Session(model, data_root=root)
    exact = feed(session, session.new_cache(48), IDS, (40, *[1] * 8))
    for capacity in (49, 127, 129, 300):
        np.testing.assert_array_equal(feed(session, session.new_cache(capacity), IDS, (40, *[1] * 8)), exact)


def test_one_token_past_the_capacity(quantized: tuple[Any, Path]) -> None:
    model, root = quantized
    session = Session(model, data_root=root)
    cache = session.new_cache(16)
    feed(session, cache, IDS, (16,))
    kept = {name: array.copy() for name, array in cache.arrays.items()}
    with pytest.raises(CapacityError, match="capacity of 16"):
        feed(session, cache, IDS[16:], (1,))
    assert cache.length == 16 and all(np.array_equal(kept[name], array) for name, array in cache.arrays.items())


def test_rolling_back_the_last_batch(quantized: tuple[Any, Path]) -> None:
    model, root = quantized
    session = Session(model, data_root=root)
    cache = session.new_cache(48)
    feed(session, cache, IDS, (20,))
    first = feed(session, cache, IDS[20:], (8,))
    feed(session, cache, IDS[28:], (8,))
    cache.truncate(20)
    np.testing.assert_array_equal(feed(session, cache, IDS[20:], (8,)), first)


def test_a_cache_that_starts_with_content(quantized: tuple[Any, Path]) -> None:
    """Whatever stands past the valid length is never read, not even as NaN."""
    model, root = quantized
    session = Session(model, data_root=root)
    clean, dirty = session.new_cache(64), session.new_cache(64)
    for array in dirty.arrays.values():
        array[...] = np.nan
    np.testing.assert_array_equal(feed(session, dirty, IDS, (30, 1, 17)), feed(session, clean, IDS, (30, 1, 17)))


def test_a_batch_of_two(quantized: tuple[Any, Path]) -> None:
    model, root = quantized
    session = Session(model, data_root=root, threads=2)
    both = np.stack([IDS, IDS[::-1]])
    found = feed(session, session.new_cache(48, dims={"batch": 2}), both, (40, *[1] * 8))
    for row, ids in zip(found, both, strict=True):
        close(row, feed(session, session.new_cache(48), ids, (40, *[1] * 8))[0])


def test_keys_and_values_of_two_head_sizes(tmp_path: Path) -> None:
    model, root = llama(tmp_path, head=32, value_head=16, hidden=64)
    session = Session(model, data_root=root, threads=2)
    cache = session.new_cache(20)
    assert {array.shape[-1] for array in cache.arrays.values()} == {16, 32}
    close(feed(session, cache, IDS[:20], (9, *[1] * 11)), feed(session, session.new_cache(20), IDS[:20], (20,)))


@pytest.mark.parametrize("n", [1, 7])
def test_as_the_copying_evaluation_of_the_same_graph(tmp_path: Path, n: int) -> None:
    model, root = llama(tmp_path, layers=2)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    decoded = {name: gguf.quants.dequantize(tensor.data, tensor.tensor_type) for name, tensor in tensors.items()}
    inline = type(model).FromString(model.SerializeToString())
    for tensor in inline.graph.initializer:
        if tensor.external_data:
            data = tensors[tensor.name].data.astype(np.float32).tobytes()
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.raw_data = data
    session = Session(model, data_root=root, threads=2)
    rng = np.random.default_rng(1)
    caches = {name: rng.normal(size=array.shape).astype(np.float16) for name, array in session.new_cache(12).arrays.items()}
    given = {
        "input_ids": IDS[None, :n],
        "position_ids": np.arange(4, 4 + n)[None],
        "position": np.array(4),
        "logit_rows": np.arange(n),
    }
    expected = evaluate(inline, given | {name: array.copy() for name, array in caches.items()}, decoded)
    before = {name: array.copy() for name, array in caches.items()}
    found = session.run(given | {name: writable(array) for name, array in caches.items()})
    close(found["logits"], expected["logits"], 1e-3)
    for name, array in caches.items():
        assert found[f"{name}.updated"] is array
        np.testing.assert_allclose(array.astype(np.float32), expected[f"{name}.updated"].astype(np.float32), atol=4e-3)
        for outside in (np.s_[:, :, :4], np.s_[:, :, 4 + n :]):
            np.testing.assert_array_equal(array[outside], before[name][outside])


def test_a_dimension_named_p(tmp_path: Path) -> None:
    model, root = llama(tmp_path)
    renamed = type(model).FromString(model.SerializeToString())
    for value in (*renamed.graph.input, *renamed.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == "max_length":
                dim.dim_param = "p"
    session = Session(renamed, data_root=root)
    plain = Session(model, data_root=root)
    expected = feed(plain, plain.new_cache(17), IDS[:17], (16, 1))
    np.testing.assert_array_equal(feed(session, session.new_cache(17), IDS[:17], (16, 1)), expected)
