"""Packed matrix kernels: every format decodes and multiplies as its definition says, whatever the batch."""

import gguf
import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tenonnx.layouts import quantized_row_bytes
from tests.native.kernels import ISAS, call
from tests.native.packed import (
    BYTES,
    FORMATS,
    PLAIN,
    QUANTIZED,
    elements,
    gather,
    layout,
    multiply,
    pack,
    quantize,
    random_blocks,
    with_codes,
)
from tests.oracle import matmul as oracle

FILLS = st.sampled_from(["random", "extreme", *BYTES])
TOKENS = (0, 1, 2, 3, 4, 5, 7, 8, 9, 33, 65)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("format_name", FORMATS)
@settings(max_examples=25, deadline=None)
@given(st.integers(1, 35), st.integers(1, 5), FILLS, st.integers(0, 2**32 - 1))
@example(1, 1, "lowest", 0)
def test_packed_rows_decode_as_gguf_does(isa, format_name, n, blocks, fill, seed):
    k = blocks * (elements(format_name) if format_name in QUANTIZED else 7)
    source = random_blocks(np.random.default_rng(seed), format_name, n, k, fill)
    packed = pack(format_name, source, k, isa)
    expected = oracle.dequantize(source, format_name)
    ids = np.arange(-n, n, dtype=np.int64).reshape(2, n)
    got = gather(format_name, packed, ids, n, k, isa)
    np.testing.assert_array_equal(got, np.broadcast_to(expected, (2, n, k)))
    if format_name != "TQ2_0":  # d * 1 - d is +0 for any d
        np.testing.assert_array_equal(np.signbit(got[0]), np.signbit(expected))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("format_name", FORMATS)
def test_packing_is_the_same_for_any_threads_and_isa(isa, format_name):
    k = 3 * elements(format_name)
    source = random_blocks(np.random.default_rng(5), format_name, 83, k)
    one = pack(format_name, source, k, "portable", 1)
    np.testing.assert_array_equal(pack(format_name, source, k, isa, 2), one)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("format_name", FORMATS)
def test_missing_rows_of_the_last_group_are_zeros(isa, format_name):
    k = 2 * elements(format_name)
    packed = pack(format_name, random_blocks(np.random.default_rng(2), format_name, 9, k), k, isa)
    rows = gather(format_name, packed, np.arange(16), 16, k, isa)
    assert rows[:9].any(axis=1).all() and not rows[9:].any()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("n", [11, 16])
def test_an_id_out_of_range_gives_zeros(isa, format_name, n):
    k = 2 * elements(format_name)
    packed = pack(format_name, random_blocks(np.random.default_rng(3), format_name, n, k), k)
    beside = np.concatenate([packed, packed, packed])  # what lies around the matrix is not zeros
    ids = np.array([-n - 1, n, 2**63 - 1, -(2**63), n - 1], np.int64)
    got = gather(format_name, beside[len(packed) : -len(packed)], ids, n, k, isa)
    assert not got[:4].any() and got[4].any()


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 9), st.integers(0, 6), st.integers(-40, 40), st.integers(0, 2**32 - 1))
def test_quantized_rows_are_within_half_a_step(isa, m, blocks, exponent, seed):
    k = 32 * blocks
    x = (np.random.default_rng(seed).standard_normal((m, k + 3)) * 2.0**exponent).astype(np.float32)[:, :k]
    codes, scales, sums, halves = oracle.quantized_rows(quantize(x, isa), k)
    by_block = x.reshape(m, blocks, 32).astype(np.float64)
    np.testing.assert_allclose(scales, np.abs(by_block).max(-1) / 127, rtol=1e-6)
    np.testing.assert_array_equal(sums, codes.reshape(m, blocks, 32).sum(-1, dtype=np.int64))
    np.testing.assert_array_equal(halves, codes.reshape(m, 2 * blocks, 16).sum(-1, dtype=np.int64))
    error = np.abs(codes.reshape(m, blocks, 32) * scales[..., None].astype(np.float64) - by_block)
    assert (error <= scales[..., None] * 0.50002).all()


@pytest.mark.parametrize("isa", ISAS)
def test_blocks_of_zeros_and_of_tiny_numbers_quantize_to_zeros(isa):
    x = np.zeros((3, 64), np.float32)
    x[1], x[2] = 1e-45, -1e-38
    assert not any(part.any() for part in oracle.quantized_rows(quantize(x, isa), 64))


@pytest.mark.parametrize("isa", ISAS)
def test_the_largest_floats_quantize(isa):
    x = np.full((1, 32), np.finfo(np.float32).max, np.float32)
    x[0, 1::2] *= -1
    codes, scales, *_ = oracle.quantized_rows(quantize(x, isa), 32)
    np.testing.assert_array_equal(codes[0], [127, -127] * 16)
    assert np.isfinite(scales).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("format_name", QUANTIZED)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_makes_its_own_row_nan(isa, format_name, bad):
    n, k = 19, 3 * elements(format_name)
    x = np.ones((5, k), np.float32)
    x[2, 40] = bad
    packed = pack(format_name, random_blocks(np.random.default_rng(1), format_name, n, k), k)
    y = multiply(format_name, quantize(x, isa), packed, n, k, isa)
    assert np.isnan(y[2]).all() and np.isfinite(np.delete(y, 2, 0)).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("format_name", QUANTIZED)
@settings(max_examples=25, deadline=None)
@given(st.sampled_from(TOKENS), st.integers(1, 50), st.integers(0, 6), FILLS, st.integers(0, 2**32 - 1))
@example(1, 1, 1, "random", 0)
@example(8, 17, 48, "ones", 0)
def test_quantized_matmul_is_exact_to_rounding(isa, format_name, m, n, blocks, fill, seed):
    k, rng = elements(format_name) * blocks, np.random.default_rng(seed)
    source = random_blocks(rng, format_name, n, k, fill)
    weights = oracle.dequantize(source, format_name) if k else np.zeros((n, 0), np.float32)
    x = rng.standard_normal((m, k)).astype(np.float32)
    x[: m // 2] = np.sign(x[: m // 2])  # codes of 127 and -127 alone: the largest sums
    rows = quantize(x, isa)
    y = multiply(format_name, rows, pack(format_name, source, k), n, k, isa)
    decoded = oracle.dequantized_rows(rows, k)
    # d * dot and m * sum may each be far larger than the value they make.
    slack = oracle.magnitude(decoded, np.abs(weights) + largest_parts(source, format_name, k))
    assert (np.abs(y - oracle.matmul(decoded, weights)) <= slack * (k // 32 + 6) * 2.0**-23).all()
    half_steps = np.full_like(x, np.abs(x).max(initial=0) / 127 * 0.51)
    loose = oracle.magnitude(half_steps, weights)
    assert (np.abs(y - oracle.matmul(x, weights)) <= loose + slack * (k // 32 + 6) * 2.0**-23).all()


def largest_parts(source: np.ndarray, format_name: str, k: int) -> np.ndarray:
    """Bound on the parts that are summed to one weight, scale * code and minimum, as [N, K]: the ends of what codes give."""
    if not k:
        return np.zeros((len(source), 0))
    ends = [
        oracle.dequantize(with_codes(format_name, source, fill), format_name).astype(np.float64)
        for fill in (0x00, QUANTIZED[format_name].largest)
    ]
    return 2 * (np.abs(ends[0]) + np.abs(ends[1]))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("format_name", PLAIN)
@settings(max_examples=25, deadline=None)
@given(st.sampled_from(TOKENS), st.integers(1, 50), st.integers(0, 70), st.integers(0, 2**32 - 1))
def test_float_matmul_is_exact_to_rounding(isa, format_name, m, n, k, seed):
    rng = np.random.default_rng(seed)
    source = random_blocks(rng, format_name, n, k)
    weights = oracle.dequantize(source, format_name) if k else np.zeros((n, 0), np.float32)
    x = rng.standard_normal((m, k)).astype(np.float32)
    y = multiply(format_name, x, pack(format_name, source, k), n, k, isa)
    bound = oracle.magnitude(x, weights) * (k + 1) * 2.0**-24
    assert (np.abs(y - oracle.matmul(x, weights)) <= bound).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("n", [1, 8, 45])
def test_a_row_is_the_same_bits_in_any_batch_and_with_any_threads(isa, format_name, n):
    rng, m = np.random.default_rng(n), 131
    k = 160 if elements(format_name) <= 32 else 2 * elements(format_name)
    packed = pack(format_name, random_blocks(rng, format_name, n, k), k)
    x = rng.standard_normal((m, k)).astype(np.float32)
    rows = quantize(x, isa) if format_name in QUANTIZED else x
    whole = multiply(format_name, rows, packed, n, k, isa)
    assert whole.tobytes() == multiply(format_name, rows, packed, n, k, isa, threads=2).tobytes()
    for size in (1, 2, 3, 4, 5, 7, 8, 9, 33):
        parts = [multiply(format_name, rows[i : i + size], packed, n, k, isa) for i in range(0, m, size)]
        assert whole.tobytes() == np.concatenate(parts).tobytes(), size


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("format_name", FORMATS)
def test_rows_may_be_strided_and_nothing_beside_them_is_written(isa, format_name):
    rng, n, k, m = np.random.default_rng(0), 21, 2 * elements(format_name), 6
    packed = pack(format_name, random_blocks(rng, format_name, n, k), k)
    wide = rng.standard_normal((m, k + 8)).astype(np.float32)
    x = wide[:, :k]
    if format_name in QUANTIZED:
        width = quantized_row_bytes(k)
        wide = np.zeros((m, width + 12), np.uint8)
        call("quantize_rows", [x], [wide[:, :width]], isa=isa)
        assert not wide[:, width:].any()
        x = wide[:, :width]
    out = np.full((m, n + 5), 7.0, np.float32)
    call(layout(format_name).matmul, [x, packed], [out[:, :n]], [n, k], isa=isa)
    assert (out[:, n:] == 7.0).all()
    expected = multiply(format_name, np.ascontiguousarray(x), packed, n, k, isa)
    np.testing.assert_array_equal(out[:, :n], expected)


def test_the_gguf_package_knows_the_formats():
    for format_name, source in QUANTIZED.items():
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[format_name]][1] == source.nbytes


@pytest.mark.parametrize("isa", ISAS)
def test_every_scale_of_fp4_formats_is_that_of_ocp(isa):
    """The gguf package gives a finite value for E8M0's NaN, and ignores the sign and the NaN of NVFP4's scale."""
    exponents = np.zeros((256, 17), np.uint8)
    exponents[:, 0], exponents[:, 1:] = np.arange(256), 0x72  # 2^e * 1 and 2^e * 6
    got = gather("MXFP4", pack("MXFP4", exponents, 32, isa), np.arange(256), 256, 32, isa)
    scale = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float32)[:, None]
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got, np.repeat(np.concatenate([scale, scale * np.float32(6)], axis=1), 16, axis=1))
    scales = np.zeros((256, 36), np.uint8)
    scales[:, :4], scales[:, 4:] = np.arange(256)[:, None], 0x72
    got = gather("NVFP4", pack("NVFP4", scales, 64, isa), np.arange(256), 256, 64, isa)
    scale = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)[:, None]
    one_and_six = np.repeat(np.concatenate([scale, scale * np.float32(6)], axis=1), 8, axis=1)
    np.testing.assert_array_equal(got, np.tile(one_and_six, (1, 4)))
