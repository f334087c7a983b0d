"""Cells of slabs, which hold the pages of caches."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenonnx._native import Buffer, ledger

SLAB = 2 << 20
LARGEST = 256 << 10
in_slabs = pytest.mark.skipif("TENONNX_SANITIZED" in os.environ, reason="AddressSanitizer watches allocations, not cells")


def mapped(address: int) -> bool:
    with open("/proc/self/maps", encoding="ascii") as maps:
        spans = [line.split()[0].split("-") for line in maps]
    return any(int(begin, 16) <= address < int(end, 16) for begin, end in spans)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 63, 64, 65, 4096, 13_824, 24_576, LARGEST, LARGEST + 1]), st.booleans()),
        min_size=1,
        max_size=60,
    )
)
def test_cells_are_aligned_zeroed_and_apart_whatever_was_freed_before(operations):
    held: list[tuple[Buffer, int]] = []
    for number, (size, free_one) in enumerate(operations):
        if free_one and held:
            held.pop(number % len(held))
        buffer = Buffer(size, "page")
        assert buffer.address % 64 == 0 and not buffer.array().any()
        buffer.array()[:] = number + 1
        held.append((buffer, number + 1))
    for buffer, mark in held:
        assert (buffer.array() == mark).all()


@in_slabs
def test_a_slab_is_given_back_with_its_last_cell():
    size = 200 << 10  # no other test's
    cells = [Buffer(size, "page") for _ in range(2 * (SLAB // size) + 1)]
    addresses = [cell.address for cell in cells]
    assert len({address // SLAB for address in addresses}) == 3
    kept = cells.pop()
    cells.clear()
    assert [mapped(address) for address in (addresses[0], addresses[-1])] == [False, True]
    del kept
    assert not mapped(addresses[-1])


@in_slabs
def test_room_in_an_older_slab_is_taken_before_a_new_one_is_mapped():
    size = 190 << 10
    cells = [Buffer(size, "page") for _ in range(2 * (SLAB // size))]
    hole = cells.pop(3).address
    assert Buffer(size, "page").address == hole


def test_the_ledger_counts_pages_to_the_byte_not_slabs():
    before = ledger()["page"]["bytes"]
    cells = [Buffer(100, "page") for _ in range(7)]
    assert ledger()["page"]["bytes"] - before == 700
    del cells
    assert ledger()["page"]["bytes"] == before


def test_a_child_of_fork_has_cells_of_its_own():
    parent = Buffer(4096, "page")
    parent.array()[:] = 7
    child = os.fork()
    if child == 0:
        mine = Buffer(4096, "page")
        mine.array()[:] = 9
        os._exit(0 if np.all(parent.array() == 7) and mine.address != parent.address else 1)
    assert os.waitpid(child, 0)[1] == 0
