"""The kernels that benchmarks are measured against read all that they are given, and count what they multiply."""

import numpy as np
import pytest

from tests.native.kernels import ISAS, call

MIB = 1 << 20
isas = pytest.mark.parametrize("isa", ISAS)


@isas
@pytest.mark.parametrize("threads", [1, 2])
def test_every_byte_is_read(isa, threads):
    x = np.random.default_rng(0).integers(0, 256, 3 * MIB, np.uint8)
    found = np.zeros(3, np.uint64)
    call("read_memory", [x], [found], threads=threads, isa=isa)
    assert np.array_equal(found, np.bitwise_xor.reduce(x.view(np.uint64).reshape(3, -1), axis=1))


@isas
def test_products_are_counted(isa):
    one, ten = np.zeros(5, np.int64), np.zeros(5, np.int64)
    zeros = np.zeros(256, np.uint8)
    call("multiply_bytes", [zeros], [one], [1], isa=isa)
    call("multiply_bytes", [zeros], [ten], [10], isa=isa)
    assert (one > 0).all() and np.array_equal(ten, 10 * one)


@pytest.mark.parametrize(
    ("name", "x", "out", "ints", "message"),
    [
        ("read_memory", np.zeros(MIB + 1, np.uint8), np.zeros(1, np.uint64), [], "expected a multiple of 1048576 bytes"),
        ("read_memory", np.zeros(MIB, np.uint8), np.zeros(2, np.uint64), [], r"expected UINT64\[1\]"),
        ("multiply_bytes", np.zeros(255, np.uint8), np.zeros(1, np.int64), [1], r"expected UINT8\[256\]"),
        ("multiply_bytes", np.zeros(256, np.uint8), np.zeros(1, np.uint64), [1], "expected INT64"),
        ("multiply_bytes", np.zeros(256, np.uint8), np.zeros(1, np.int64), [-1], "expected 0 or more"),
    ],
)
def test_other_arguments_are_refused(name, x, out, ints, message):
    with pytest.raises(ValueError, match=message):
        call(name, [x], [out], ints)
