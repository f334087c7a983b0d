"""One writer at a time for any storage, in threads, on every way out of a run, and across fork()."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

import tenonnx
from tenonnx import (
    ConcurrentUseError,
    Session,
)
from tenonnx.cache import extent, owned
from tests.contract import bound, check_good_run, filled, inputs, two_cache_model
from tests.models import cache_model


@pytest.fixture(scope="module")
def session() -> Session:
    return Session(two_cache_model(), threads=2)


def test_storage_that_a_running_call_writes_or_reads(session: Session) -> None:
    given = inputs()
    part = given["a"][0, 1]
    with owned([extent("other", part)], []), pytest.raises(ConcurrentUseError, match=r"'a': another call.*wait for it, or give"):
        session.run(bound(given))
    with owned([extent("other", given["values"])], []), pytest.raises(ConcurrentUseError, match="'values'"):
        session.run(bound(given))
    with owned([], [extent("other", part)]), pytest.raises(ConcurrentUseError, match=r"'a'.*reads this storage"):
        session.run(bound(given))
    with owned([], [extent("other", given["values"])]):
        session.run(bound(given))
    check_good_run(session)


def test_one_cache_in_many_threads_has_one_writer_at_a_time() -> None:
    session = Session(cache_model(dims=(1, 1, 4096, 64), rows=1), threads=1)
    cache = session.new_cache(4096)
    start = threading.Barrier(4)
    outcomes: list[str] = []

    def work() -> None:
        start.wait()
        for _ in range(20):
            try:
                session.run({"values": np.ones((1, 1, 1, 64), np.float32)}, cache=cache)
                outcomes.append("done")
            except ConcurrentUseError:
                outcomes.append("refused")

    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert outcomes.count("done") + outcomes.count("refused") == 80
    assert cache.length == outcomes.count("done") > 0
    np.testing.assert_array_equal(cache["cache"][0, 0, :, 0], np.arange(4096) < cache.length)


def test_caches_of_their_own_run_in_parallel(session: Session) -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            cache, expected = session.new_cache(64), np.zeros((1, 2, 64, 4), np.float32)
            for step in range(40):
                values = filled(1, 2, 1, 4, seed=100 * seed + step)
                session.run({"values": values, "ids": np.array([step % 5])}, cache=cache)
                expected[:, :, step] = values[:, :, 0]
            np.testing.assert_array_equal(cache["a"], expected)
            np.testing.assert_array_equal(cache["b"], expected)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failures


@pytest.mark.parametrize("failure", [KeyboardInterrupt, MemoryError, RuntimeError])
def test_every_way_out_releases_the_binding(
    session: Session, monkeypatch: pytest.MonkeyPatch, failure: type[BaseException]
) -> None:
    cache = session.new_cache(8)

    def stopped(self: Any, slots: list[int]) -> None:
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(tenonnx.runtime.executable.Executable, "run", stopped)
        with pytest.raises(failure):
            session.run({"values": filled(1, 2, 3, 4), "ids": np.array([1])}, cache=cache)
    assert cache.length == 0
    session.run({"values": filled(1, 2, 3, 4), "ids": np.array([1])}, cache=cache)
    assert cache.length == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_runs_with_threads_of_its_own() -> None:
    session = Session(cache_model(dims=(1, 8, 512, 64), rows=512), threads=2)
    values = filled(1, 8, 512, 64)
    held = filled(4)
    session.run({"values": values}, cache=session.new_cache(512))
    with owned([extent("parent", held)], []):
        child = os.fork()
        if child == 0:
            try:
                cache = session.new_cache(512)
                session.run({"values": values}, cache=cache)
                with owned([extent("child", held)], []):  # the parent's calls do not run here
                    os._exit(0 if np.array_equal(cache["cache"], values) else 1)
            finally:
                os._exit(2)
        for _ in range(200):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                break
            time.sleep(0.05)
        else:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail("the child hangs")
    assert os.waitstatus_to_exitcode(status) == 0
