"""Packed matrix kernels refuse what does not fit, before they touch memory."""

import numpy as np
import pytest

from tenonnx import _native
from tenonnx.layouts import packer
from tests.native.kernels import ISAS, call
from tests.native.packed import FORMATS, QUANTIZED, elements

HUGE = [(-1, 32), (8, -32), (2**62, 2**62), (2**63 - 1, 32), (2**40, 2**40), (2**36, 2**31), (8, 2**63 - 32)]
SOURCES = {packer(name).split("_")[1]: name for name in FORMATS}  # one format for each layout


def run_shapes(name: str, inputs: list, outputs: list, ints: list[int]) -> None:
    """Shapes at a null address: what passed would crash, so each case must be refused."""
    _native.run_kernel(name, inputs, outputs, ints)


@pytest.mark.parametrize("n, k", HUGE)
@pytest.mark.parametrize("layout", SOURCES)
def test_sizes_that_wrap_are_refused(layout, n, k):
    some = (0, 2, [2**62], [1])
    with pytest.raises(ValueError, match=r"no such layout|expected"):
        run_shapes(packer(SOURCES[layout]), [some], [some], [n, k])
    with pytest.raises(ValueError, match=r"no such layout|expected"):
        run_shapes(f"matmul_{layout}", [(0, 2, [1, 32], [32, 1]), some], [(0, 1, [1, 1], [1, 1])], [n, k])
    with pytest.raises(ValueError, match=r"no such layout|expected"):
        run_shapes(f"gather_{layout}", [some, (0, 7, [1], [1])], [(0, 1, [1, 1], [1, 1])], [n, k])


def test_many_rows_of_an_empty_matrix_are_refused():
    rows = 2**62
    with pytest.raises(ValueError, match="no size of a tensor"):
        x, packed, y = (0, 2, [rows, 0], [0, 1]), (0, 2, [0], [1]), (0, 1, [rows, 8], [8, 1])
        run_shapes("matmul_q4m", [x, packed], [y], [8, 0])
    with pytest.raises(ValueError, match="no size of a tensor"):
        run_shapes("quantize_rows", [(0, 1, [rows, 32], [0, 1])], [(0, 2, [rows, 48], [48, 1])], [])


@pytest.mark.parametrize("format_name", QUANTIZED)
def test_columns_must_fill_blocks(format_name):
    some, columns = np.zeros(1000, np.uint8), elements(format_name)
    with pytest.raises(ValueError, match=f"multiple of {columns}"):
        call(packer(format_name), [some], [some], [8, columns + columns // 2])
    with pytest.raises(ValueError, match="multiple of 32"):
        call("quantize_rows", [np.zeros((1, 48), np.float32)], [np.zeros((1, 72), np.uint8)])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("change", [-1, 1])
def test_buffers_one_byte_off_are_refused(isa, change):
    n, k, packed = 9, 64, 2 * 2 * 160
    source, out, exact = (np.zeros(size, np.uint8) for size in (n * 2 * 20, packed + change, packed))
    with pytest.raises(ValueError, match=f"expected {packed} bytes .* found {packed + change}"):
        call("pack_q4m_from_Q4_1", [source], [out], [n, k], isa=isa)
    with pytest.raises(ValueError, match="expected 360 bytes"):
        call("pack_q4m_from_Q4_1", [np.zeros(360 + change, np.uint8)], [exact], [n, k], isa=isa)
    rows, y = np.zeros((3, 96), np.uint8), np.zeros((3, n), np.float32)
    with pytest.raises(ValueError, match=f"expected {packed} bytes"):
        call("matmul_q4m", [rows, out], [y], [n, k], isa=isa)
    with pytest.raises(ValueError, match=f"expected {packed} bytes"):
        call("gather_q4m", [out, np.zeros(1, np.int64)], [np.zeros((1, k), np.float32)], [n, k], isa=isa)


def test_rows_that_do_not_fit_are_refused():
    packed, rows = np.zeros(320, np.uint8), np.zeros((3, 96), np.uint8)
    for x, y in [
        (rows, np.zeros((3, 7), np.float32)),
        (rows, np.zeros((2, 8), np.float32)),
        (rows[:, :95], np.zeros((3, 8), np.float32)),
        (rows, np.zeros((3, 8), np.float64)),
        (rows, np.zeros((8, 3), np.float32).T),
        (rows.view(np.int8), np.zeros((3, 8), np.float32)),
        (rows, np.lib.stride_tricks.as_strided(np.zeros(24, np.float32), (3, 8), (16, 4))),
        (rows.reshape(3, 1, 96), np.zeros((3, 8), np.float32)),
    ]:
        with pytest.raises(ValueError, match="matmul_q4m: "):
            call("matmul_q4m", [x, packed], [y], [8, 64])


def test_wrong_counts_and_absent_inputs_are_refused():
    packed = np.zeros(320, np.uint8)
    with pytest.raises(ValueError, match="expects x, weights"):
        call("matmul_q4m", [packed], [packed], [8, 64])
    with pytest.raises(ValueError, match="expects"):
        call("gather_q4m", [packed, np.zeros(1, np.int64)], [np.zeros((1, 64), np.float32)], [8])
    with pytest.raises(ValueError, match="expected"):
        call("gather_q4m", [None, np.zeros(1, np.int64)], [np.zeros((1, 64), np.float32)], [8, 64])
    with pytest.raises(ValueError, match="expected"):
        call("quantize_rows", [None], [packed.reshape(1, 320)])


def test_gather_refuses_other_ids_and_shapes():
    packed, ids = np.zeros(320, np.uint8), np.zeros((2, 3), np.int64)
    for indices, out in [
        (ids.astype(np.int32), np.zeros((2, 3, 64), np.float32)),
        (ids.T, np.zeros((3, 2, 64), np.float32)),
        (ids, np.zeros((3, 2, 64), np.float32)),
        (ids, np.zeros((2, 3, 63), np.float32)),
        (ids, np.zeros((2, 3, 64), np.float16)),
        (np.zeros((1,) * 8, np.int64), np.zeros((1,) * 7 + (64,), np.float32)),
    ]:
        with pytest.raises(ValueError, match="gather_q4m: "):
            call("gather_q4m", [packed, indices], [out], [8, 64])
