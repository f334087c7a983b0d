"""Arenas that programs lend each other: one is held where runs come one after the other, whatever their sizes."""

import gc

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tenonnx._native import Arenas, Program, ledger

FLOAT = 1


def negation(floats: int, arenas: Arenas | None) -> Program:
    """Two steps over ``floats`` elements: slot 0 negated into the arena, and again into slot 1."""
    dims, nbytes = [floats], 4 * floats
    values = [(1, 0, 0, FLOAT, dims, [1], 0), (0, -1, 0, FLOAT, dims, [1], 0), (1, 1, 0, FLOAT, dims, [1], 0)]
    steps = [("neg", "first", [0], [1], [], [], False, True, []), ("neg", "second", [1], [2], [], [], False, True, [])]
    return Program(values, steps, nbytes, [nbytes, nbytes], arenas=arenas)


def run(program: Program, x: np.ndarray, lease=None) -> None:
    y = np.zeros_like(x)
    lease = lease or program.lease()
    lease.bind(np.array([x.ctypes.data, y.ctypes.data], np.uint64))
    assert lease.execute(0, 2, 1) is None
    np.testing.assert_array_equal(y, x)
    lease.close()


def held() -> int:
    gc.collect()
    return ledger()["arena"]["bytes"]


def run_in_turns(calls: list[tuple[int, bool]], sizes: list[int]) -> None:
    """Runs of programs of some sizes; some are leased at their turn and run at the end."""
    arenas, leases = Arenas(), []
    programs = [negation(size, arenas) for size in sizes]
    before = ledger()["arena"]["bytes"]
    for which, later in calls:
        x = np.random.default_rng(which).standard_normal(sizes[which]).astype(np.float32)
        if later:
            leases.append((programs[which], x, programs[which].lease()))
        run(programs[which], x)
        assert ledger()["arena"]["bytes"] - before <= 4 * max(sizes) * (len(leases) + 1)
    for program, x, lease in leases:
        run(program, x, lease)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=30))
def test_each_run_finds_an_arena_of_its_own(calls):
    before = held()
    run_in_turns(calls, [3, 16, 70, 300_000])
    assert held() == before


def test_runs_one_after_the_other_hold_the_largest_alone():
    before, arenas, sizes = held(), Arenas(), (100, 7, 5000, 64, 4999)
    programs = [negation(size, arenas) for size in sizes]
    for program, size in zip(programs, sizes, strict=True):
        run(program, np.ones(size, np.float32))
    assert held() - before == 4 * 5000


def test_arenas_live_as_long_as_a_program_has_them():
    before = held()
    program = negation(1000, Arenas())
    gc.collect()
    run(program, np.ones(1000, np.float32))
    run(program, np.ones(1000, np.float32))
    assert held() - before == 4000
    del program
    assert held() == before
