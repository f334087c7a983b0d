"""Decode kernels give the values of each format's formula, and those of the gguf package, to the bit, on every host."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from tenonnx._native import has_kernel
from tenonnx.structs import catalogue
from tests.block_cases import adversarial, assert_same_bits
from tests.native.kernels import ISAS, call

FORMATS = [catalogue[name] for name in catalogue if has_kernel(f"decode_{name}")]
OCP = ("MXFP4", "NVFP4")  # at some scales and at -0 the package differs from the format's definition


def native(fmt, blocks, isa, threads=1):
    out = np.full(len(blocks) * fmt.elements, 7, np.float32)
    assert call(f"decode_{fmt.name}", [blocks.reshape(-1)], [out], threads=threads, isa=isa) is None
    return out


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_kernel_and_formula_give_the_same_bits(fmt, isa):
    blocks = adversarial(fmt)
    assert_same_bits(native(fmt, blocks, isa), fmt.decode(blocks, (len(blocks) * fmt.elements,)))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("fmt", [fmt for fmt in FORMATS if fmt.name not in OCP], ids=lambda fmt: fmt.name)
def test_kernel_and_gguf_give_the_same_bits(fmt, isa):
    blocks = adversarial(fmt)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[fmt.name])
    assert_same_bits(native(fmt, blocks, isa), np.ascontiguousarray(expected, np.float32).reshape(-1))


@pytest.mark.parametrize("name", OCP)
def test_fp4_with_a_plain_scale_is_the_package_s(name):
    fmt, rng = catalogue[name], np.random.default_rng(0)
    blocks = rng.integers(0, 256, (100, fmt.nbytes), np.uint8)
    blocks[:, : fmt.nbytes % 16] %= 0x7F
    expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name]).reshape(-1)
    np.testing.assert_array_equal(native(fmt, blocks, ""), expected)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("blocks", [0, 1, 2, 8193])
def test_blocks_are_shared_out_without_a_gap(fmt, blocks):
    data = np.random.default_rng(1).integers(0, 256, (blocks, fmt.nbytes), np.uint8)
    one = native(fmt, data, "", threads=1)
    np.testing.assert_array_equal(native(fmt, data, "", threads=3).view(np.uint32), one.view(np.uint32))
    assert_same_bits(one, fmt.decode(data, (blocks * fmt.elements,)))


@pytest.mark.parametrize(
    ("payload", "values", "message"),
    [
        (np.zeros(17, np.uint8), np.zeros(32, np.float32), "no whole number of blocks of 18 bytes"),
        (np.zeros(36, np.uint8), np.zeros(32, np.float32), r"expected contiguous FLOAT \[64\]"),
        (np.zeros(18, np.uint8), np.zeros(33, np.float32), r"expected contiguous FLOAT \[32\]"),
        (np.zeros(36, np.uint8)[::2], np.zeros(32, np.float32), "expected contiguous UINT8"),
        (np.zeros(18, np.uint8), np.zeros(64, np.float32)[::2], r"expected contiguous FLOAT \[32\]"),
        (np.zeros(18, np.int8), np.zeros(32, np.float32), "expected contiguous UINT8"),
        (np.zeros(18, np.uint8), np.zeros(32, np.float16), r"expected contiguous FLOAT \[32\]"),
        (np.zeros((1, 18), np.uint8), np.zeros(32, np.float32), "expected contiguous UINT8"),
    ],
)
def test_buffers_that_do_not_fit_are_refused(payload, values, message):
    with pytest.raises(ValueError, match=message):
        call("decode_Q4_0", [payload], [values])
