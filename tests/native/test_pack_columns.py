"""Plain matrices stored as their transpose: packed by parts, every element where the layout says, nothing past the end."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.native.kernels import ISAS, call

TYPES = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
GUARD = 0xA5


def kernel(format_name: str) -> str:
    return f"pack_{format_name.lower()}_from_{format_name}_columns"


def groups(matrix: np.ndarray) -> np.ndarray:
    """UINT8: groups of 8 rows, column by column, missing rows as zeros."""
    n, k = matrix.shape
    padded = np.zeros((-(-n // 8) * 8, k), matrix.dtype)
    padded[:n] = matrix
    return np.ascontiguousarray(padded.reshape(-1, 8, k).transpose(0, 2, 1)).view(np.uint8).reshape(-1)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("format_name", TYPES)
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 300), st.integers(1, 9), st.integers(1, 9), st.integers(1, 3))
@example(128, 3, 3, 2)
@example(136, 5, 2, 3)
@example(1, 1, 1, 1)
def test_the_parts_of_a_transpose_make_the_matrix(isa, format_name, n, k, part, threads):
    matrix = np.random.default_rng(n * k).integers(-99, 100, (n, k)).astype(TYPES[format_name])
    stored = np.ascontiguousarray(matrix.T)
    expected = groups(matrix)
    packed = np.full(expected.size + 64, GUARD, np.uint8)
    for first in range(0, k, part):
        rows = stored[first : first + part]
        source = np.ascontiguousarray(rows).view(np.uint8).reshape(-1)
        ints = [n, k, first, len(rows)]
        assert call(kernel(format_name), [source], [packed[: expected.size]], ints, isa=isa, threads=threads) is None
    np.testing.assert_array_equal(packed[: expected.size], expected)
    assert (packed[expected.size :] == GUARD).all()


@pytest.mark.parametrize(
    "ints, message",
    [
        ([9, 4, 0, 3], "source"),
        ([9, 4, 3, 2], "not in a matrix of 4"),
        ([9, 4, -1, 2], "not in a matrix of 4"),
        ([9, 4, 0, -2], "source"),
        ([9, 5, 0, 2], "packed"),
        ([-9, 4, 0, 2], "packed"),
        ([9, 4, 2**62, 2], "not in a matrix of 4"),
        ([9, 4, 0], "3 ints|ints"),
    ],
)
def test_parts_that_do_not_fit_are_refused(ints, message):
    source, packed = np.zeros(9 * 2 * 4, np.uint8), np.zeros(2 * 4 * 32, np.uint8)
    with pytest.raises(ValueError, match=message):
        call(kernel("F32"), [source], [packed], ints)
