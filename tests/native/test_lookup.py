"""Generic layouts: codes of up to 4 bits through tables of floats, against NumPy and float64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenonnx import _native
from tenonnx.layouts.generic import Operands, decoded
from tenonnx.layouts.layout import generic
from tests.native.kernels import ISAS, call
from tests.oracle import matmul as oracle

ENTRIES = ("", "FLOAT16", "FLOAT")
GROUPS = st.sampled_from([32, 64, 96, 256])


def operands(rng: np.random.Generator, n: int, k: int, group: int, entries: str, scaled: bool = True) -> Operands:
    groups = k // group
    table = rng.standard_normal((n, groups, 16) if entries else 16)
    numbers = [rng.standard_normal((n, groups)).astype(np.float32) if scaled else None for _ in range(2)]
    exact = table.astype(np.float16 if entries == "FLOAT16" else np.float32).astype(np.float32)
    return Operands(rng.integers(0, 16, (n, k), np.uint8), exact, *numbers)


def pack(given: Operands, group: int, entries: str, isa: str = "", threads: int = 1) -> np.ndarray:
    layout, shape = generic(group, entries), given.codes.shape
    packed = np.full(layout.nbytes(*shape), 0xA5, np.uint8)
    call(f"pack_{layout.kernel}", list(given), [packed], [*shape, group], threads=threads, isa=isa)
    return packed


def multiply(x: np.ndarray, packed: np.ndarray, n: int, group: int, entries: str, isa: str = "", threads: int = 1) -> np.ndarray:
    y = np.full((len(x), n), 7.0, np.float32)
    call(generic(group, entries).matmul, [x, packed], [y], [n, x.shape[1], group], threads=threads, isa=isa)
    return y


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("entries", ENTRIES)
@settings(max_examples=20, deadline=None)
@given(st.integers(1, 20), st.integers(1, 4), GROUPS, st.booleans(), st.integers(0, 2**32 - 1))
def test_rows_decode_as_numpy_does(isa, entries, n, groups, group, scaled, seed):
    k = groups * group
    made = operands(np.random.default_rng(seed), n, k, group, entries, scaled)
    ids = np.array([[0, n - 1, -1], [n // 2, -n, n]], np.int64)
    out = np.full((2, 3, k), 7.0, np.float32)
    call(generic(group, entries).gather, [pack(made, group, entries, isa), ids], [out], [n, k, group], isa=isa)
    expected = np.concatenate([decoded(made, group), np.zeros((1, k), np.float32)])
    np.testing.assert_array_equal(out, expected[np.where(ids == n, n, ids % n)])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("entries", ENTRIES)
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 11), st.integers(1, 35), st.integers(0, 4), GROUPS, st.integers(0, 2**32 - 1))
def test_matmul_is_exact_to_rounding(isa, entries, m, n, groups, group, seed):
    rng, k = np.random.default_rng(seed), groups * group
    made = operands(rng, n, k, group, entries)
    x = rng.standard_normal((m, k)).astype(np.float32)
    y, weights = multiply(x, pack(made, group, entries, isa), n, group, entries, isa), decoded(made, group)
    assert (np.abs(y - oracle.matmul(x, weights)) <= oracle.magnitude(x, weights) * (k + 1) * 2.0**-24).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("entries", ENTRIES)
def test_a_row_is_the_same_bits_in_any_batch_and_with_any_threads(isa, entries):
    rng, m, n, k, group = np.random.default_rng(0), 67, 37, 192, 64
    made = operands(rng, n, k, group, entries)
    packed = pack(made, group, entries, isa)
    assert packed.tobytes() == pack(made, group, entries, "portable", threads=2).tobytes()
    x = rng.standard_normal((m, k)).astype(np.float32)
    whole = multiply(x, packed, n, group, entries, isa)
    assert whole.tobytes() == multiply(x, packed, n, group, entries, isa, threads=2).tobytes()
    for size in (1, 2, 3, 4, 5, 7):
        parts = [multiply(x[i : i + size], packed, n, group, entries, isa) for i in range(0, m, size)]
        assert whole.tobytes() == np.concatenate(parts).tobytes(), size


@pytest.mark.parametrize("isa", ISAS)
def test_nothing_beside_the_results_is_written(isa):
    rng, n, k = np.random.default_rng(1), 21, 64
    packed = pack(operands(rng, n, k, 32, ""), 32, "", isa)
    x, out = rng.standard_normal((6, k + 8)).astype(np.float32)[:, :k], np.full((6, n + 5), 7.0, np.float32)
    call("matmul_lut", [x, packed], [out[:, :n]], [n, k, 32], isa=isa)
    assert (out[:, n:] == 7.0).all()
    np.testing.assert_array_equal(out[:, :n], multiply(np.ascontiguousarray(x), packed, n, 32, "", isa))


@pytest.mark.parametrize("kernel", ["lut", "lut16", "lut32"])
@pytest.mark.parametrize(
    "n, k, group",
    [(8, 32, 0), (8, 32, -32), (8, 32, 16), (8, 96, 64), (-1, 32, 32), (8, -32, 32), (2**62, 2**62, 32), (2**40, 2**40, 2**20),
     (8, 0, 2**63 - 32), (8, 2**21, 2**21)],
)  # fmt: skip
def test_sizes_that_do_not_fit_or_wrap_are_refused(kernel, n, k, group):
    some = (0, 2, [2**62], [1])
    for name, inputs, output in [
        (f"pack_{kernel}", [some] * 4, some),
        (f"matmul_{kernel}", [(0, 1, [1, 32], [32, 1]), some], (0, 1, [1, 1], [1, 1])),
        (f"gather_{kernel}", [some, (0, 7, [1], [1])], (0, 1, [1, 1], [1, 1])),
    ]:
        with pytest.raises(ValueError, match=r"no such layout|expected"):
            _native.run_kernel(name, inputs, [output], [n, k, group])


def test_operands_that_do_not_fit_are_refused():
    made = operands(np.random.default_rng(2), 4, 64, 32, "")
    packed = np.zeros(generic(32, "").nbytes(4, 64), np.uint8)
    for change in [
        {"codes": made.codes[:, :63]}, {"codes": made.codes.view(np.int8)}, {"codes": np.asfortranarray(made.codes)},
        {"table": made.table[:15]}, {"table": np.zeros((4, 2, 16), np.float32)}, {"table": made.table.astype(np.float64)},
        {"scale": made.scale[:, :1]}, {"minimum": made.minimum.astype(np.float16)}, {"codes": None}, {"table": None},
    ]:  # fmt: skip
        with pytest.raises(ValueError, match="expected"):
            call("pack_lut", list(made._replace(**change)), [packed], [4, 64, 32])
    with pytest.raises(ValueError, match="expected"):
        call("pack_lut", list(made), [packed[:-1]], [4, 64, 32])
    with pytest.raises(ValueError, match=r"FLOAT \[4, 2, 16\]"):
        call("pack_lut16", list(made), [np.zeros(generic(32, "FLOAT16").nbytes(4, 64), np.uint8)], [4, 64, 32])
