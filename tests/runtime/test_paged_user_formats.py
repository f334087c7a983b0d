"""Page formats that a model declares with their encoder: rows are written through it, a page in one go, as NumPy says."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from tenonnx import ModelProto, check, codecs, errors, writable
from tenonnx.cache import PageSpec, PageTable, Uniform
from tenonnx.layouts.pages import page_kind
from tenonnx.runtime import Session, ledger
from tenonnx.structs import Format, declare, f16, i8, structure
from tenonnx.structs.catalogue import catalogue
from tenonnx.structs.formats_pages import page_format
from tenonnx.structs.quantizations import Quantizations, declare_quantization
from tests.runtime.paged_models import FLOAT16, model, rows, updating

DIMS = (2, 3, 5, 32)
BLOCK = structure("OWN_16", d=f16, q=i8[16])
DECODER = """(d, q) => (y) {
    axes = Constant<value_ints = [1]>()
    wide = Cast<to = 1>(d)
    scale = Unsqueeze(wide, axes)
    codes = Cast<to = 1>(q)
    y = Mul(scale, codes)
}"""
ENCODER = """(x) => (d, q) {
    axes = Constant<value_ints = [1]>()
    size = Abs(x)
    top = ReduceMax<keepdims = 1>(size, axes)
    largest = Constant<value_float = 127.0>()
    least = Constant<value_float = 0.001>()
    exact = Div(top, largest)
    some = Max(exact, least)
    half = Cast<to = 10>(some)
    d = Squeeze(half, axes)
    scale = Cast<to = 1>(half)
    steps = Div(x, scale)
    whole = Round(steps)
    q = Cast<to = 3>(whole)
}"""
MINE = Format("OWN_16", BLOCK, (16,), DECODER, ENCODER)


def oracle(values):
    """UINT8[..., 18 for each 16 elements]: the bytes by a formula in NumPy."""
    blocks = np.asarray(values, np.float32).reshape(*values.shape[:-1], -1, 16)
    scale = np.maximum(np.abs(blocks).max(-1, keepdims=True) / np.float32(127), np.float32(0.001)).astype(np.float16)
    codes = np.rint(blocks / scale.astype(np.float32)).astype(np.int8)
    return np.concatenate([scale.view(np.uint8), codes.view(np.uint8)], axis=-1).reshape(*values.shape[:-1], -1)


def declaring(format=MINE):
    """A model that admits one format alone, as it is read from a file."""
    made = model()
    index = declare_quantization(made, format, FLOAT16)
    return ModelProto.FromString(updating(DIMS, allowed=[index], made=made).SerializeToString())


def table_of(made, count, seed=0):
    """A table that was read from a message, so that its formats are not the session's own objects."""
    table = PageTable(PageSpec(FLOAT16, DIMS), MINE)
    for number in range(count):
        table.create(number).encode(np.random.default_rng(seed + number).normal(size=DIMS))
    declared = Quantizations(made)[0]
    return PageTable.from_proto(table.to_proto(made), made, new_format=declared, allowed=[declared])


def feeds(table, page_id, position, values):
    ids, place = np.array(page_id, np.int64), np.array(position, np.int64)
    return {"cache": writable(table), "page_id": ids, "position": place, "values": values}


def new_rows(n, seed=9):
    return rows(np.random.default_rng(seed), *DIMS[:2], n, DIMS[-1])


def test_an_encoder_in_onnx_gives_the_bytes_of_the_formula():
    values = np.random.default_rng(0).normal(size=(7, 48)).astype(np.float32)
    assert np.array_equal(MINE.encode(values), oracle(values).reshape(-1))


def test_a_declared_quantization_keeps_its_encoder_and_is_sound():
    made = declaring()
    assert check(made) == []
    values = new_rows(3)
    assert np.array_equal(Quantizations(made)[0].encode(values), oracle(values).reshape(-1))


def test_rows_are_written_by_the_declared_encoder_and_nothing_beside_them():
    made = declaring()
    session, table, values = Session(made), table_of(made, 3), new_rows(6)
    where, expected = [page.address for page in table], [page.data.reshape(6, 5, -1).copy() for page in table]
    allocated = ledger()["page"]["allocations"]
    session.run(feeds(table, [2, 0], 4, values))
    expected[2][:, 4:] = oracle(values[:, :, :1]).reshape(6, 1, -1)
    expected[0][:, :5] = oracle(values[:, :, 1:6]).reshape(6, 5, -1)
    with pytest.raises(errors.CapacityError, match="pass the 2 pages"):
        session.run(feeds(table, [2, 0], 4, new_rows(7)))
    assert all(np.array_equal(a, b.data.reshape(6, 5, -1)) for a, b in zip(expected, table, strict=True))
    assert [page.address for page in table] == where and ledger()["page"]["allocations"] == allocated


def test_an_encoder_runs_once_for_each_page_and_not_for_each_row(monkeypatch):
    made = declaring()
    session, table, sizes, run = Session(made), table_of(made, 3), [], ReferenceEvaluator.run

    def counting(self, names, given, **options):
        sizes.extend(value.shape for name, value in given.items() if name == "x")
        return run(self, names, given, **options)

    monkeypatch.setattr(ReferenceEvaluator, "run", counting)
    session.run(feeds(table, [0, 1, 2], 0, new_rows(15)))
    assert sizes == [(6 * 5 * 2, 16)] * 3


def test_pages_that_a_cache_of_the_session_makes_have_the_declared_format(tmp_path):
    session = Session(declaring())
    cache, values = session.new_cache(100, Uniform("OWN_16")), new_rows(13)
    for begin, end in ((0, 6), (6, 7), (7, 13)):
        session.run({"values": values[:, :, begin:end]}, cache=cache)
    assert cache.page_formats() == [{"cache": "OWN_16"}] * 3
    table = cache.pool.tables["cache"]
    held = np.concatenate([table[page].data.reshape(6, 5, -1) for page in cache.pages], axis=1)[:, :13]
    assert np.array_equal(held, oracle(values).reshape(6, 13, -1))
    cache.save(tmp_path / "c")
    other = session.new_cache(100, Uniform("OWN_16"))
    other.load(tmp_path / "c")
    assert other.length == 13 and other.page_formats() == cache.page_formats()


def test_a_declared_format_without_an_encoder_takes_whole_pages_alone_and_nothing_is_written():
    made = declaring(Format("OWN_16", BLOCK, (16,), DECODER))
    table = table_of(made, 1)
    before = table[0].data.copy()
    with pytest.raises(errors.PageError, match="page 0 has format OWN_16, written by whole pages alone; requantize it"):
        Session(made).run(feeds(table, [0], 0, new_rows(1)))
    assert np.array_equal(table[0].data, before)


def test_an_encoder_that_fails_leaves_pages_as_they_were_and_makes_none():
    broken = ENCODER.replace("whole = Round(steps)", "s = Constant<value_ints = [7]>()\n whole = Reshape(steps, s)")
    made = declaring(Format("OWN_16", BLOCK, (16,), DECODER, broken))
    table = table_of(made, 1)
    before = table[0].data.copy()
    with pytest.raises(errors.UnsupportedError, match="encoder 'OWN_16_encode': fails for FLOAT"):
        Session(made).run(feeds(table, [0, 1], 4, new_rows(2)))
    assert len(table) == 1 and np.array_equal(table[0].data, before)


@pytest.mark.parametrize("shape, block_shape", [((4, 32), (16,)), ((3, 8, 6), (8, 2)), ((2, 2, 4, 4), (2, 2, 4))])
def test_a_tensors_declared_encoder_gives_the_formats_bytes_for_blocks_over_any_axes(shape, block_shape):
    axes = ", ".join(str(axis) for axis in range(1, 1 + len(block_shape)))
    flat = "steps = Div(x, scale)\n flat = Constant<value_ints = [-1, 16]>()\n rows = Reshape(steps, flat)\n whole = Round(rows)"
    encoder = ENCODER.replace("value_ints = [1]", f"value_ints = [{axes}]").replace(
        "steps = Div(x, scale)\n    whole = Round(steps)", flat
    )
    tail = f"flat = Mul(s, c)\n to = Constant<value_ints = [-1, {str(block_shape)[1:-1].rstrip(',')}]>()\n y = Reshape(flat, to)"
    decoder = DECODER.replace("scale =", "s =").replace("codes =", "c =").replace("y = Mul(scale, codes)", tail)
    format = Format("ANY_16", BLOCK, block_shape, decoder, encoder)
    made = model()
    index = declare(made, format, shape)
    values = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    encoded = codecs.encode(values, index, made)
    assert np.array_equal(encoded, format.encode(values))
    np.testing.assert_allclose(format.decode(encoded, shape), values, atol=0.02)


def test_an_encoder_that_does_not_fit_its_leaves_is_named():
    with pytest.raises(errors.CheckError, match=r"encoder of BAD takes 1 inputs and gives 1 outputs; expected 1 and .* d, q"):
        declare_quantization(model(), Format("BAD", BLOCK, (16,), DECODER, "(x) => (d) { d = Neg(x) }"), FLOAT16)


def test_an_encoder_that_calls_no_function_of_the_model_is_a_finding():
    made = declaring()
    encoder = made.struct_types[made.quantizations[0].block_type].encoder
    encoder.output[:] = reversed(encoder.output)
    assert any("its encoder ends in no call of a function" in str(finding) for finding in check(made))
    del encoder.node[-1]
    assert any("its encoder ends in no call of a function" in str(finding) for finding in check(made))


@pytest.mark.parametrize("name", ["Q8_0", "F16", "INT8_PAGE", "FP8_PAGE_32", "INT4_PAGE_7"])
def test_a_users_format_with_the_name_of_a_kernels_goes_through_its_own_decoder(name):
    size = 7 if name.endswith("7") else 32
    mine = Format(
        name,
        structure(name, q=i8[size], d=f16),
        (size,),
        lambda x: x.d.astype(np.float32)[:, None] * x.q.astype(np.float32),
        lambda x: {"q": np.full(x.shape, 3, np.int8), "d": np.full(len(x), 0.5, np.float16)},
    )
    assert page_kind(mine) is None
    table = PageTable(PageSpec(FLOAT16, (1, 2, size)))
    page = table.create(0, mine)
    page.encode(np.zeros((1, 2, size), np.float32))
    assert np.array_equal(page.decode(), np.full((1, 2, size), 1.5))
    assert table.foreign == {0}
    own = page_format("INT8_PAGE" if name == "INT4_PAGE_7" else name.removesuffix("_32"), 32)
    assert page_kind(own) is not None and own is not mine


def test_the_catalogue_does_not_grow_by_what_models_declare():
    before = list(catalogue)
    _ = Session(declaring())
    assert list(catalogue) == before
