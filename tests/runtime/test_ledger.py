"""What is allocated, counted by the native allocator: caches never, the arena once, outputs as they are returned."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tenonnx import Session, convert, ledger, writable
from tests.gguf_files import write_llama
from tests.models import FLOAT, INT64, Graph, cache_model


def decoder(capacity: int | str = "capacity") -> Any:
    """A cache FLOAT[1, capacity, 64] with work before and after its update, some of it in onnxruntime."""
    g = Graph()
    g.input("cache", FLOAT, [1, capacity, 64], mutable=True)
    g.input("x", FLOAT, [1, "n", 64])
    g.input("position", INT64, [])
    g.node("Softmax", ["x"], "a")
    g.node("Sign", ["a"], "b")
    g.node("Softmax", ["b"], "rows")
    g.update("cache", "rows", "position", "updated")
    g.node("Add", ["rows", "x"], "y")
    g.output("updated", FLOAT, [1, capacity, 64], alias_of="cache")
    g.output("y", FLOAT, [1, "n", 64])
    return g.model


class Counted:
    """Allocations and bytes of each purpose since the begin of the block."""

    def __enter__(self) -> Counted:
        self.before = ledger()
        return self

    def __exit__(self, *_: object) -> None:
        after = ledger()
        for purpose, account in after.items():
            for key in ("allocations", "total", "bytes"):
                setattr(self, f"{purpose}_{key}", account[key] - self.before[purpose][key])


def test_a_run_allocates_no_cache_byte_and_the_arena_to_the_byte() -> None:
    session = Session(decoder(), threads=2)
    cache = session.new_cache(1000)
    with Counted() as counted:
        session.run({"x": np.ones((1, 3, 64), np.float32)}, cache=cache)
    plan = next(iter(session._executables.values())).plan
    assert counted.cache_total == 0 and counted.page_total == 0
    assert counted.arena_total == plan.peak_bytes > 0 and counted.arena_allocations == 1
    assert counted.output_total == plan.output_bytes == 3 * 64 * 4
    assert plan.cache_bytes == 1000 * 64 * 4 == cache.nbytes


def test_the_thousandth_step_allocates_its_outputs_and_nothing_with_out() -> None:
    session = Session(decoder(), threads=1)
    cache = session.new_cache(1010)
    x, out = np.ones((1, 1, 64), np.float32), np.empty((1, 1, 64), np.float32)
    session.run({"x": x}, cache=cache)
    for _ in range(998):
        session.run({"x": x}, out={"y": out}, cache=cache)
    with Counted() as counted:
        kept = session.run({"x": x}, cache=cache)
    assert (counted.output_allocations, counted.output_total) == (1, 256)
    assert counted.arena_allocations == counted.cache_allocations == counted.weight_allocations == 0
    with Counted() as counted:
        session.run({"x": x}, out={"y": out}, cache=cache)
    assert all(getattr(counted, f"{purpose}_allocations") == 0 for purpose in ledger())
    assert cache.length == 1001 and kept["y"].shape == (1, 1, 64)


def test_a_prompt_into_a_preallocated_cache() -> None:
    session = Session(decoder(), threads=2)
    cache = session.new_cache(100_000)
    with Counted() as counted:
        session.run({"x": np.ones((1, 64, 64), np.float32)}, cache=cache)
    total = sum(getattr(counted, f"{purpose}_total") for purpose in ledger())
    assert total < 10 * 64 * 64 * 4 < cache.nbytes // 100


def test_arenas_do_not_grow_with_the_capacity() -> None:
    arenas = []
    for capacity in (64, 1 << 16):
        session = Session(decoder(), threads=1)
        cache = session.new_cache(capacity)
        with Counted() as counted:
            session.run({"x": np.ones((1, 2, 64), np.float32)}, cache=cache)
        arenas.append(counted.arena_total)
    assert arenas[0] == arenas[1]


def test_writable_arrays_are_the_caller_s_own() -> None:
    session = Session(cache_model(rows=1))
    cache = np.zeros((1, 2, 8, 4), np.float32)
    with Counted() as counted:
        session.run({"cache": writable(cache), "values": np.ones((1, 2, 1, 4), np.float32), "position": 0})
    assert counted.cache_total == 0 and counted.output_total == 2 * cache.nbytes  # "old" and "new", which are no caches


def test_many_shapes_share_one_arena() -> None:
    session = Session(decoder(), threads=1)
    gc.collect()
    held = ledger()["arena"]["bytes"]
    sizes = []
    for n in range(1, 160):
        session.run({"x": np.ones((1, n, 64), np.float32)}, cache=session.new_cache(200))
        sizes.append(ledger()["arena"]["bytes"] - held)
    largest = next(reversed(session._executables.values())).plan.peak_bytes
    assert sizes[-1] == largest and len(session._executables) == 64
    del session
    gc.collect()
    assert ledger()["arena"]["bytes"] <= held


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    path = tmp_path_factory.mktemp("ledger") / "m.gguf"
    return convert.from_gguf(write_llama(path, format="Q4_1", formats={"token_embd.weight": "Q8_0"}, vocab=512))


def test_weights_are_resident_once_and_gone_with_their_session(llama: tuple[Any, Path]) -> None:
    model, root = llama
    gc.collect()
    before = ledger()
    sessions = Session(model, data_root=root)
    held = ledger()["weight"]["bytes"] - before["weight"]["bytes"]
    assert 0 < held <= sessions.weight_bytes
    tied = 512 // 8 * (64 // 32) * 272
    cache = sessions.new_cache(32)
    for n in (5, 1, 1):
        ids = np.arange(n)[None]
        sessions.run({"input_ids": ids, "position_ids": ids, "logit_rows": np.array([n - 1])}, cache=cache)
    assert ledger()["weight"]["bytes"] - before["weight"]["bytes"] == held
    assert held < 2 * tied + 2 * 160 * 64 * 64  # the tied matrix is packed once
    del sessions, cache
    gc.collect()
    after = ledger()
    for purpose in ("weight", "arena", "cache"):
        assert after[purpose]["bytes"] == before[purpose]["bytes"], purpose


def test_a_step_of_a_llama_allocates_its_logits(llama: tuple[Any, Path]) -> None:
    model, root = llama
    session = Session(model, data_root=root, threads=2)
    cache = session.new_cache(64)
    out = {"logits": np.empty((1, 1, 512), np.float32)}
    for step in range(40):
        given = {"input_ids": np.array([[step]]), "position_ids": np.array([[step]]), "logit_rows": np.array([0])}
        if step == 39:
            before = ledger()
        session.run(given, out=out, cache=cache)
    assert ledger() == before and cache.length == 40
