"""The unpack kernel reads the bits that one big integer has there, and none outside the payload."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenonnx.structs.layout import Axis
from tenonnx.structs.native import merged
from tenonnx.structs.packing import unpack_numpy
from tests.native.kernels import ISAS, call

TYPES = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def container(width):
    return next(TYPES[bits] for bits in TYPES if width <= bits)


def unpacked(payload, offset, width, axes, dtype=None, isa="", threads=1):
    out = np.full([axis.size for axis in axes], 0xA5, dtype or container(width))
    assert (
        call("unpack_bits", [payload], [out], [offset, width, *(axis.stride for axis in axes)], isa=isa, threads=threads) is None
    )
    return out


@st.composite
def fields(draw):
    """A payload of exactly the bytes that the fields reach, their first bit, width and axes."""
    width = draw(st.integers(1, 64))
    inner = draw(st.integers(1, 90)), draw(st.sampled_from([width, 8, 16, 3, 0, 24, 33, 144]))
    axes = [Axis(*draw(st.tuples(st.integers(1, 4), st.integers(-70, 300)))) for _ in range(draw(st.integers(0, 2)))]
    axes.append(Axis(inner[0], inner[1] * draw(st.sampled_from([1, 1, -1]))))
    low = sum((axis.size - 1) * min(axis.stride, 0) for axis in axes)
    high = sum((axis.size - 1) * max(axis.stride, 0) for axis in axes)
    offset = -low + draw(st.integers(0, 9))
    payload = draw(st.randoms(use_true_random=False)).randbytes((offset + high + width + 7) // 8)
    return np.frombuffer(payload, np.uint8), offset, width, axes


@settings(max_examples=400, deadline=None)
@given(fields(), st.sampled_from(ISAS))
def test_fields_are_the_bits_of_one_big_integer(field, isa):
    payload, offset, width, axes = field
    number = int.from_bytes(payload.tobytes(), "little")
    found = unpacked(payload, offset, width, axes, isa=isa)
    for index in itertools.product(*(range(axis.size) for axis in axes)):
        bit = offset + sum(place * axis.stride for place, axis in zip(index, axes, strict=True))
        assert int(found[index]) == number >> bit & (2**width - 1)


@settings(max_examples=200, deadline=None)
@given(fields())
def test_numpy_alone_and_merged_axes_read_the_same(field):
    payload, offset, width, axes = field
    found = unpacked(payload, offset, width, axes)
    alone = np.empty_like(found)
    unpack_numpy(payload, offset, tuple(axes), width, alone)
    np.testing.assert_array_equal(alone, found)
    np.testing.assert_array_equal(unpacked(payload, offset, width, merged(axes)).reshape(-1), found.reshape(-1))


@pytest.mark.parametrize("width", [1, 3, 4, 7, 8, 9, 12, 25, 26, 33, 57, 58, 64])
@pytest.mark.parametrize("count", [32767, 32768, 32769, 100_001])
def test_long_runs_are_shared_out_without_a_gap(width, count):
    payload = np.random.default_rng(width).integers(0, 256, (count * width + 5 + 7) // 8, np.uint8)
    bits = np.unpackbits(payload, bitorder="little")[5 : 5 + count * width].reshape(count, width)
    expected = (bits.astype(np.uint64) << np.arange(width, dtype=np.uint64)).sum(axis=1, dtype=np.uint64)
    for threads in (1, 3):
        np.testing.assert_array_equal(unpacked(payload, 5, width, [Axis(count, width)], threads=threads), expected)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
def test_a_wider_type_holds_a_narrow_field(dtype):
    payload = np.arange(256, dtype=np.uint8)
    for isa in ISAS:
        np.testing.assert_array_equal(unpacked(payload, 4, 4, [Axis(256, 8)], dtype, isa), payload >> 4)
        np.testing.assert_array_equal(unpacked(payload, 4, 4, [Axis(127, 16)], dtype, isa), (payload >> 4)[:254:2])


BYTES, OUT = np.zeros(4, np.uint8), np.zeros(8, np.uint8)


@pytest.mark.parametrize(
    ("payload", "out", "ints", "message"),
    [
        (BYTES, OUT, [1, 4, 4], "fields of bits 1 to 29, the payload has 32"),
        (BYTES, OUT, [-1, 4, 4], "fields of bits -1 to 27"),
        (BYTES, OUT, [20, 4, -4], "fields of bits -8 to 20"),
        (BYTES, OUT, [0, 4, 2**62], "past an address space"),
        (BYTES, OUT, [2**63 - 1, 4, 0], "the payload has 32"),
        (BYTES, OUT, [0, 0, 4], "width of 0 bits"),
        (BYTES, OUT, [0, 9, 2], "width of 9 bits does not fit UINT8"),
        (BYTES, OUT, [0, 4], "expected offset, width and a stride for each of 1 axes"),
        (BYTES, OUT.view(np.int8), [0, 4, 4], "expected a contiguous unsigned type"),
        (BYTES, np.zeros(16, np.uint8)[::2], [0, 4, 4], "expected a contiguous unsigned type"),
        (BYTES[::2], OUT[:4], [0, 4, 4], "expected contiguous UINT8"),
        (np.zeros(0, np.uint8), OUT, [0, 1, 0], "the payload has 0"),
    ],
)
def test_fields_outside_the_payload_are_refused(payload, out, ints, message):
    with pytest.raises(ValueError, match=message):
        call("unpack_bits", [payload], [out], ints)


def test_no_element_reads_nothing():
    assert unpacked(np.zeros(0, np.uint8), 99, 4, [Axis(0, 4), Axis(5, 2**50)]).size == 0
