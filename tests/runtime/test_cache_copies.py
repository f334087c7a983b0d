"""Dense caches copied, saved and loaded: what goes with them, what is refused, and that nothing else is touched."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenonnx import CapacityError, ConcurrentUseError, PayloadError, Session, ledger
from tenonnx.cache import Cache, CacheSpec, owned
from tests.contract import digest, filled, two_cache_model
from tests.models import FLOAT, FLOAT16, cache_model


@pytest.fixture(scope="module")
def session() -> Session:
    return Session(two_cache_model(), threads=2)


def rows(n: int, seed: int = 0) -> dict[str, Any]:
    return {"values": filled(1, 2, n, 4, seed=seed), "ids": np.array([1])}


def grown(session: Session, n: int, capacity: int = 8) -> Cache:
    cache = session.new_cache(capacity)
    session.run(rows(n), cache=cache)
    return cache


def test_a_fork_and_its_origin_go_their_own_ways(session: Session) -> None:
    cache = grown(session, 3)
    fork = cache.fork()
    assert (fork.length, fork.capacity, fork.specs) == (3, 8, cache.specs)
    before = digest(cache.arrays)
    session.run(rows(2, seed=1), cache=fork)
    fork.truncate(1)
    session.run(rows(2, seed=2), cache=fork)
    assert (cache.length, fork.length) == (3, 3) and digest(cache.arrays) == before
    again = cache.fork()
    for made in (cache, again):
        session.run(rows(4, seed=3), cache=made)
    for name in cache.arrays:
        np.testing.assert_array_equal(cache[name][:, :, :7], again[name][:, :, :7])


def test_a_fork_copies_valid_rows_alone(session: Session) -> None:
    cache = grown(session, 3)
    for array in cache.arrays.values():
        array[:, :, 3:] = 7
    fork = cache.fork()
    assert not any(array[:, :, 3:].any() for array in fork.arrays.values())


def test_allocation_past_the_callers_limit_is_refused_before_it_is_made(session: Session) -> None:
    bytes_of_8 = session.cache_bytes(8)
    cache = session.new_cache(8, limit=bytes_of_8)
    before = ledger()["cache"]
    for allocate in (lambda: session.new_cache(9, limit=bytes_of_8), lambda: cache.fork(limit=bytes_of_8 - 1)):
        with pytest.raises(CapacityError, match="over the limit of"):
            allocate()
    assert ledger()["cache"] == before


def test_saved_and_loaded_into_another_capacity(session: Session, tmp_path: Path) -> None:
    cache = grown(session, 5)
    cache.save(tmp_path / "c")
    for capacity in (5, 8, 100):
        other = session.new_cache(capacity)
        other.load(tmp_path / "c")
        assert (other.length, other.capacity) == (5, capacity)
        for name in cache.arrays:
            np.testing.assert_array_equal(other[name][:, :, :5], cache[name][:, :, :5])
    small = grown(session, 2, 4)
    before = digest(small.arrays)
    with pytest.raises(PayloadError, match="holds 5 positions, the cache takes 4"):
        small.load(tmp_path / "c")
    assert small.length == 2 and digest(small.arrays) == before


DIMS = st.lists(st.integers(0, 4), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), dims=DIMS, kind=st.sampled_from([FLOAT, FLOAT16]))
def test_every_layout_comes_back(data: st.DataObject, dims: list[int], kind: int, tmp_path_factory: Any) -> None:
    axis = data.draw(st.integers(0, len(dims) - 1))
    specs = {"x": CacheSpec(kind, tuple(dims), axis), "y": CacheSpec(FLOAT, (3, 5), 1)}
    cache = Cache(specs)
    length = data.draw(st.integers(0, cache.capacity))
    for array in cache.arrays.values():
        array[...] = np.random.default_rng(1).standard_normal(array.shape)
    cache.advance(length)
    path = tmp_path_factory.mktemp("c") / "c"
    cache.save(path)
    other = Cache(specs)
    other.load(path)
    for made in (other, cache.fork()):
        assert made.length == length
        for name, spec in specs.items():
            valid = (slice(None),) * spec.axis + (slice(length),)
            np.testing.assert_array_equal(made[name][valid], cache[name][valid])


def damaged(good: bytes) -> dict[str, bytes]:
    flipped = bytearray(good)
    flipped[-1] ^= 1
    header = bytearray(good)
    header[60] ^= 1
    return {
        "digest differs": bytes(flipped),
        "header is damaged": bytes(header),
        "cut short": good[:-1],
        "after its last part": good + b"x",
        "no saved dense cache": b"",
        "does not fit the file": good[:13] + b"\xff" * 8 + good[21:],
        "truncated or damaged": good[:40],
    }


def test_damaged_files_leave_the_cache_as_it_was(session: Session, tmp_path: Path) -> None:
    grown(session, 5).save(tmp_path / "c")
    cache = grown(session, 3)
    before = digest(cache.arrays)
    for message, content in damaged((tmp_path / "c").read_bytes()).items():
        (tmp_path / "bad").write_bytes(content)
        with pytest.raises(PayloadError, match=message):
            cache.load(tmp_path / "bad")
        assert cache.length == 3 and digest(cache.arrays) == before
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(PayloadError, match="cannot be read"):
            cache.load(path)


def test_a_cache_of_another_model_is_refused(session: Session, tmp_path: Path) -> None:
    Session(cache_model(("batch", 2, "capacity", 4))).new_cache(8).save(tmp_path / "c")
    cache = grown(session, 3)
    with pytest.raises(PayloadError, match=r"another model: tensor 'a'"):
        cache.load(tmp_path / "c")
    Cache({"a": CacheSpec(FLOAT, (1, 2, 8, 4), 2), "b": CacheSpec(FLOAT16, (1, 2, 8, 4), 2)}).save(tmp_path / "c")
    with pytest.raises(PayloadError, match=r"another model: tensor 'b'"):
        cache.load(tmp_path / "c")
    assert cache.length == 3


def test_a_save_that_fails_leaves_the_file_that_was_there(session: Session, tmp_path: Path) -> None:
    cache = grown(session, 3)
    cache.save(tmp_path / "c")
    before = (tmp_path / "c").read_bytes()
    with pytest.raises(PayloadError):
        cache.save(tmp_path / "none" / "c")
    with pytest.raises(PayloadError, match="is a folder"):
        cache.save(tmp_path)
    assert (tmp_path / "c").read_bytes() == before and os.listdir(tmp_path) == ["c"]


def test_content_is_neither_read_nor_changed_under_a_running_call(session: Session, tmp_path: Path) -> None:
    cache = grown(session, 3)
    cache.save(tmp_path / "c")
    there, elsewhere = tmp_path / "c", tmp_path / "d"
    changes = [lambda: cache.truncate(1), cache.reset, cache.fork, lambda: cache.save(elsewhere), lambda: cache.load(there)]
    with owned([cache.extent], []):
        for change in changes:
            with pytest.raises(ConcurrentUseError):
                change()
    assert cache.length == 3 and not elsewhere.exists()


def test_a_call_that_began_before_another_ended_writes_nothing(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would write its rows at the length that it read, over those of the other."""
    import tenonnx.runtime.session as runtime

    cache, real = grown(session, 3), runtime.owned
    reached, go = threading.Event(), threading.Event()
    errors: list[Exception] = []

    def late(*args: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            reached.set()
            go.wait()
        return real(*args)

    def run() -> None:
        try:
            session.run(rows(2, seed=5), cache=cache)
        except ConcurrentUseError as error:
            errors.append(error)

    monkeypatch.setattr(runtime, "owned", late)
    thread = threading.Thread(target=run)
    thread.start()
    reached.wait()
    session.run(rows(1, seed=6), cache=cache)
    before = digest(cache.arrays)
    go.set()
    thread.join()
    assert len(errors) == 1 and cache.length == 4 and digest(cache.arrays) == before
