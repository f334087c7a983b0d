"""Hostile tables for the native executor: each is an error in Python, never a crash; and many threads on few sessions."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenonnx import ConcurrentUseError, Session, _native
from tests.models import FLOAT, INT64, Graph

ARENA, SLOT, FIXED = 0, 1, 2
KERNELS = ["neg", "add", "copy", "concat", "gather", "softmax", "cache_update", "check_position", "check_indices", "where", None]
ERRORS = (ValueError, TypeError, IndexError, OverflowError, RuntimeError, MemoryError)
DATA = np.zeros(256, np.float32)
HUGE = [2**31, 2**62, 2**63 - 1, -1, -(2**63)]


def row(
    space: int = ARENA, slot: int = -1, offset: int = 0, kind: int = FLOAT, dims: Any = (4,), strides: Any = (1,), at: int = 0
) -> tuple:
    return (space, slot, offset, kind, list(dims), list(strides), at)


def step(kernel: str | None, inputs: Any, outputs: Any, ints: Any = (), floats: Any = (), guards: Any = ()) -> tuple:
    return (kernel, "step", list(inputs), list(outputs), list(ints), list(floats), False, False, list(guards))


def program(values: list, steps: list, arena: int = 1024, slots: Any = ()) -> _native.Program:
    return _native.Program(values, steps, arena, list(slots))


def test_a_sound_table_runs() -> None:
    made = program([row(SLOT, 0), row(), row(SLOT, 1)], [step("neg", [0], [1]), step("neg", [1], [2])], slots=[16, 16])
    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    lease = made.lease()
    lease.bind(np.array([x.ctypes.data, y.ctypes.data], np.uint64))
    assert lease.execute(0, 2, 2) is None
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("flag", [True, False])
def test_guards(flag: bool) -> None:
    values = [row(SLOT, 0), row(SLOT, 1), row(SLOT, 2, kind=9, dims=[], strides=[])]
    steps = [step("neg", [0], [1], guards=[(2, True)]), step("copy", [0], [1], guards=[(2, False)]), step(None, [0], [1])]
    made = program(values, steps, slots=[16, 16, 1])
    x, y, guard = np.arange(4, dtype=np.float32), np.full(4, 9, np.float32), np.array(flag)
    lease = made.lease()
    lease.bind(np.array([x.ctypes.data, y.ctypes.data, guard.ctypes.data], np.uint64))
    assert lease.execute(0, 2, 2) is None
    np.testing.assert_array_equal(y, -x if flag else x)
    assert [lease.count(number) for number in range(3)] == [int(flag), int(not flag), 0]
    assert [lease.taken(number) for number in range(3)] == [flag, not flag, True]
    for number in (-1, 3, 2**31 - 1):
        with pytest.raises(ERRORS):
            lease.taken(number)
        with pytest.raises(ERRORS):
            lease.count(number)


def test_guards_of_another_form() -> None:
    for guards in ([1], [(0,)], [(0, True, 1)], ["x"], [("x", True)]):
        with pytest.raises(ERRORS):
            program([row(kind=9, dims=[], strides=[]), row()], [step("neg", [1], [1], guards=guards)])
    with pytest.raises(ValueError, match="no BOOL value of one element"):
        program([row(kind=9, dims=[2]), row()], [step("neg", [1], [1], guards=[(0, True)])])


BAD_VALUES = {
    "space": row(space=3),
    "space negative": row(space=-1),
    "slot": row(SLOT, 1),
    "slot negative": row(SLOT, -1),
    "fixed at null": row(FIXED),
    "offset past the arena": row(offset=1024 - 12),
    "offset negative": row(offset=-4),
    "offset huge": row(offset=2**63 - 1),
    "dims past the arena": row(dims=[257]),
    "dim negative": row(dims=[-1]),
    "dims that wrap": row(dims=[2**32, 2**32], strides=[2**32, 1]),
    "dims of 2**63": row(dims=[2**63 - 1]),
    "stride negative": row(strides=[-1]),
    "strides that wrap": row(dims=[3], strides=[2**62]),
    "type unknown": row(kind=99),
    "type negative": row(kind=-1),
    "type of strings": row(kind=8),
    "type of 4 bits": row(kind=22),
    "rank 9": row(dims=[1] * 9, strides=[1] * 9),
    "rank of strides": row(dims=[4], strides=[]),
}


@pytest.mark.parametrize("name", BAD_VALUES)
def test_values_that_do_not_fit(name: str) -> None:
    for kernel in ("neg", None):  # a region's step is checked as well
        with pytest.raises(ValueError):
            program([row(), BAD_VALUES[name]], [step(kernel, [0], [1])], slots=[16])


BAD_STEPS = {
    "input past the end": step("neg", [2], [1]),
    "input huge": step("neg", [2**31 - 1], [1]),
    "output past the end": step("neg", [0], [2]),
    "output negative": step("neg", [0], [-1]),
    "an absent required input": step("neg", [-1], [1]),
    "region input past the end": step(None, [2], [1]),
    "region output past the end": step(None, [0], [2]),
    "region output negative": step(None, [0], [-1]),
    "no inputs": step("neg", [], [1]),
    "no outputs": step("neg", [0], []),
    "unknown kernel": step("nothing", [0], [1]),
    "ints too many": step("neg", [0], [1], ints=[1]),
    "floats too many": step("neg", [0], [1], floats=[1.0]),
    "guarded by no value": step("neg", [0], [1], guards=[(2, True)]),
    "guarded by a negative value": step("neg", [0], [1], guards=[(-1, True)]),
    "guarded by numbers": step("neg", [0], [1], guards=[(0, True)]),
    "region guarded by numbers": step(None, [0], [1], guards=[(0, False)]),
}


@pytest.mark.parametrize("name", BAD_STEPS)
def test_steps_that_do_not_fit(name: str) -> None:
    with pytest.raises(ValueError):
        program([row(), row()], [BAD_STEPS[name]])


@pytest.mark.parametrize("table", [[(0, 1)], [None], [1], [row()[:5]], [("x",) * 7]])
def test_rows_of_another_form(table: list) -> None:
    with pytest.raises(ERRORS):
        program(table, [])
    with pytest.raises(ERRORS):
        program([row()], table)


def test_sizes_of_arenas_slots_and_buffers() -> None:
    with pytest.raises(ValueError):
        program([], [], arena=-1)
    with pytest.raises(MemoryError):
        program([], [], arena=2**62).lease()
    with pytest.raises(ValueError):
        program([row(SLOT, 0)], [], slots=[-1])
    for nbytes in (2**62, 2**64 - 1):
        with pytest.raises(MemoryError):
            _native.Buffer(nbytes, "cache")
    with pytest.raises(ERRORS):
        _native.Buffer(-1, "cache")
    with pytest.raises(ValueError):
        _native.Buffer(1, "nothing")
    assert _native.Buffer(0, "cache").array().size == 0


def test_leases_out_of_turn() -> None:
    made = program([row(), row()], [step("neg", [0], [1]), step(None, [0], [1])])
    lease = made.lease()
    with pytest.raises(RuntimeError, match="nothing bound"):
        lease.execute(0, 1, 1)
    with pytest.raises(ValueError, match="another number of slots"):
        lease.bind(np.array([1], np.uint64))
    lease.bind(np.zeros(0, np.uint64))
    for first, last in ((-1, 1), (0, 3), (1, 0), (0, 2), (1, 2), (2**31 - 1, 2**31 - 1)):
        with pytest.raises(ValueError, match="no such native steps"):
            lease.execute(first, last, 1)
    for index in (-1, 2, 2**31 - 1):
        with pytest.raises(ERRORS):
            lease.addresses(np.array([0, index], np.int32))
    assert lease.execute(0, 1, -5) is None
    lease.close()
    lease.close()
    with pytest.raises(RuntimeError, match="closed"):
        lease.execute(0, 1, 1)


def test_a_lease_outlives_the_name_of_its_program() -> None:
    lease = program([row(), row()], [step("neg", [0], [1])]).lease()
    lease.bind(np.zeros(0, np.uint64))
    assert lease.execute(0, 1, 1) is None


SIZES = st.sampled_from([0, 1, 2, 3, 4, 7, *HUGE])


@st.composite
def tables(draw: st.DrawFn) -> tuple[list, list]:
    values = []
    for _ in range(draw(st.integers(1, 4))):
        rank = draw(st.sampled_from([0, 1, 1, 2, 2, 3, 9]))
        dims, strides = (draw(st.lists(SIZES, min_size=rank, max_size=rank)) for _ in range(2))
        kind = draw(st.sampled_from([FLOAT, FLOAT, INT64, INT64, 2, 9, 10, 16, 0, 22]))
        values.append(
            row(draw(st.sampled_from([ARENA, ARENA, SLOT])), 0, draw(st.sampled_from([0, 0, 64, *HUGE])), kind, dims, strides)
        )
    steps = []
    for _ in range(draw(st.integers(1, 3))):
        inputs, outputs = (draw(st.lists(st.integers(-1, 4), max_size=4)) for _ in range(2))
        ints = draw(st.lists(SIZES, max_size=3))
        steps.append(step(draw(st.sampled_from(KERNELS)), inputs, outputs, ints, draw(st.sampled_from([[], [1.0]]))))
    return values, steps


@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
@given(tables())
def test_random_tables_run_or_are_refused(table: tuple[list, list]) -> None:
    values, steps = table
    slot = np.zeros(1024, np.uint8)
    try:
        made = program(values, steps, slots=[slot.nbytes])
    except ERRORS:
        return
    lease = made.lease()
    lease.bind(np.array([slot.ctypes.data], np.uint64))
    for number, row_ in enumerate(steps):
        if row_[0] is not None:
            lease.execute(number, number + 1, 2)


@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
@given(tables())
def test_random_kernel_calls_on_small_memory(table: tuple[list, list]) -> None:
    """``run_kernel`` trusts its addresses, so only calls that a program accepts in the same memory are made."""
    values, steps = table
    memory = np.zeros(1024, np.uint8)
    base = memory.ctypes.data
    for kernel, _, inputs, outputs, ints, floats, *_ in steps:
        if kernel is None or max([*inputs, *outputs], default=0) >= len(values) or -1 in outputs:
            continue
        tensors = [(base + values[i][2] % 64, *values[i][3:6]) if i >= 0 else None for i in (*inputs, *outputs)]
        try:
            program(
                [(ARENA, -1, values[i][2] % 64, *values[i][3:6], 0) for i in range(len(values))],
                [step(kernel, inputs, outputs, ints, floats)],
            )
            _native.run_kernel(kernel, tensors[: len(inputs)], tensors[len(inputs) :], ints, floats, 2)
        except ERRORS:
            continue


def hammered_model() -> Any:
    g = Graph()
    g.input("cache", FLOAT, [1, 4, "capacity", 32], mutable=True)
    g.input("x", FLOAT, [1, 4, "n", 32])
    g.input("position", INT64, [])
    g.node("Softmax", ["x"], "soft")
    g.node("Sign", ["soft"], "rows")
    g.update("cache", "rows", "position", "updated")
    g.node("Neg", ["updated"], "y")
    g.output("updated", FLOAT, [1, 4, "capacity", 32], alias_of="cache")
    g.output("y", FLOAT, [1, 4, "capacity", 32])
    return g.model


def test_many_threads_on_few_sessions_and_caches() -> None:
    sessions = [Session(hammered_model(), threads=threads) for threads in (1, 2)]
    caches = [sessions[0].new_cache(64) for _ in range(3)]
    deadline = time.monotonic() + 3
    failures: list[BaseException] = []
    refused, done = [0] * 6, [0] * 6

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        while time.monotonic() < deadline and not failures:
            session, cache = sessions[rng.integers(2)], caches[rng.integers(3)]
            n = int(rng.integers(1, 9))
            try:
                found = session.run({"x": np.ones((1, 4, n, 32), np.float32)}, cache=cache)
                assert found["y"].shape == (1, 4, 64, 32) and set(np.unique(found["y"])) <= {0.0, -1.0}
                done[number] += 1
            except ConcurrentUseError:
                refused[number] += 1
            except Exception as failure:
                if "capacity" not in str(failure):
                    failures.append(failure)
                else:
                    with contextlib.suppress(ConcurrentUseError):
                        cache.reset()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failures and all(done)
