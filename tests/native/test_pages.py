import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenonnx.layouts.pages import DESCRIPTOR, page_kind
from tenonnx.structs.formats_pages import PAGE_FORMATS, page_format
from tests.native.kernels import ISAS, call
from tests.oracle import attention as attention_oracle
from tests.oracle import pages as oracle

isas = pytest.mark.parametrize("isa", ISAS)
HEAD_SIZES = (32, 64, 80, 96, 128, 256)
PAGE_SIZES = (1, 16, 17, 64, 256)
F32 = (0, 1)


def formats_for(size):
    """Names of the page formats whose blocks divide a row."""
    return [name for name in PAGE_FORMATS if size % 32 == 0 or name not in ("Q8_0", "Q4_0", "MXFP4")]


def rows_of(seed, count, size):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, size)) * np.exp2(rng.integers(-6, 7, size=(count, 1))) + rng.normal(size=(count, 1))
    return x.astype(np.float32)


def encode(x, fmt, isa="", threads=1):
    rows, size = x.shape
    out = np.zeros(fmt.blocks(x.shape) * fmt.nbytes, np.uint8)
    call("recode_page", [x.view(np.uint8).reshape(-1)], [out], [*F32, *page_kind(fmt), rows, size], threads=threads, isa=isa)
    return out


def decode(payload, fmt, shape, isa=""):
    rows, size = int(np.prod(shape[:-1])), shape[-1]
    out = np.zeros(shape, np.float32)
    call("recode_page", [payload], [out.reshape(-1).view(np.uint8)], [*page_kind(fmt), *F32, rows, size], isa=isa)
    return out


@isas
@pytest.mark.parametrize("size", (8, 16, 48, *HEAD_SIZES))
def test_rows_are_encoded_as_the_formats_own_encoder_does(size, isa):
    x = rows_of(size, 37, size)
    x[3], x[4, ::2], x[5] = 0, 0, -1.5
    for name in formats_for(size):
        fmt = page_format(name, size)
        assert np.array_equal(encode(x, fmt, isa), fmt.encode(x)), name


@isas
@pytest.mark.parametrize("size", (8, 16, *HEAD_SIZES))
def test_rows_are_decoded_as_float64_formulas_say(size, isa):
    rng = np.random.default_rng(size)
    for name in ("FP8_PAGE", "INT8_PAGE", "INT4_PAGE", "INT2_PAGE"):
        fmt = page_format(name, size)
        payload = rng.integers(0, 256, 23 * size // fmt.elements * fmt.nbytes, np.uint8)
        for at in (0, 2):  # scales that are finite
            payload.reshape(-1, fmt.nbytes)[:, at + 1] &= 0x3F if at == 0 or name != "FP8_PAGE" else 0xFF
        expected = oracle.decoded(name, fmt.elements, payload.tobytes(), size)
        found = decode(payload, fmt, (23, size), isa)
        np.testing.assert_allclose(found, expected, rtol=2e-7, atol=1e-30, err_msg=name)


@pytest.mark.parametrize("size", HEAD_SIZES)
def test_what_an_encoder_loses_is_within_the_formats_resolution(size):
    x = rows_of(size, 101, size)
    for name in ("FP8_PAGE", "INT8_PAGE", "INT4_PAGE", "INT2_PAGE"):
        fmt = page_format(name, size)
        off = np.abs(decode(encode(x, fmt), fmt, x.shape).astype(np.float64) - x)
        assert (off <= oracle.largest_error(name, fmt.elements, x)).all(), name


@isas
def test_values_that_are_not_finite_end_as_some_page_and_harm_no_other_row(isa):
    x = rows_of(1, 6, 64)
    x[1, 5], x[2, 6], x[3, 7], x[4, 8] = np.nan, np.inf, -np.inf, 3e38
    for name in PAGE_FORMATS:
        fmt = page_format(name, 64)
        payload = encode(x, fmt, isa)
        rows = payload.reshape(6, -1)
        for row in (0, 5):
            assert np.array_equal(rows[row], encode(x[row : row + 1], fmt, isa)), name
        if name in ("INT8_PAGE", "INT4_PAGE", "INT2_PAGE"):
            assert np.isfinite(decode(payload, fmt, (6, 64), isa)).all(), name


@pytest.mark.parametrize("name", PAGE_FORMATS)
def test_a_payload_read_and_written_again_in_its_own_format_keeps_its_values(name):
    fmt = page_format(name, 96)
    x = rows_of(4, 20, 96)
    payload = encode(x, fmt)
    before = decode(payload, fmt, x.shape)
    call("recode_page", [payload], [payload], [*page_kind(fmt), *page_kind(fmt), 20, 96])
    np.testing.assert_allclose(decode(payload, fmt, x.shape), before, rtol=0.13, atol=np.abs(before).max() * 0.1)


class Table:
    """Pages of mixed formats, filled from a float tensor [pages, rows of a page, size]."""

    def __init__(self, content, names):
        size = content.shape[-1]
        self.payloads = [
            encode(rows.astype(np.float32), page_format(name, size)) for rows, name in zip(content, names, strict=True)
        ]
        self.array = np.zeros((len(names) + 2, DESCRIPTOR), np.int64)
        self.values = np.zeros(content.shape)
        for place, (payload, name) in enumerate(zip(self.payloads, names, strict=True)):
            fmt = page_format(name, size)
            self.array[place] = payload.ctypes.data, *page_kind(fmt), payload.size
            self.values[place] = decode(payload, fmt, content.shape[1:])


@st.composite
def paged(draw):
    page, head = draw(st.sampled_from(PAGE_SIZES)), draw(st.sampled_from(HEAD_SIZES))
    stacked = draw(st.booleans())
    value = head if stacked else draw(st.sampled_from(HEAD_SIZES))
    heads, group, batch = draw(st.integers(1, 2)), draw(st.integers(1, 4)), draw(st.integers(1, 2))
    n = draw(st.sampled_from([1, 2, 5, 20]))
    count = draw(st.integers(1, 4 if page > 16 else 20))
    total = count + 1
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    rows = heads * page * (2 if stacked else 1)
    names = [[draw(st.sampled_from(formats_for(size))) for _ in range(total)] for size in (head, value)]
    k = Table(rng.normal(size=(total, rows, head)), names[0])
    v = None if stacked else Table(rng.normal(size=(total, rows, value)), names[1])
    table = np.stack([rng.permutation(total)[:count] for _ in range(batch)]).astype(np.int64)
    lengths = np.array([draw(st.integers(0, count * page)) for _ in range(batch)], np.int64)
    q = rng.normal(size=(batch, heads * group, n, head)).astype(np.float32)
    return q, k, v, table, lengths, page, heads, value, draw(st.booleans()), draw(st.sampled_from([-1, -1, 0, 7]))


def dense(values, table, heads, page, half=None):
    """[batch, heads, capacity, size] of the pages that each sequence names."""
    size = values.shape[-1]
    grid = values.reshape(len(values), -1, heads, page, size)[:, half or 0]
    return np.stack([np.concatenate(grid[ids], axis=1) for ids in table])


def run_paged(q, k, v, table, lengths, page, heads, value, causal, window, scale, split, isa, threads=1):
    ints, floats = [int(causal), window, page, heads, value], [scale, 0.0]
    y = np.full((*q.shape[:3], value), np.nan, np.float32)
    inputs = [q, k, table, lengths, v]
    if not split:
        call("paged_attention", inputs, [y], ints, floats, threads, isa)
        return y
    chunk = page if page >= 128 else 128 // page * page
    capacity = table.shape[1] * page
    workspace = np.full(q.shape[0] * q.shape[1] * q.shape[2] * -(-capacity // chunk) * (value + 2), np.nan, np.float32)
    call("paged_attention_partial", inputs, [workspace.view(np.uint8)], ints, floats, threads, isa)
    call("paged_attention_combine", [workspace.view(np.uint8), lengths], [y], [capacity, chunk], [], threads, isa)
    return y


@pytest.mark.parametrize("split", [False, True])
@isas
@given(problem=paged())
def test_attention_over_pages_is_attention_over_what_they_decode_to(isa, split, problem):
    q, k, v, table, lengths, page, heads, value, causal, window = problem
    scale = q.shape[-1] ** -0.5
    keys = dense(k.values, table, heads, page)
    values = dense(k.values, table, heads, page, 1) if v is None else dense(v.values, table, heads, page)
    expected = attention_oracle.attention(q, keys, values, None, lengths, causal, window, scale)
    args = (q, k.array, None if v is None else v.array, table, lengths, page, heads, value, causal, window, scale, split, isa)
    found = run_paged(*args)
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)
    assert np.array_equal(found, run_paged(*args, threads=3))


@pytest.mark.parametrize("split", [False, True])
def test_ids_lengths_and_descriptors_changed_after_the_check_read_nothing_they_should_not(split):
    rng = np.random.default_rng(0)
    k = Table(rng.normal(size=(3, 32, 64)), ["INT8_PAGE", "F16", "INT4_PAGE"])
    q = rng.normal(size=(1, 4, 1, 64)).astype(np.float32)
    for table in ([[-1, 2**62, 4]], [[3, 4, 0]]):
        for length in (48, -5, 2**63 - 1):
            args = (np.array(table, np.int64), np.array([length], np.int64), 16, 2, 64, True, -1, 0.1, split, "")
            assert np.isfinite(run_paged(q, k.array, k.array, *args)).all()
    for column, value in ((1, 99), (1, -1), (2, 0), (2, 7), (3, 5), (3, -1)):
        broken = k.array.copy()
        broken[0, column] = value
        args = (np.array([[0, 1]], np.int64), np.array([32], np.int64), 16, 2, 64, True, -1, 0.1, split, "")
        assert np.isfinite(run_paged(q, broken, broken, *args)).all()


@isas
@given(
    st.sampled_from(PAGE_SIZES), st.sampled_from([32, 80]), st.sampled_from([np.float32, np.float16]), st.integers(0, 99),
    st.integers(0, 40),
)  # fmt: skip
def test_rows_flow_through_the_pages_named_and_touch_no_other_byte(isa, page, size, dtype, seed, n):
    rng = np.random.default_rng(seed)
    position = int(rng.integers(0, page))
    count = max(1, -(-(position + n) // page))
    names = rng.choice(formats_for(size), count + 1)
    content = rng.normal(size=(count + 1, 3 * page, size))
    table = Table(content, names)
    before = [payload.copy() for payload in table.payloads]
    ids = rng.permutation(count + 1)[:count].astype(np.int64)
    values = rng.normal(size=(3, n, size)).astype(dtype)
    call("paged_update", [table.array, ids, values, np.array(position, np.int64)], [table.array], [page], threads=2, isa=isa)
    for place in range(count + 1):
        fmt = page_format(names[place], size)
        expected = before[place].reshape(3, page, -1).copy()
        if place in ids:
            order = int(np.flatnonzero(ids == place)[0])
            for token in range(page):
                i = order * page + token - position
                if 0 <= i < n:
                    expected[:, token] = fmt.encode(values[:, i].astype(np.float32)).reshape(3, -1)
        assert np.array_equal(table.payloads[place].reshape(3, page, -1), expected), names[place]


@pytest.mark.parametrize("ids", [[0, 5], [-1, 0], [2**62], [1]])
@pytest.mark.parametrize("position", [-1, 0, 3, 2**63 - 1, -(2**63)])
def test_an_update_whose_pages_or_place_do_not_fit_writes_only_what_does(ids, position):
    table = Table(np.zeros((2, 8, 32)), ["F16", "INT8_PAGE"])
    guard = [payload.copy() for payload in table.payloads]
    ids, at = np.array(ids, np.int64), np.array(position, np.int64)
    values = np.ones((2, 9, 32), np.float32)
    fault = call("check_paged_update", [table.array, ids, at], [], [9, 4, 8, 32])
    call("paged_update", [table.array, ids, values, at], [table.array], [4])
    assert fault is not None
    if position < 0 or position >= 4 * len(ids):
        assert all(np.array_equal(a, b) for a, b in zip(guard, table.payloads, strict=True))


def test_checks_name_the_page_the_rows_and_the_length():
    table = Table(np.zeros((2, 8, 32)), ["F16", "INT8_PAGE"])
    ints = [3, 4, 8, 32]

    def check(ids, position, ints=ints):
        return call("check_paged_update", [table.array, np.array(ids, np.int64), np.array(position, np.int64)], [], ints)

    assert check([0], 1) is None and check(1, 0) is None and check([1, 0], 3) is None and check([1, 7], 0) is None
    assert check([0], 2)[0] == 4 and check([0], -1)[0] == 4 and check([0, 1], 4)[0] == 4
    assert check([3, 0], 0)[:2] == (3, 3) and check([0], 0, [3, 4, 8, 64])[:2] == (3, 0)

    def check_table(ids, length):
        return call("check_page_table", [table.array, np.array([ids], np.int64), np.array([length], np.int64)], [], [4, 8, 32])

    assert check_table([0, 1], 8) is None and check_table([0, -1], 4) is None and check_table([], 0) is None
    assert check_table([0, -1], 5)[:2] == (3, -1) and check_table([0, 1], 9)[:2] == (5, 9) and check_table([0], -1)[0] == 5
