"""Formats that the gguf package lacks, or decodes otherwise at the edges: against their specifications, element by element."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tenonnx.structs import catalogue
from tests.block_cases import adversarial, assert_same_bits


def decoded(name):
    fmt = catalogue[name]
    blocks = adversarial(fmt)
    return blocks, fmt.decode(blocks, (len(blocks), fmt.elements))


def fp4(nibbles):
    return nibbles.view(ml_dtypes.float4_e2m1fn).astype(np.float32)


def ocp_mxfp4(blocks):
    scale = blocks[:, :1].view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    return scale * fp4(np.concatenate((blocks[:, 1:] & 15, blocks[:, 1:] >> 4), axis=1))


def ocp_nvfp4(blocks):
    scale = blocks[:, :4].copy().view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    nibbles = blocks[:, 4:].reshape(-1, 4, 8)
    values = fp4(np.concatenate((nibbles & 15, nibbles >> 4), axis=2))
    return (scale[:, :, None] * values).reshape(-1, 64)


@pytest.mark.parametrize(("name", "oracle"), [("MXFP4", ocp_mxfp4), ("NVFP4", ocp_nvfp4)])
def test_fp4_follows_ocp(name, oracle):
    blocks, found = decoded(name)
    with np.errstate(all="ignore"):
        expected = oracle(blocks)
    assert_same_bits(found, expected)
    assert np.isnan(found).any() and (np.signbit(found) & (found == 0)).any()


def test_mxfp4_differs_from_gguf_in_the_nan_scale_and_in_minus_zero_alone():
    blocks, found = decoded("MXFP4")
    with np.errstate(all="ignore"):
        other = dequantize(blocks, GGMLQuantizationType.MXFP4)
    nan = blocks[:, 0] == 0xFF
    assert nan.any() and np.isnan(found[nan]).all() and not np.isnan(other[nan]).any()
    np.testing.assert_array_equal(found[~nan], other[~nan])
    negative_zero = (found == 0) & np.signbit(found)
    assert negative_zero[~nan].any() and not (np.signbit(other) & (other == 0)).any()


def test_nvfp4_differs_from_gguf_in_the_sign_and_the_nan_of_its_scale_and_in_minus_zero_alone():
    blocks, found = decoded("NVFP4")
    with np.errstate(all="ignore"):
        other = dequantize(blocks, GGMLQuantizationType.NVFP4).reshape(-1, 4, 16)
    found, scales = found.reshape(-1, 4, 16), blocks[:, :4]
    plain, nan, signed = scales < 0x7F, scales & 0x7F == 0x7F, scales & 0x80 != 0
    np.testing.assert_array_equal(found[plain], other[plain])
    assert np.isnan(found[nan]).all() and (other[scales == 0x7F] == 0).all()
    np.testing.assert_array_equal(found[signed & ~nan], -other[signed & ~nan])
    assert (signed & ~nan).any() and (scales == 0x7F).any()


def test_nf4_has_the_earlier_element_in_the_high_half():
    blocks, found = decoded("NF4")
    table = catalogue["NF4"].leaves[-1].constant
    assert table[7] == 0 and table[0] == -1 and table[15] == 1 and (np.diff(table) > 0).all()
    for row, block in zip(found[::7], blocks[::7], strict=True):
        absmax = block[:4].view("<f4")[0]
        with np.errstate(all="ignore"):
            expected = [absmax * table[byte >> shift & 15] for byte in block[4:] for shift in (4, 0)]
        np.testing.assert_array_equal(row, np.array(expected, np.float32))


def bitnet(block):
    scale = block[:4].view("<f4")[0]
    return [scale * ((block[4 + element % 32] >> (6 - 2 * (element // 32)) & 3) - np.float32(1)) for element in range(128)]


def q1_0(block):
    d = np.float32(block[:2].view("<f2")[0])
    return [d if block[2 + element // 8] >> element % 8 & 1 else -d for element in range(128)]


@pytest.mark.parametrize(("name", "oracle"), [("BITNET", bitnet), ("Q1_0", q1_0)])
def test_ternary_and_binary_codes_lie_where_their_makers_put_them(name, oracle):
    blocks, found = decoded(name)
    with np.errstate(all="ignore"):
        expected = np.array([oracle(block) for block in blocks], np.float32)
    assert_same_bits(found, expected)


@pytest.mark.parametrize(("name", "dtype"), [("FP8_E4M3", ml_dtypes.float8_e4m3fn), ("FP8_E5M2", ml_dtypes.float8_e5m2)])
def test_fp8_is_the_scale_times_the_value_of_ml_dtypes(name, dtype):
    blocks, found = decoded(name)
    with np.errstate(all="ignore"):
        assert_same_bits(found, blocks[:, :4].copy().view("<f4") * blocks[:, 4:].copy().view(dtype).astype(np.float32))


def checkpoint(kind, rows, columns, group):
    """Random tensors as a checkpoint holds them, and the matrix [rows, columns] that they stand for, by loops."""
    rng = np.random.default_rng(group)
    code, zero = rng.integers(0, 16, (rows, columns)), rng.integers(0, 16, (rows // group, columns))
    scale = rng.standard_normal((rows // group, columns)).astype(np.float16)
    expected = np.zeros((rows, columns), np.float32)
    order = range(8) if kind == "GPTQ4" else (0, 2, 4, 6, 1, 3, 5, 7)
    qzeros = np.zeros((rows // group, columns // 8), np.uint32)
    qweight = np.zeros((rows // 8, columns) if kind == "GPTQ4" else (rows, columns // 8), np.uint32)
    for k in range(rows):
        for n in range(columns):
            offset = (zero[k // group, n] + 1) % 16 if kind == "GPTQ4" else zero[k // group, n]
            expected[k, n] = np.float32(scale[k // group, n]) * np.float32(code[k, n] - offset)
            place = (k // 8, n, k % 8) if kind == "GPTQ4" else (k, n // 8, order.index(n % 8))
            qweight[place[:2]] |= np.uint32(code[k, n] << 4 * place[2])
    for index in np.ndindex(*zero.shape):
        qzeros[index[0], index[1] // 8] |= np.uint32(zero[index] << 4 * list(order).index(index[1] % 8))
    return qweight, qzeros, scale, expected


def words(array):
    """The eight nibbles of each UINT32, least significant first, on a last axis."""
    return (array[..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15).astype(np.uint8)


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("kind", ["GPTQ4", "AWQ4"])
def test_checkpoints_pack_from_their_tensors_and_decode_to_their_matrix(kind, group):
    rows, columns = 2 * group, 24
    qweight, qzeros, scale, expected = checkpoint(kind, rows, columns, group)
    grid = (2, columns // 8)
    if kind == "GPTQ4":
        tiles = words(qweight.reshape(2, group // 8, columns // 8, 8)).transpose(0, 2, 1, 3, 4).reshape(-1, group, 8)
    else:
        tiles = words(qweight.reshape(2, group, columns // 8)).transpose(0, 2, 1, 3).reshape(-1, group, 8)
    fmt = catalogue[f"{kind}_{group}"]
    names = [leaf.path.partition(".")[2] for leaf in fmt.leaves if leaf.path.startswith("qweight.")]
    payload = fmt.pack(
        (rows, columns),
        scales=scale.reshape(*grid, 8).reshape(-1, 8),
        qzeros={name: words(qzeros).reshape(-1, 1, 8)[..., place] for place, name in enumerate(names)},
        qweight={name: tiles[..., place] for place, name in enumerate(names)},
    )
    assert payload.size == qweight.nbytes + qzeros.nbytes + scale.nbytes
    np.testing.assert_array_equal(fmt.decode(payload, (rows, columns)), expected)


def test_an_rgb565_row_gives_red_green_and_blue_from_0_to_1():
    pixels = np.array([0xFFFF, 0x0000, 0xF800, 0x07E0, 0x001F, 0x8410], "<u2")
    found = catalogue["RGB565"].decode(pixels.view(np.uint8), (6, 3))
    assert found[:5].tolist() == [[1, 1, 1], [0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]
    np.testing.assert_array_equal(found[5], np.float32([16 / 31, 32 / 63, 16 / 31]))


def test_a_sensor_record_is_nan_where_the_reading_is_not_valid():
    fmt = catalogue["SENSOR"]
    records = np.array([(1000, 0b00_111111111111_1_1, 0), (2000, 0b00_000000000001_0_1, 7), (3000, 0xFFFE, 0)], "<u4,<u2,<u2")
    view = fmt.view(records.view(np.uint8))
    assert view.time.tolist() == [1000, 2000, 3000] and view.status.alarm.ravel().tolist() == [1, 0, 1]
    assert view.status.unused.ravel().tolist() == [0, 0, 3] and view.spare.pad.ravel().tolist() == [0, 7, 0]
    np.testing.assert_array_equal(fmt.decode(records.view(np.uint8), (3,)), np.float32([4095 / 16 - 128, 1 / 16 - 128, np.nan]))


def test_a_frame_of_24_bit_audio_is_two_signed_samples():
    samples = [0, 1, -1, 2**23 - 1, -(2**23), 0x123456]
    data = b"".join(sample.to_bytes(3, "little", signed=True) for sample in samples)
    expected = np.array(samples, np.float64).reshape(3, 2) / 2**23
    np.testing.assert_array_equal(catalogue["PCM24"].decode(data, (3, 2)), expected.astype(np.float32))


LEAST = 2.0**-149
BLOCKS = {
    name: hnp.arrays(np.float32, (2, catalogue[name].elements), elements=st.floats(-(2.0**100), 2.0**100, width=32))
    for name in catalogue
}


@pytest.mark.parametrize("name", ["INT4_32", "INT4_64", "INT4_128", "INT8_32", "INT8_64", "INT8_128"])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_integer_codes_are_off_by_at_most_half_a_scale(name, data):
    x = data.draw(BLOCKS[name])
    fmt = catalogue[name]
    payload = fmt.encode(x)
    scale = fmt.view(payload).scale.astype(np.float64)[:, None]
    error = np.abs(fmt.decode(payload, x.shape).astype(np.float64) - x)
    # The scale itself is rounded to FLOAT: relatively little, or half of the least FLOAT, for each of up to 255 steps.
    assert (error <= scale * (0.5 + 1e-4) + 255 * LEAST).all()
    least, greatest = np.minimum(x.min(axis=1), 0), np.maximum(x.max(axis=1), 0)
    steps = 15 if name.startswith("INT4") else 255
    np.testing.assert_allclose(scale[:, 0], (greatest.astype(np.float64) - least) / steps, rtol=1e-6, atol=LEAST)


@pytest.mark.parametrize("name", ["INT4_32", "INT8_32"])
def test_the_zero_point_of_the_smallest_values_is_a_code(name):
    for count in range(1, 6000, 7):  # of the least FLOAT: scales of a few of them, off by up to a half
        x = np.full((1, 32), -count * LEAST, np.float32)
        decoded = catalogue[name].decode(catalogue[name].encode(x), x.shape)
        assert np.abs(decoded.astype(np.float64) - x).max() <= 128 * LEAST + count / 15 * LEAST


@settings(max_examples=30, deadline=None)
@given(x=BLOCKS["NF4"])
def test_nf4_is_off_by_at_most_half_the_widest_gap(x):
    fmt = catalogue["NF4"]
    error = np.abs(fmt.decode(fmt.encode(x), x.shape) - x.astype(np.float64))
    assert (error <= 0.152 * np.abs(x).max(axis=1, keepdims=True) + LEAST).all()


@pytest.mark.parametrize(("name", "mantissa", "least"), [("FP8_E4M3", 3, -6), ("FP8_E5M2", 2, -14)])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_fp8_is_off_by_at_most_half_a_unit_in_the_last_place(name, mantissa, least, data):
    x = data.draw(BLOCKS[name])
    fmt = catalogue[name]
    payload = fmt.encode(x)
    scale = fmt.view(payload).scale.astype(np.float64)[:, None]
    error = np.abs(fmt.decode(payload, x.shape).astype(np.float64) - x)
    exact = np.abs(x) * 2.0 ** -(mantissa + 1)
    assert (error <= np.maximum(exact, scale * 2.0 ** (least - mantissa - 1)) * (1 + 1e-6) + 57344 * LEAST).all()


def test_blocks_of_nothing_and_of_one_value_come_back_as_they_are():
    for name in ("INT4_32", "INT8_64", "NF4", "FP8_E4M3", "FP8_E5M2", "MXFP4"):
        fmt = catalogue[name]
        zeros = np.zeros((2, fmt.elements), np.float32)
        np.testing.assert_array_equal(fmt.decode(fmt.encode(zeros), zeros.shape), zeros)
        ones = np.ones((1, fmt.elements), np.float32)
        np.testing.assert_array_equal(fmt.decode(fmt.encode(ones), ones.shape), ones)
        assert fmt.encode(np.zeros((0, fmt.elements))).size == 0
    assert math.isclose(catalogue["NF4"].block_type.bits / 64, 4.5)
