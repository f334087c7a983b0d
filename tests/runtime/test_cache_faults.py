"""Faults that users of other runtimes report of their caches, each shown not to be one here: by bytes and content, never time."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import pytest

from tenonnx import Session, check, convert, load, plan, save, writable
from tenonnx.cache import Uniform
from tenonnx.schema.messages import from_onnx, to_onnx
from tests.gguf_files import write_llama
from tests.models import BOOL, FLOAT, FLOAT16, INT64, Graph, cache_model
from tests.oracle.attention import attention
from tests.oracle.functional import updated
from tests.runtime.paged_models import attending, rows
from tests.runtime.test_functions import append_model


def normal(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_a_second_reader_of_the_old_name_under_parallel_execution() -> None:
    """The reader of the old content is long and parallel; the update must wait for all of it, every time."""
    model = cache_model(dims=(1, 4, 4096, 64), rows=4096)
    reader = model.graph.node.pop(0)
    model.graph.node.append(reader)  # behind the update in the file
    session = Session(model, threads=4)
    cache = normal(1, 4, 4096, 64)
    for step in range(6):
        before, values = cache.copy(), normal(1, 4, 4096, 64, seed=step)
        found = session.run({"cache": writable(cache), "values": values, "position": 0})
        np.testing.assert_array_equal(found["old"], before + before)
        np.testing.assert_array_equal(cache, values)


def test_weights_in_a_read_only_map_and_their_file_are_never_modified(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "llama.gguf", format="F16")
    before = hashlib.sha256(source.read_bytes()).digest()
    model, root = convert.from_gguf(source)
    session = Session(model, data_root=root, threads=2)
    cache = session.new_cache(context=16)
    for step in range(4):
        ids = np.array([[step]])
        session.run({"input_ids": ids, "position_ids": ids, "logit_rows": np.array([0])}, cache=cache)
    assert not any(array.flags.writeable for array in session._weights._arrays.values())
    assert hashlib.sha256(source.read_bytes()).digest() == before


PROTECTED = """
import ctypes, mmap, sys
import numpy as np
from tenonnx import Session, writable
from tests.models import FLOAT, INT64, Graph

PAGE, PAGES, AT = mmap.PAGESIZE, 64, 37
width = PAGE // 4
g = Graph()
g.input("cache", FLOAT, [PAGES, width], mutable=True)
g.input("values", FLOAT, [1, width])
g.input("position", INT64, [])
g.update("cache", "values", "position", "updated", axis=0)
g.output("updated", FLOAT, [PAGES, width], alias_of="cache")
session = Session(g.model, threads=2)
storage = mmap.mmap(-1, PAGE * PAGES)
cache = np.frombuffer(storage, np.float32).reshape(PAGES, width)
session.run({"cache": writable(cache), "values": np.zeros((1, width), np.float32), "position": 0})
libc = ctypes.CDLL(None, use_errno=True)
def protect(first, count, rights):
    if libc.mprotect(ctypes.c_void_p(cache.ctypes.data + first * PAGE), ctypes.c_size_t(count * PAGE), rights):
        raise OSError(ctypes.get_errno())
protect(0, AT, 0)  # neither read nor written
protect(AT + 1, PAGES - AT - 1, 0)
session.run({"cache": writable(cache), "values": np.full((1, width), 3, np.float32), "position": AT})
protect(0, PAGES, 3)
print(int((cache == 3).sum()) == width and int(cache.any(axis=1).sum()) == 1)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="protects pages of memory")
def test_an_update_touches_no_byte_of_the_cache_outside_its_rows() -> None:
    """Neither a copy of the cache onto itself nor a small write that rewrites the whole buffer: all else is out of reach."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run([sys.executable, "-c", PROTECTED], env=environment, capture_output=True, text=True, check=False)
    assert found.stdout.strip() == "True", found.stderr


def test_layers_with_heads_of_256_and_of_512() -> None:
    g = Graph()
    g.input("position", INT64, [])
    g.input("lengths", INT64, [1])
    for head in (256, 512):
        dims: list[int | str] = [1, 2, "capacity", head]
        g.input(f"q{head}", FLOAT, [1, 4, "n", head])
        for name in ("k", "v"):
            g.input(f"{name}{head}", FLOAT16, dims, mutable=True)
            g.input(f"{name}{head}.rows", FLOAT16, [1, 2, "n", head])
            g.update(f"{name}{head}", f"{name}{head}.rows", "position", f"{name}{head}.updated")
            g.output(f"{name}{head}.updated", FLOAT16, dims, alias_of=f"{name}{head}")
            g.node("Cast", [f"{name}{head}.updated"], f"{name}{head}.float", to=FLOAT)
        operands = [f"q{head}", f"k{head}.float", f"v{head}.float", "", "", "", "lengths"]
        g.node("Attention", operands, f"y{head}", is_causal=1)
        g.output(f"y{head}", FLOAT, None)
    session = Session(g.model, threads=2)
    cache = session.new_cache(context=40)
    assert {array.shape[-1] for array in cache.arrays.values()} == {256, 512}
    for n in (30, 1):
        given: dict[str, Any] = {"lengths": np.array([cache.length + n])}
        for head in (256, 512):
            given[f"q{head}"] = normal(1, 4, n, head, seed=head + n)
            given |= {f"{name}{head}.rows": normal(1, 2, n, head, seed=head).astype(np.float16) for name in "kv"}
        found = session.run(given, cache=cache)
        for head in (256, 512):
            expected = attention(
                given[f"q{head}"], cache[f"k{head}"], cache[f"v{head}"], None, given["lengths"], True, scale=head**-0.5
            )
            np.testing.assert_allclose(found[f"y{head}"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("known", [True, False])
def test_a_loop_that_reads_the_cache_between_two_updates_holds_no_second_one(known: bool) -> None:
    def model(capacity: int) -> Any:
        g, b = Graph(), Graph()
        dims = [capacity, 4]
        g.input("cache", FLOAT, dims, mutable=True)
        g.input("row", FLOAT, [1, 4])
        g.constant("always", np.array(True))
        if known:
            g.constant("trips", np.array(3, np.int64))
        else:
            g.input("trips", INT64, [])
        for name, kind, shape in (("i", INT64, []), ("go", BOOL, []), ("c", FLOAT, dims), ("sum", FLOAT, [1, 4])):
            b.input(name, kind, shape)
        b.constant("two", np.array(2, np.int64))
        b.constant("one", np.array(1, np.int64))
        b.constant("first", np.array([0], np.int64))
        b.node("Mul", ["i", "two"], "even")
        b.node("Add", ["even", "one"], "odd")
        b.update("c", "row", "even", "once")
        b.node("Gather", ["once", "first"], "read")
        b.node("Add", ["read", "sum"], "more")
        b.update("once", "more", "odd", "twice")
        b.node("Identity", ["go"], "on")
        for name, kind in (("on", BOOL), ("twice", FLOAT), ("more", FLOAT)):
            b.output(name, kind, None)
        g.holding("Loop", ["trips", "always", "cache", "row"], "updated", "total", body=b)
        g.output("updated", FLOAT, dims, alias_of="cache")
        g.output("total", FLOAT, [1, 4])
        return g.model

    small, large = plan(model(8)), plan(model(1 << 20))
    assert large.peak_bytes == small.peak_bytes < 8192 and large.extra_cache_bytes == 0
    cache, expected = np.zeros((8, 4), np.float32), np.zeros((8, 4), np.float32)
    row = total = normal(1, 4)
    for trip in range(3):
        expected = updated(expected, row, np.array(2 * trip))
        total = expected[:1] + total
        expected = updated(expected, total, np.array(2 * trip + 1))
    given = {"row": row} if known else {"row": row, "trips": np.array(3)}
    found = Session(model(8)).run({"cache": writable(cache), **given})
    np.testing.assert_array_equal(cache, expected)
    np.testing.assert_array_equal(found["total"], total)


def test_an_alias_is_not_lost_by_saving_inlining_or_optimizing(tmp_path: Path) -> None:
    save(append_model(), tmp_path / "model.onnx")
    stock = onnx.load(tmp_path / "model.onnx")
    onnx.save(stock, tmp_path / "again.onnx")
    assert load(tmp_path / "again.onnx") == load(tmp_path / "model.onnx") and check(load(tmp_path / "again.onnx")) == []
    inlined = from_onnx(onnx.inliner.inline_local_functions(to_onnx(append_model())))
    assert not inlined.functions
    kept = [node.output_alias for node in inlined.graph.node if node.op_type == "CacheUpdate"]
    assert len(kept) == 2
    lost = [finding.rule for finding in check(inlined) if finding.severity == "error"]
    assert all(kept) or "cache-update-alias" in lost, "an alias that a tool has dropped is an error, never a copy"


def test_a_view_and_a_transpose_feed_the_update() -> None:
    g = Graph()
    g.input("cache", FLOAT, [1, 3, 8, 4], mutable=True)
    g.input("x", FLOAT, [2, 12])  # rows, then heads and their elements
    g.input("position", INT64, [])
    g.constant("split", np.array([1, 2, 3, 4], np.int64))
    g.node("Reshape", ["x", "split"], "apart")
    g.node("Transpose", ["apart"], "rows", perm=[0, 2, 1, 3])
    g.update("cache", "rows", "position", "updated")
    g.output("updated", FLOAT, [1, 3, 8, 4], alias_of="cache")
    session, cache = Session(g.model), normal(1, 3, 8, 4)
    for position in (0, 5, 6):
        before, x = cache.copy(), normal(2, 12, seed=position)
        found = session.run({"cache": writable(cache), "x": x, "position": position})
        assert found["updated"] is cache
        rows = x.reshape(1, 2, 3, 4).transpose(0, 2, 1, 3)
        np.testing.assert_array_equal(cache, updated(before, rows, np.array(position)))


@pytest.mark.parametrize("window", [1, 5, 16])
def test_lengths_around_a_sliding_window(window: int) -> None:
    """window - 1, window and window + 1 keys, each reached by a step and by a prompt."""
    session = Session(attending(2, 1, 4, 32, left_window=window))
    for length in (window - 1, window, window + 1, window + 2):
        for n in {1, length}:
            if not 0 < n <= length:
                continue
            cache, rng = session.new_cache(64, Uniform("F32")), np.random.default_rng(length)
            for count in [1] * (length - n) + [n]:
                q, k, v = rng.normal(size=(1, 2, count, 32)).astype(np.float32), rows(rng, 1, count, 32), rows(rng, 1, count, 32)
                y = session.run({"q": q, "k_rows": k, "v_rows": v}, cache=cache)["y"]
            keys, values = (
                np.concatenate([cache.pool.tables[name][page].decode() for page in cache.pages], axis=1)[None, :, :length]
                for name in "kv"
            )
            expected = attention(q, keys, values, None, np.array([length]), True, window, 32**-0.5)
            np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("format", ["INT8_PAGE", "INT4_PAGE", "INT2_PAGE", "FP8_PAGE"])
@pytest.mark.parametrize("kept", [0, 3, 16])
def test_a_quantized_cache_is_used_again_by_a_second_prompt(format: str, kept: int) -> None:
    """What the first prompt left behind the point of return changes nothing."""
    session = Session(attending(2, 1, 16, 32))

    def feed(cache: Any, n: int, seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        q, k, v = rng.normal(size=(1, 2, n, 32)).astype(np.float32), rows(rng, 1, n, 32), rows(rng, 1, n, 32)
        found: np.ndarray = session.run({"q": q, "k_rows": k, "v_rows": v}, cache=cache)["y"]
        return found

    used, fresh = (session.new_cache(64, Uniform(format)) for _ in range(2))
    for cache in (used, fresh):
        if kept:
            feed(cache, kept, seed=1)
    feed(used, 40, seed=2)
    used.truncate(kept)
    np.testing.assert_array_equal(feed(used, 21, seed=3), feed(fresh, 21, seed=3))
    np.testing.assert_array_equal(feed(used, 1, seed=4), feed(fresh, 1, seed=4))
    assert used.length == kept + 22 and used.nbytes == fresh.nbytes
