"""Products by several weights at once, with what is added to them or gates them: the bits of the steps that they replace."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenonnx.layouts import quantized_row_bytes
from tests.native.kernels import ISAS, call
from tests.native.packed import FORMATS, QUANTIZED, elements, layout, multiply, pack, quantize, random_blocks
from tests.native.test_lookup import ENTRIES, operands
from tests.native.test_lookup import multiply as multiply_generic
from tests.native.test_lookup import pack as pack_generic

TOKENS = st.sampled_from([0, 1, 2, 15, 16, 17, 33, 64, 65, 131])
ROWS = st.sampled_from([1, 7, 8, 9, 16, 31, 33])


def swish(x: np.ndarray, alpha: float) -> np.ndarray:
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-alpha * x.astype(np.float64)))


class Weights:
    """Some weights [N, K] of one layout, and the products that their kernel makes one by one."""

    def __init__(self, seed: int, format_name: str, m: int, rows: list[int], isa: str) -> None:
        rng = np.random.default_rng(seed)
        k = 2 * elements(format_name) if format_name in QUANTIZED else 37
        self.kernel, self.rows, self.k, self.extra = layout(format_name).matmul, rows, k, ()
        plain = rng.standard_normal((m, k)).astype(np.float32)
        self.x = quantize(plain, isa) if format_name in QUANTIZED else plain
        self.packed = [pack(format_name, random_blocks(rng, format_name, n, k), k) for n in rows]
        products = [multiply(format_name, self.x, w, n, k, isa) for w, n in zip(self.packed, rows, strict=True)]
        self.products, self.rng = products, rng


class GenericWeights(Weights):
    """Those of a generic layout."""

    def __init__(self, seed: int, entries: str, m: int, rows: list[int], isa: str) -> None:
        self.rng = rng = np.random.default_rng(seed)
        group, self.k, self.rows = 64, 128, rows
        self.kernel, self.extra = {"": "matmul_lut", "FLOAT16": "matmul_lut16", "FLOAT": "matmul_lut32"}[entries], (group,)
        self.x = rng.standard_normal((m, self.k)).astype(np.float32)
        self.packed = [pack_generic(operands(rng, n, self.k, group, entries), group, entries, isa) for n in rows]
        self.products = [multiply_generic(self.x, w, n, group, entries, isa) for w, n in zip(self.packed, rows, strict=True)]


def weights(seed: int, kind: str, m: int, rows: list[int], isa: str) -> Weights:
    return (Weights if kind in FORMATS else GenericWeights)(seed, kind, m, rows, isa)


KINDS = pytest.mark.parametrize("kind", [*FORMATS, *ENTRIES])
EACH_ISA = pytest.mark.parametrize("isa", ISAS)
SETTINGS = settings(max_examples=12, deadline=None)


@EACH_ISA
@KINDS
@SETTINGS
@given(TOKENS, st.lists(ROWS, min_size=1, max_size=4), st.data())
def test_several_products_are_those_of_each(isa, kind, m, rows, data):
    made = weights(1, kind, m, rows, isa)
    added = data.draw(st.lists(st.sampled_from(["", "rows", "bias"]), min_size=len(rows), max_size=len(rows)))
    addends = [None if how == "" else made.rng.standard_normal((m if how == "rows" else 1, n)).astype(np.float32)
               for how, n in zip(added, rows, strict=True)]  # fmt: skip
    addends = [None if a is None else np.broadcast_to(a, (m, a.shape[1])) for a in addends]
    outputs = [np.full((m, n + 3), 7, np.float32) for n in rows]
    inputs = [made.x, *made.packed, *(addends if any(a is not None for a in addends) else [])]
    ints = [rows[0], made.k, *made.extra, *rows[1:]]
    call(
        made.kernel, inputs, [y[:, : y.shape[1] - 3] for y in outputs], ints, threads=data.draw(st.sampled_from([1, 2])), isa=isa
    )
    for y, product, addend in zip(outputs, made.products, addends, strict=True):
        expected = product if addend is None else addend + product
        assert y[:, :-3].tobytes() == expected.tobytes()
        assert (y[:, -3:] == 7).all()


@EACH_ISA
@KINDS
@SETTINGS
@given(TOKENS, ROWS)
def test_a_sum_may_take_the_place_of_what_is_added(isa, kind, m, n):
    made = weights(2, kind, m, [n], isa)
    y = made.rng.standard_normal((m, n)).astype(np.float32)
    expected = y + made.products[0]
    call(made.kernel, [made.x, made.packed[0], y], [y], [n, made.k, *made.extra], threads=2, isa=isa)
    assert y.tobytes() == expected.tobytes()


@EACH_ISA
@KINDS
@SETTINGS
@given(TOKENS, ROWS, st.sampled_from([1.0, 1.702, -0.5]))
def test_a_gate_is_that_of_the_single_steps(isa, kind, m, n, alpha):
    made = weights(3, kind, m, [n, n], isa)
    gate, up = made.products
    y, expected = np.full((m, n), 7, np.float32), np.zeros((m, n), np.float32)
    call("swish_mul", [gate, up], [expected], floats=[alpha], isa=isa)
    call(made.kernel, [made.x, *made.packed], [y], [n, made.k, *made.extra, n], [alpha], threads=2, isa=isa)
    assert y.tobytes() == expected.tobytes()
    exact, largest = swish(gate, alpha) * up, np.abs(gate.astype(np.float64) * up)
    assert (np.abs(y - exact) <= 2e-5 * np.abs(exact) + 1e-30 * largest + 1e-40).all()


X, W, Y = np.zeros((3, quantized_row_bytes(64)), np.uint8), np.zeros(320, np.uint8), np.zeros((3, 8), np.float32)


@pytest.mark.parametrize(
    "inputs, outputs, ints, floats, text",
    [
        ([X, W, W], [Y], [8, 64], [], "addend: expected"),
        ([X, W, W], [Y], [8, 64, 8], [], "expects x, weights"),
        ([X, W, W], [Y, Y], [8, 64, 7], [], "y: expected"),
        ([X, W, W[:319]], [Y, Y], [8, 64, 8], [], "expected 320 bytes"),
        ([X, W, W, Y], [Y, Y], [8, 64, 8], [], "expects x, weights"),
        ([X, W, W, Y, Y[:2]], [Y, Y], [8, 64, 8], [], "addend: expected"),
        ([X, W, Y.astype(np.float64)], [Y], [8, 64], [], "addend: expected"),
        ([X, W, Y.T], [Y], [8, 64], [], "addend: expected"),
        ([X, W], [Y], [8, 64], [1.0], "a gate takes two"),
        ([X, W, W], [Y], [8, 64, 7], [1.0], "a gate takes two"),
        ([X, W, W, Y, Y], [Y], [8, 64, 8], [1.0], "a gate takes two"),
        ([X, W, W], [Y], [8, 64, 8], [1.0, 1.0], "expects x, weights"),
        ([X, W, W], [Y, Y], [8, 64, -8], [], "no such layout"),
        ([X, W], [Y], [8], [], "expects x, weights"),
    ],
)
def test_what_does_not_fit_is_refused(inputs, outputs, ints, floats, text):
    with pytest.raises(ValueError, match=text):
        call("matmul_q4m", inputs, outputs, ints, floats)


@EACH_ISA
@SETTINGS
@given(st.integers(0, 70), st.integers(0, 20), st.booleans(), st.integers(0, 2**32 - 1))
def test_norms_in_8_bit_rows_are_those_of_two_steps(isa, rows, blocks, residual, seed):
    k, rng = 32 * blocks, np.random.default_rng(seed)
    x, other, before = rng.standard_normal((3, rows, k)).astype(np.float32)
    scale = before[0] if rows else np.zeros(k, np.float32)
    more = [other] if residual else []
    totals = [np.zeros_like(x) for _ in range(2 * residual)]
    plain, expected = np.zeros_like(x), np.zeros((rows, quantized_row_bytes(k)), np.uint8)
    call("rms_norm", [x, scale, *more], [plain, *totals[:1]], floats=[1e-5], isa=isa)
    call("quantize_rows", [plain], [expected], isa=isa)
    y = np.full_like(expected, 7)
    call("rms_norm_rows", [x, scale, *more], [y, *totals[1:]], floats=[1e-5], threads=2, isa=isa)
    assert y.tobytes() == expected.tobytes()
    assert not residual or totals[0].tobytes() == totals[1].tobytes()


@EACH_ISA
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_keys_rotated_into_a_cache_are_those_of_two_steps(isa, data):
    b, heads, n = (data.draw(st.integers(1, 4)) for _ in range(3))
    head = data.draw(st.sampled_from([2, 6, 16, 30, 64, 512]))
    rotary_dim = data.draw(st.sampled_from([0, 2, head]))
    interleaved, ragged = data.draw(st.booleans()), data.draw(st.booleans())
    kind = data.draw(st.sampled_from([np.float16, np.float32]))
    capacity = n + data.draw(st.integers(0, 5))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = rng.standard_normal((b, n, heads, head)).astype(np.float32).transpose(0, 2, 1, 3)
    cos, sin = rng.standard_normal((2, b, n, (rotary_dim or head) // 2)).astype(np.float32)
    # Where another thread has changed a position after its check, nothing is written.
    position = rng.integers(-1, capacity - n + 2, b if ragged else ())
    cache, expected = (np.full((b, heads, capacity, head), 7, kind) for _ in range(2))
    rotated = np.zeros((b, heads, n, head), np.float32)
    call("rotary", [x, cos, sin], [rotated], [int(interleaved), heads, rotary_dim], isa=isa)
    call("cache_update", [expected, rotated, position], [expected], [2, 0], isa=isa)
    call("rotary_update", [cache, x, position, cos, sin], [cache], [2, 0, int(interleaved), rotary_dim], threads=2, isa=isa)
    assert cache.tobytes() == expected.tobytes()


KEYS, TABLE, P = np.zeros((2, 3, 5, 8), np.float32), np.zeros((2, 5, 4), np.float32), np.array(0)
CACHE = np.zeros((2, 3, 9, 8), np.float16)


@pytest.mark.parametrize(
    "inputs, ints, text",
    [
        ([CACHE, KEYS[:, :2], P, TABLE, TABLE], [2, 0, 0, 0], "they may differ along axis 2"),
        ([CACHE, KEYS.transpose(0, 1, 3, 2), P, TABLE, TABLE], [2, 0, 0, 0], "they may differ along axis 2"),
        ([CACHE, KEYS.astype(np.float64), P, TABLE, TABLE], [2, 0, 0, 0], "expected FLOAT of unit stride"),
        ([CACHE.astype(np.int32), KEYS, P, TABLE, TABLE], [2, 0, 0, 0], "the cache is"),
        ([CACHE, KEYS, P, TABLE, TABLE], [1, 0, 0, 0], "they may differ along axis 1"),
        ([CACHE, KEYS, np.zeros(3, np.int64), TABLE, TABLE], [2, 0, 0, 0], "position is"),
        ([CACHE, KEYS, P, TABLE[:, :4], TABLE], [2, 0, 0, 0], "cosines or sines"),
        ([CACHE, KEYS, P, TABLE, TABLE], [2, 0, 0, 10], "rotary_dim 10"),
        ([CACHE, KEYS, P, TABLE], [2, 0, 0, 0], "4 inputs"),
        ([np.zeros((1, 1, 9, 514), np.float16), np.zeros((1, 1, 5, 514), np.float32), P, TABLE, TABLE], [2, 0, 0, 2], "most 512"),
    ],
)  # fmt: skip
def test_keys_that_do_not_fit_the_cache_are_refused(inputs, ints, text):
    with pytest.raises(ValueError, match=text):
        call("rotary_update", inputs, [inputs[0]], ints)


@pytest.mark.parametrize(
    "x, scale, y, text",
    [
        (np.zeros((3, 48), np.float32), np.zeros(48, np.float32), np.zeros((3, 72), np.uint8), "multiple of 32"),
        (np.zeros((3, 64), np.float32), np.zeros(64, np.float32), np.zeros((3, 95), np.uint8), r"expected UINT8\[3,96\]"),
        (np.zeros((3, 64), np.float32), np.zeros(32, np.float32), np.zeros((3, 96), np.uint8), "scale is"),
        (np.zeros((3, 64), np.float32), np.zeros(64, np.float32), np.zeros((2, 96), np.uint8), r"expected UINT8\[3,96\]"),
        (np.zeros((3, 64), np.float32), np.zeros(64, np.float32), np.zeros((3, 96), np.int8), r"expected UINT8\[3,96\]"),
    ],
)
def test_norms_that_do_not_fit_their_rows_are_refused(x, scale, y, text):
    with pytest.raises(ValueError, match=text):
        call("rms_norm_rows", [x, scale], [y], floats=[1e-5])
