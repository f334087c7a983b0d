"""The runtime contract, refusal by refusal: nothing is written, the binding is released, and the message says what to do."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tenonnx
from tenonnx import (
    AliasError,
    BindingError,
    CapacityError,
    ConcurrentUseError,
    ImmutableStorageError,
    Session,
    ShapeError,
    SharedStorageError,
    TenonnxError,
    UnsupportedError,
    writable,
)
from tenonnx.cache import Extent, extent, owned
from tests.models import FLOAT, INT64, Graph, cache_model, spec_example
from tests.oracle.functional import updated

INT64_MAX, INT64_MIN = 2**63 - 1, -(2**63)


def two_cache_model() -> Any:
    """Caches a and b FLOAT[batch, 2, capacity, 4], updated with the same rows; ids are looked up in a small table."""
    g = Graph()
    for name in ("a", "b"):
        g.input(name, FLOAT, ["batch", 2, "capacity", 4], mutable=True)
    g.input("values", FLOAT, ["batch", 2, "n", 4])
    g.input("ids", INT64, ["k"])
    g.input("position", INT64, [])
    g.constant("table", np.arange(10, dtype=np.float32).reshape(5, 2))
    for name in ("a", "b"):
        g.update(name, "values", "position", f"{name}.updated")
        g.output(f"{name}.updated", FLOAT, ["batch", 2, "capacity", 4], alias_of=name)
    g.node("Gather", ["table", "ids"], "rows")
    g.output("rows", FLOAT, ["k", 2])
    return g.model


@pytest.fixture(scope="module")
def session() -> Session:
    return Session(two_cache_model(), threads=2)


def filled(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def inputs(**more: Any) -> dict[str, Any]:
    """A good call: 3 new rows at 5 of 8."""
    good = {
        "a": filled(1, 2, 8, 4, seed=2),
        "b": filled(1, 2, 8, 4, seed=3),
        "values": filled(1, 2, 3, 4),
        "ids": np.array([4, 0, -1]),
        "position": np.array(5),
    }
    return good | more


def bound(given: dict[str, Any]) -> dict[str, Any]:
    return {
        name: writable(value) if name in ("a", "b") and isinstance(value, np.ndarray) else value for name, value in given.items()
    }


def digest(given: dict[str, Any]) -> str:
    arrays = [getattr(value, "array", value) for value in given.values()]
    return hashlib.sha256(b"".join(np.asarray(array).tobytes() for array in arrays)).hexdigest()


def check_good_run(session: Session) -> None:
    given = inputs()
    before = {name: given[name].copy() for name in ("a", "b")}
    found = session.run(bound(given))
    for name in ("a", "b"):
        assert found[f"{name}.updated"] is given[name]
        np.testing.assert_array_equal(given[name], updated(before[name], given["values"], given["position"]))
    np.testing.assert_array_equal(found["rows"], [[8, 9], [0, 1], [8, 9]])


def overlapping() -> dict[str, Any]:
    whole = filled(1, 2, 12, 4)
    flat = whole.reshape(-1)
    return inputs(a=flat[:64].reshape(1, 2, 8, 4), b=flat[32:].reshape(1, 2, 8, 4))


def values_in_cache() -> dict[str, Any]:
    cache = filled(1, 2, 8, 4)
    return inputs(a=cache, values=cache.reshape(-1)[:24].reshape(1, 2, 3, 4))


def same_array() -> dict[str, Any]:
    cache = filled(1, 2, 8, 4)
    return inputs(a=cache, b=cache)


def frozen_later() -> dict[str, Any]:
    given = bound(inputs())
    given["a"].array.flags.writeable = False
    return given


REFUSED: dict[str, tuple[Callable[[], dict[str, Any]], type[TenonnxError], str]] = {
    "read-only later": (frozen_later, ImmutableStorageError, "'a'.*bind a writable array"),
    "same array twice": (same_array, SharedStorageError, "'a' and 'b' are bound to the same array.*storage of its own"),
    "overlapping views": (overlapping, SharedStorageError, "'a' and 'b' are bound to overlapping arrays"),
    "values in the cache": (values_in_cache, SharedStorageError, "'values' overlaps the storage of 'a'.*pass a copy"),
    "one past the capacity": (lambda: inputs(position=6), CapacityError, r"position 6 \+ 3 new rows.*capacity of 8; allocate"),
    "position -1": (lambda: inputs(position=-1), CapacityError, "position -1 .*negative; expected 0..5"),
    "position at the capacity": (lambda: inputs(position=8), CapacityError, "position 8"),
    "position INT64_MAX": (lambda: inputs(position=np.array(INT64_MAX)), CapacityError, f"position {INT64_MAX}"),
    "position INT64_MIN": (lambda: inputs(position=np.array(INT64_MIN)), CapacityError, f"position {INT64_MIN}"),
    "position past INT64": (lambda: inputs(position=2**63), BindingError, "'position': 9223372036854775808"),
    "position FLOAT": (lambda: inputs(position=np.array(5.0, np.float32)), ShapeError, "'position'.*INT64.*convert"),
    "position a float": (lambda: inputs(position=5.0), ShapeError, "'position'.*INT64"),
    "position a vector": (lambda: inputs(position=np.array([5])), ShapeError, "'position'"),
    "position a list": (lambda: inputs(position=[5]), BindingError, "'position': expected a NumPy array.*found list"),
    "position missing": (
        lambda: {k: v for k, v in inputs().items() if k != "position"},
        BindingError,
        "missing inputs: position",
    ),
    "unknown input": (lambda: inputs(pos=1), BindingError, "no input 'pos'; its inputs are a, b"),
    "more rows than the capacity": (lambda: inputs(values=filled(1, 2, 9, 4), position=0), CapacityError, "9 new rows"),
    "id out of range": (lambda: inputs(ids=np.array([0, 5])), BindingError, "index 5 at element 1 is outside -5..4"),
    "id INT64_MIN": (lambda: inputs(ids=np.array([INT64_MIN])), BindingError, "index -9223372036854775808"),
    "dtype of a cache": (lambda: inputs(a=filled(1, 2, 8, 4).astype(np.float16)), ShapeError, "'a'.*found dtype float16"),
    "byte order of a cache": (lambda: inputs(a=filled(1, 2, 8, 4).astype(">f4")), ShapeError, "'a'.*dtype >f4"),
    "rank of a cache": (lambda: inputs(a=filled(2, 8, 4)), ShapeError, r"'a'.*found shape \[2, 8, 4\]"),
    "dims of a cache": (lambda: inputs(a=filled(1, 3, 8, 4)), ShapeError, r"'a'.*found shape \[1, 3, 8, 4\]"),
    "capacities that differ": (lambda: inputs(b=filled(1, 2, 9, 4)), ShapeError, "'b'.*'a' has capacity = 8"),
    "dims of the values": (lambda: inputs(values=filled(1, 2, 3, 5)), ShapeError, "'values'"),
    "batches that differ": (lambda: inputs(values=filled(2, 2, 3, 4)), ShapeError, "'values'.*batch = 1"),
    "a cache that is a list": (lambda: inputs(a=[[1.0]]), ImmutableStorageError, "'a'.*READ_WRITE.*plain list.*writable"),
    "writable values": (lambda: inputs(values=writable(filled(1, 2, 3, 4))), BindingError, "'values'.*READ_ONLY"),
    "values of objects": (lambda: inputs(values=np.array([None])), ShapeError, "found dtype object"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_write_nothing_and_release_the_binding(session: Session, case: str) -> None:
    make, error, text = REFUSED[case]
    given = bound(make())
    before = digest({name: value for name, value in given.items() if name in ("a", "b")})
    with pytest.raises(error, match=text) as caught:
        session.run(given)
    assert type(caught.value) is error
    assert digest({name: value for name, value in given.items() if name in ("a", "b")}) == before
    # The same storage can be bound again, so the refused call holds nothing.
    again = {name: getattr(given.get(name), "array", None) for name in ("a", "b")}
    if all(
        isinstance(array, np.ndarray) and array.shape == (1, 2, 8, 4) and array.dtype == np.float32 for array in again.values()
    ):
        for array in again.values():
            with owned([extent("again", array)], []):
                pass
    check_good_run(session)


def test_a_plain_array_is_never_written(session: Session) -> None:
    given = inputs()
    before = digest(given)
    with pytest.raises(ImmutableStorageError, match=r"'a'.*READ_WRITE.*plain ndarray: pass writable\(array\), or a Cache"):
        session.run(given)
    assert digest(given) == before


def test_what_writable_refuses() -> None:
    array = np.zeros((4, 4), np.float32)
    frozen = array.copy()
    frozen.flags.writeable = False
    odd = np.zeros(65, np.uint8)[1:].view(np.float32)
    for value, error, text in (
        (frozen, ImmutableStorageError, "read-only"),
        (np.broadcast_to(np.float32(1), (2, 2)), ImmutableStorageError, "read-only"),
        (array.T[:2], BindingError, "not contiguous"),
        (array[:, :2], BindingError, "not contiguous"),
        (odd, BindingError, "not aligned"),
        ([[1.0]], BindingError, "found list"),
        (b"bytes", BindingError, "found bytes"),
    ):
        with pytest.raises(error, match=text):
            writable(value)
    assert writable(array).array is array


def test_misaligned_read_only_inputs_are_read_right(session: Session) -> None:
    given = inputs()
    odd = np.zeros(given["values"].nbytes + 1, np.uint8)[1:].view(np.float32).reshape(1, 2, 3, 4)
    odd[...] = given["values"]
    session.run(bound(given | {"values": odd}))
    np.testing.assert_array_equal(given["a"][:, :, 5:], odd)


def test_strided_values_need_no_storage_of_the_cache(session: Session) -> None:
    wide = filled(1, 2, 3, 8)
    given = inputs(values=wide[..., ::2])
    session.run(bound(given))
    np.testing.assert_array_equal(given["a"][:, :, 5:], wide[..., ::2])


def test_initializers_are_never_written() -> None:
    session = Session(two_cache_model(), threads=1)
    session.run(bound(inputs()))
    (table,) = (array for array in session._weights._arrays.values() if array.shape == (5, 2))
    storage = Extent("a", table.__array_interface__["data"][0], table.__array_interface__["data"][0] + 8)
    assert session._weights.overlapping(storage) is not None
    with pytest.raises(ImmutableStorageError, match="initializer 'table', which is never written; allocate"):
        session._refuse_initializers([storage])


def test_out_is_not_for_caches_nor_over_them(session: Session) -> None:
    given = inputs()
    for out, error, text in (
        ({"a.updated": given["a"]}, AliasError, "has the storage of the cache"),
        ({"nowhere": np.zeros(1)}, BindingError, "no such output"),
        ({"rows": np.zeros((3, 3), np.float32)}, BindingError, r"expected float32\[3, 2\]"),
        ({"rows": np.zeros((3, 2))}, BindingError, "expected float32"),
        ({"rows": np.zeros((2, 3), np.float32).T}, ImmutableStorageError, "writable contiguous"),
        ({"rows": given["a"].reshape(-1)[:6].reshape(3, 2)}, SharedStorageError, "'a'"),
        ({"rows": given["values"].reshape(-1)[:6].reshape(3, 2)}, SharedStorageError, "'values'"),
    ):
        before = digest(given)
        with pytest.raises(error, match=text):
            session.run(bound(given), out=out)
        assert digest(given) == before
    out = np.empty((3, 2), np.float32)
    assert session.run(bound(given), out={"rows": out})["rows"] is out and out[0, 0] == 8
    check_good_run(session)


def test_inputs_must_be_a_mapping(session: Session) -> None:
    with pytest.raises(BindingError, match="by input name, found list"):
        session.run([np.zeros(1)])  # type: ignore[arg-type]


# ---- Address, and bytes outside the window


def test_the_output_is_the_input_s_storage_and_nothing_else_changes() -> None:
    session = Session(spec_example())
    cache = filled(2, 3, 2, 9, 5).astype(np.float16)
    values = filled(2, 3, 2, 2, 5, seed=2).astype(np.float16)
    where = cache.ctypes.data
    for position in (0, 3, 7):
        before = cache.copy()
        found = session.run({"cache": writable(cache), "values": values, "position": position})
        assert found["updated_cache"] is cache and cache.ctypes.data == where
        np.testing.assert_array_equal(cache, updated(before, values, np.array(position)))


def test_only_the_second_row_of_a_batch_is_bad() -> None:
    session = Session(cache_model(dims=(2, 1, 8, 4), rows=2, position=("batch",)))
    cache = filled(2, 1, 8, 4)
    values = filled(2, 1, 2, 4, seed=5)
    before = cache.copy()
    for bad in (7, -1, INT64_MAX, INT64_MIN):
        with pytest.raises(CapacityError, match="batch row 1"):
            session.run({"cache": writable(cache), "values": values, "position": np.array([0, bad])})
        np.testing.assert_array_equal(cache, before)
    session.run({"cache": writable(cache), "values": values, "position": np.array([6, 0])})
    np.testing.assert_array_equal(cache, updated(before, values, np.array([6, 0])))


def test_earlier_results_stay_as_they_were() -> None:
    session = Session(cache_model(rows=1))
    cache = np.zeros((1, 2, 8, 4), np.float32)
    results, kept = [], []
    for step in range(8):
        found = session.run({"cache": writable(cache), "values": np.full((1, 2, 1, 4), step + 1, np.float32), "position": step})
        results.append(found["new"])
        kept.append(found["new"].copy())
    for result, copy in zip(results, kept, strict=True):
        np.testing.assert_array_equal(result, copy)
    assert len({result.ctypes.data for result in results}) == 8
    del session, found
    np.testing.assert_array_equal(results[0], kept[0])


# ---- Cache


def test_a_cache_feeds_position_and_moves_on_success_alone(session: Session) -> None:
    cache = session.new_cache(8)
    rows = {"values": filled(1, 2, 3, 4), "ids": np.array([1])}
    for length in (3, 6):
        session.run(rows, cache=cache)
        assert cache.length == length
    before = digest(cache.arrays)
    for more, error, text in (
        ({}, CapacityError, r"position 6 \+ 3 new rows"),
        ({"position": 0}, BindingError, "'position': the cache provides it.*leave it out"),
        ({"a": writable(filled(1, 2, 8, 4))}, BindingError, "'a': the cache provides it"),
        ({"ids": np.array([9])}, CapacityError, "new rows"),
        ({"ids": np.array([9]), "values": filled(1, 2, 1, 4)}, BindingError, "index 9"),
        ({"values": filled(1, 2, 1, 5)}, ShapeError, "'values'"),
    ):
        with pytest.raises(error, match=text):
            session.run(rows | more, cache=cache)
        assert cache.length == 6 and digest(cache.arrays) == before
    cache.truncate(4)
    session.run(rows, cache=cache)
    assert cache.length == 7
    np.testing.assert_array_equal(cache["a"][:, :, 4:7], rows["values"])
    np.testing.assert_array_equal(cache["b"][:, :, :3], rows["values"])
    for length in (-1, 8):
        with pytest.raises(CapacityError, match="expected 0 to 7"):
            cache.truncate(length)
    cache.reset()
    assert cache.length == 0 and cache.capacity == 8


def test_caches_that_do_not_fit(session: Session) -> None:
    rows = {"values": filled(1, 2, 3, 4), "ids": np.array([1])}
    with pytest.raises(BindingError, match="two Cache objects"):
        session.run(rows | {"a": session.new_cache(8)}, cache=session.new_cache(8))
    with pytest.raises(BindingError, match=r"no tensor that fits input 'a'.*new_cache"):
        session.run(rows, cache=Session(cache_model(("batch", 2, "capacity", 4))).new_cache(8))
    with pytest.raises(BindingError, match=r"expected what session.new_cache"):
        session.run(rows, cache={"a": 1})  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"'values'.*batch"):
        session.run(rows, cache=session.new_cache(8, dims={"batch": 2}))
    with pytest.raises(ShapeError, match=r"positive number"):
        session.new_cache(0)
    with pytest.raises(ShapeError, match="capacity of 8; ask for at most that"):
        Session(cache_model()).new_cache(9)
    with pytest.raises(CapacityError, match="cannot be allocated"):
        session.new_cache(1 << 55)
    with pytest.raises(UnsupportedError, match="no READ_WRITE input"):
        Session(plain()).new_cache(8)
    assert session.cache_bytes(8) == 2 * 2 * 8 * 4 * 4 == session.new_cache(8).nbytes


def plain() -> Any:
    g = Graph()
    g.input("x", FLOAT, ["n"])
    g.node("Neg", ["x"], "y")
    g.output("y", FLOAT, ["n"])
    return g.model


def test_the_old_content_as_an_output_is_a_copy_made_before_the_update() -> None:
    model = cache_model(rows=1)
    model.graph.output.add().CopyFrom(model.graph.input[0])
    model.graph.output[-1].ClearField("access")
    session = Session(model)
    cache = session.new_cache(8)
    cache["cache"][...] = old = filled(1, 2, 8, 4)
    found = session.run({"values": filled(1, 2, 1, 4, seed=7)}, cache=cache)
    np.testing.assert_array_equal(found["cache"], old)
    assert found["updated"] is cache["cache"] and not np.array_equal(cache["cache"], old)


def test_a_ragged_position_is_fed_for_the_batch_s_own_axis() -> None:
    g = Graph()
    g.input("cache", FLOAT, [2, "batch", "capacity", 4], mutable=True)
    g.input("values", FLOAT, [2, "batch", "n", 4])
    g.input("position", INT64, ["batch"])
    g.update("cache", "values", "position", "updated", batch_axis=1)
    g.output("updated", FLOAT, [2, "batch", "capacity", 4], alias_of="cache")
    session = Session(g.model)
    cache = session.new_cache(8, dims={"batch": 3})
    for _ in range(2):
        session.run({"values": filled(2, 3, 1, 4)}, cache=cache)
    assert cache.length == 2


def test_a_view_of_a_cache_is_no_input_beside_it(session: Session) -> None:
    cache = session.new_cache(8)
    with pytest.raises(SharedStorageError, match="'values' overlaps"):
        session.run({"values": cache["a"].reshape(-1)[:24].reshape(1, 2, 3, 4), "ids": np.array([1])}, cache=cache)


# ---- Concurrency


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
