"""Sizes of structured types: C++ and Python compute the same function, and refuse the same overflows."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenonnx import structs
from tenonnx._native import struct_bits
from tenonnx.errors import CheckError
from tenonnx.structs import bits, structure
from tenonnx.structs.physical import SizeOverflow, TypeLimit
from tenonnx.structs.scalars import SCALARS

SCALAR, ARRAY, PACKING, STRUCTURE = range(4)
counts = st.integers(0, 3) | st.sampled_from([2**16, 2**31, 2**32, 2**32 + 1, 2**60, 2**63, 2**64 - 1])
# A type as nested tuples, from which both sides build: Python's nodes cannot be made at all when their size overflows.
leaves = st.tuples(st.just("scalar"), st.sampled_from(sorted(SCALARS))) | st.tuples(
    st.just("packing"), st.lists(st.integers(1, 2**32 - 1), max_size=3), counts
)
types = st.recursive(
    leaves,
    lambda inner: st.tuples(st.just("array"), inner, counts) | st.tuples(st.just("structure"), st.lists(inner, max_size=4)),
    max_leaves=8,
)


def node(described):
    kind, *rest = described
    if kind == "scalar":
        return SCALARS[rest[0]]
    if kind == "packing":
        return bits(**{f"c{place}": width for place, width in enumerate(rest[0])})[rest[1]]
    if kind == "array":
        return structs.array(node(rest[0]), rest[1])
    return structure("", **{f"f{place}": node(member) for place, member in enumerate(rest[0])})


def rows(described):
    kind, *rest = described
    if kind == "scalar":
        return [(SCALAR, SCALARS[rest[0]].bits, 0)]
    if kind == "packing":
        return [(PACKING, rest[1], sum(rest[0]))]
    if kind == "array":
        return [*rows(rest[0]), (ARRAY, rest[1], 0)]
    return [*(row for member in rest[0] for row in rows(member)), (STRUCTURE, len(rest[0]), 0)]


@settings(max_examples=500, deadline=None)
@given(types)
def test_both_give_the_same_size_or_overflow(described):
    try:
        expected = node(described).bits
    except SizeOverflow:
        with pytest.raises(OverflowError, match="leaves uint64"):
            struct_bits(rows(described))
    except TypeLimit:  # a limit of the reader, not of the arithmetic
        return
    else:
        assert struct_bits(rows(described)) == expected


@pytest.mark.parametrize(
    "described",
    [
        ("array", ("array", ("scalar", "u8"), 2**32), 2**32),
        ("array", ("structure", [("scalar", "f16"), ("packing", [4, 4], 16)]), 5124095576030431008 // 18 * 18),
        ("array", ("array", ("array", ("scalar", "u8"), 4194305), 4194305), 211106198978564),
        ("array", ("array", ("array", ("scalar", "u8"), 2**61), 2), 0),
        ("structure", [("packing", [2**32 - 1], 2**32), ("packing", [2**32 - 1], 1), ("scalar", "u8")]),
        ("packing", [2**32 - 1, 2**32 - 1], 2**31 + 1),
    ],
)
def test_sizes_that_wrap_are_refused_by_both(described):
    with pytest.raises(OverflowError):
        struct_bits(rows(described))
    with pytest.raises(CheckError, match="leaves uint64"):
        node(described)


@pytest.mark.parametrize("broken", [[], [(ARRAY, 1, 0)], [(STRUCTURE, 1, 0)], [(9, 1, 1)], [(SCALAR, 8, 0)] * 2, [(-1, 0, 0)]])
def test_rows_that_are_no_type_are_refused(broken):
    with pytest.raises(ValueError, match="no type"):
        struct_bits(broken)
