"""READ_ONLY tables of pages: PagedAttention reads them, nothing writes them, and no run that would change them goes beside."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from tenonnx import errors, writable
from tenonnx.cache import PageSpec, PageTable, Uniform, owned
from tenonnx.runtime import Session, ledger
from tenonnx.structs import Format, f16, i8, structure
from tenonnx.structs.quantizations import declare_quantization
from tests.oracle.attention import attention
from tests.runtime.paged_models import FLOAT, INT64, attending, model, pages, rows, tensor, updating

KV_HEADS, TOKENS, HEAD = 2, 4, 32
DIMS = (KV_HEADS, TOKENS, HEAD)
FORMATS = ("F32", "F16", "BF16", "FP8_PAGE", "INT8_PAGE", "INT4_PAGE", "INT2_PAGE", "Q8_0", "Q4_0", "MXFP4")


def add_reader(made, k="k", v="v", prefix="", q="q", **options):
    """Attention of 4 heads over two READ_ONLY tables."""
    graph = made.graph
    for name in (k, v):
        pages(graph.input, name, DIMS, **options)
    tensor(graph.input, f"{prefix}page_table", INT64, [1, "read"])
    tensor(graph.input, f"{prefix}lengths", INT64, [1])
    graph.node.add(
        op_type="PagedAttention",
        domain="tenonnx",
        name=f"{prefix}read",
        input=[q, k, v, f"{prefix}page_table", f"{prefix}lengths"],
        output=[f"{prefix}y"],
    )
    tensor(graph.output, f"{prefix}y", FLOAT, [1, 4, "n", HEAD])
    return made


def reading(**options):
    made = model()
    tensor(made.graph.input, "q", FLOAT, [1, 4, "n", HEAD])
    return add_reader(made, **options)


def table_of(*formats, seed=0):
    table = PageTable(PageSpec(10, DIMS))
    for number, name in enumerate(formats):
        table.create(number, name).encode(np.random.default_rng(seed + number).normal(size=DIMS))
    return table


def feeds(k, v, ids, length, n=1):
    q = np.random.default_rng(7).normal(size=(1, 4, n, HEAD)).astype(np.float32)
    return {"q": q, "k": k, "v": v, "page_table": np.array([ids]), "lengths": np.array([length])}


def expected(given):
    length = given["lengths"]
    k, v = (
        np.concatenate([given[name][page].decode() for page in given["page_table"][0]], axis=1)[None, :, : length[0]]
        for name in "kv"
    )
    return attention(given["q"], k, v, None, length, False, scale=HEAD**-0.5)


@pytest.fixture(scope="module")
def session():
    return Session(reading())


def test_attention_reads_pages_of_mixed_formats_and_changes_none(session):
    k, v = table_of(*FORMATS), table_of(*reversed(FORMATS), seed=50)
    held = [*k, *v]
    before, where = [page.data.copy() for page in held], [page.address for page in held]
    allocated = ledger()["page"]["allocations"]
    for ids, length, n in (([9, 0, 3], 11, 1), (list(range(10)), 40, 1), (list(range(10)), 37, 30), ([5], 1, 2)):
        given = feeds(k, v, ids, length, n)
        np.testing.assert_allclose(session.run(given)["y"], expected(given), rtol=1e-4, atol=1e-5)
    assert [*k, *v] == held and [page.address for page in held] == where
    assert all(np.array_equal(old, page.data) for old, page in zip(before, held, strict=True))
    assert ledger()["page"]["allocations"] == allocated
    assert len(k.descriptors) == 16


def test_one_table_may_be_read_as_k_and_as_v_and_by_many_calls_at_once(session):
    table = table_of("F16", "INT8_PAGE")
    given, found = feeds(table, table, [0, 1], 8), []
    threads = [threading.Thread(target=lambda: found.append(session.run(given)["y"])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for y in found:
        np.testing.assert_allclose(y, expected(given), rtol=1e-4, atol=1e-5)


def test_pages_in_a_users_format_are_read_through_their_decoder(session):
    mine = Format(
        "READ_ONLY_MINE",
        structure("READ_ONLY_MINE", d=f16, q=i8[8]),
        (8,),
        lambda x: x.d.astype(np.float32)[:, None] * x.q.astype(np.float32),
        lambda x: {"d": np.full(len(x), 1 / 32, np.float16), "q": np.rint(x * 32).clip(-127, 127).astype(np.int8)},
    )
    k, v = table_of("F16", mine), table_of(mine, "INT8_PAGE", seed=3)
    given = feeds(k, v, [0, 1], 7)
    np.testing.assert_allclose(session.run(given)["y"], expected(given), rtol=1e-4, atol=1e-5)


def test_writable_is_refused_for_a_table_that_the_model_only_reads(session):
    table = table_of("F16")
    with pytest.raises(errors.BindingError, match=r"'k': the model declares it READ_ONLY; pass the table itself"):
        session.run(feeds(writable(table), table, [0], 1))


@pytest.mark.parametrize("value", [np.zeros((16, 4), np.int64), None, [1], {}])
def test_what_is_no_table_is_refused(session, value):
    with pytest.raises(errors.BindingError, match="'k': expected a PageTable, found"):
        session.run(feeds(value, table_of("F16"), [0], 1))


def test_pages_of_another_shape_or_of_a_type_that_is_not_admitted_are_refused(session):
    other = PageTable(PageSpec(10, (KV_HEADS, TOKENS + 1, HEAD)))
    with pytest.raises(errors.ShapeError, match="'k': expected pages of"):
        session.run(feeds(other, table_of("F16"), [0], 1))
    made = model()
    tensor(made.graph.input, "q", FLOAT, [1, 4, "n", HEAD])
    from tenonnx.structs.formats_pages import page_format

    allowed = [declare_quantization(made, page_format("INT8_PAGE", HEAD), 10)]
    with pytest.raises(errors.PageError, match="'v': page 0 has format F16; the model admits INT8_PAGE"):
        Session(add_reader(made, allowed=allowed)).run(feeds(table_of("INT8_PAGE"), table_of("F16"), [0], 1))


def test_ids_and_lengths_that_the_table_does_not_have_are_refused(session):
    k, v = table_of("F16", "F16"), table_of("F16", "F16")
    k.remove(0)
    for ids, length in (([0], 1), ([2], 1), ([-1], 1), ([2**62], 1), ([1], 5), ([1], -1)):
        with pytest.raises(errors.TenonnxError):
            session.run(feeds(k, v, ids, length))
    empty = PageTable(PageSpec(10, DIMS))
    with pytest.raises(errors.TenonnxError):
        session.run(feeds(empty, empty, [0], 1))


def test_an_update_of_a_table_that_is_declared_read_only_is_refused_at_load():
    made = updating((2, 3, 16, 64))
    made.graph.input[0].ClearField("access")
    with pytest.raises(errors.CheckError, match="READ_WRITE"):
        Session(made)


def test_a_table_given_back_as_an_output_that_no_update_made_is_refused():
    made = reading()
    pages(made.graph.output, "k", DIMS)
    with pytest.raises(errors.TenonnxError, match="'k'"):
        table = table_of("F16")
        Session(made).run(feeds(table, table, [0], 1))


# ---- Beside tables that a run writes


def both():
    """New rows through READ_WRITE tables, and attention over READ_ONLY ones, as a decoder has over its encoder's."""
    return add_reader(attending(4, KV_HEADS, TOKENS, HEAD), "encoder_k", "encoder_v", "encoder_")


def step(n=1, seed=0):
    rng = np.random.default_rng(seed)
    q, k, v = rng.normal(size=(1, 4, n, HEAD)).astype(np.float32), *(rows(rng, KV_HEADS, n, HEAD) for _ in "kv")
    return {"q": q, "k_rows": k, "v_rows": v}


def encoder(k, v):
    return {"encoder_k": k, "encoder_v": v, "encoder_page_table": np.array([[1, 0]]), "encoder_lengths": np.array([7])}


def test_a_paged_cache_feeds_the_tables_that_grow_and_the_caller_those_that_are_read():
    session = Session(both())
    cache = session.new_cache(100, Uniform("INT8_PAGE"))
    assert set(cache.pool.tables) == {"k", "v"}
    assert set(session.fed_inputs) == {"page_id", "position", "page_table", "lengths"}
    assert session.cache_bytes(100) == 0
    k, v = table_of("F16", "Q8_0", *["F16"] * 14), table_of("INT4_PAGE", "F32", seed=9)
    for n in (3, 1, 4):
        given = step(n, n)
        found = session.run(given | encoder(k, v), cache=cache)
        reads = feeds(k, v, [1, 0], 7) | {"q": given["q"]}
        np.testing.assert_allclose(found["encoder_y"], expected(reads), rtol=1e-4, atol=1e-5)
    assert cache.length == 8
    assert len(k.descriptors) == len(k) == 16  # no room is made in a table that does not grow


def test_a_table_bound_as_read_write_and_as_read_only_in_one_run_is_refused_and_nothing_is_written():
    session = Session(both())
    cache = session.new_cache(100)
    session.run(step(5) | encoder(table_of("F16", "F16"), table_of("F16", "F16")), cache=cache)
    before = [page.data.copy() for page in cache.pool.tables["k"]]
    with pytest.raises(errors.SharedStorageError, match="'encoder_v' is bound to the table of READ_WRITE input 'k'"):
        session.run(step(1) | encoder(table_of("F16", "F16"), cache.pool.tables["k"]), cache=cache)
    assert cache.length == 5
    assert all(np.array_equal(a, b.data) for a, b in zip(before, cache.pool.tables["k"], strict=True))
    mine = {name: writable(table_of("F16", "F16")) for name in "kv"}
    ids = {"page_id": np.array([0]), "position": np.array(0), "page_table": np.array([[0]]), "lengths": np.array([1])}
    with pytest.raises(errors.SharedStorageError, match="'encoder_k' is bound to the table of READ_WRITE input 'k'"):
        session.run(step(1) | ids | mine | encoder(mine["k"].array, table_of("F16", "F16")))


def test_pages_that_a_running_call_writes_cannot_be_read_meanwhile_and_the_other_way_round(session):
    from tenonnx.cache import Extent

    table = table_of("F16", "F16")
    page = Extent("other", table[1].address, table[1].address + table[1].nbytes)
    with owned([page], []), pytest.raises(errors.ConcurrentUseError, match="'k': another call"):
        session.run(feeds(table, table_of("F16"), [0], 1))
    with owned([], [page]):
        session.run(feeds(table, table_of("F16"), [0], 1))


def test_a_model_that_only_reads_tables_has_no_cache_of_its_own(session):
    with pytest.raises(errors.UnsupportedError, match="declares no READ_WRITE input"):
        session.new_cache(100)
    assert session.fed_inputs == ()


def test_storage_of_pages_that_the_caller_frees_while_they_are_read_lives_until_the_run_is_over(session, monkeypatch):
    from tenonnx.runtime.executable import Executable

    table, run = table_of("F16"), Executable.run
    given = feeds(table, table, [0], 3)
    during = []

    def freeing(self, slots):
        table.remove(0)
        gc.collect()
        during.append(ledger()["page"]["bytes"])
        return run(self, slots)

    gc.collect()
    before = ledger()["page"]["bytes"]
    monkeypatch.setattr(Executable, "run", freeing)
    with pytest.raises(errors.PageError, match="page 0 is missing"):
        session.run(given)
    assert during == [before]
    gc.collect()
    assert ledger()["page"]["bytes"] < before
