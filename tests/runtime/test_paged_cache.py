"""PagedCache: page identity, the ledger, sharing, policies and files, against a model that keeps floats."""

from __future__ import annotations

import gc
import threading
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tenonnx import errors
from tenonnx.cache import Aged, Budget, PagedCache, PagePool, PageSpec, PageTable, Uniform, parse_policy
from tenonnx.cache.store import is_saved, read_header
from tenonnx.runtime import Session, ledger
from tenonnx.structs import Format, bits, f16, i8, structure
from tenonnx.structs.catalogue import catalogue
from tenonnx.structs.formats_pages import page_format
from tests.oracle.attention import attention
from tests.runtime.paged_models import FLOAT16, attending, rows

FORMATS = ("F32", "F16", "BF16", "FP8_PAGE", "INT8_PAGE", "INT4_PAGE", "INT2_PAGE", "Q8_0", "Q4_0", "MXFP4")
HEADS, KV_HEADS, TOKENS, HEAD, VALUE = 4, 2, 5, 32, 64


@pytest.fixture(scope="module")
def session():
    return Session(attending(HEADS, KV_HEADS, TOKENS, HEAD, VALUE))


def new_cache(session, policy=None, capacity=10_000):
    return session.new_cache(capacity, policy)


def append(session, cache, n, seed=0):
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(1, HEADS, n, HEAD)).astype(np.float32)
    k, v = rows(rng, KV_HEADS, n, HEAD), rows(rng, KV_HEADS, n, VALUE)
    return q, k, v, session.run({"q": q, "k_rows": k, "v_rows": v}, cache=cache)["y"]


def held(cache, name):
    """FLOAT[kv_heads, length, size]: what the pages of a sequence decode to."""
    table = cache.pool.tables[name]
    pages = [table[page].decode() for page in cache.pages]
    size = table.spec.size
    whole = np.concatenate(pages, axis=1) if pages else np.zeros((KV_HEADS, 0, size), np.float32)
    return whole[:, : cache.length]


def ledger_bytes():
    gc.collect()
    return ledger()["page"]["bytes"]


def addresses(pool):
    return {(n, i): page.address for n, t in pool.tables.items() for i, page in enumerate(t) if page is not None}


def test_attention_over_a_paged_cache_is_attention_over_what_its_pages_decode_to(session):
    cache = new_cache(session, (Uniform("INT8_PAGE"), Uniform("FP8_PAGE")))
    for n in (1, 3, 1, 12, 5, 1):
        q, _, _, y = append(session, cache, n, n)
        keys, values = held(cache, "k")[None], held(cache, "v")[None]
        expected = attention(q, keys, values, None, np.array([cache.length]), True, scale=HEAD**-0.5)
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    assert cache.page_formats()[0] == {"k": "INT8_PAGE", "v": "FP8_PAGE"}


@pytest.mark.parametrize("tokens", [1, 16, 17, 64, 256])
@pytest.mark.parametrize("head", [32, 64, 80, 96, 128, 256])
def test_page_and_head_sizes(tokens, head):
    session = Session(attending(2, 1, tokens, head))
    cache = session.new_cache(10_000, Uniform("INT4_PAGE"))
    rng = np.random.default_rng(head)
    for n in (tokens, 1, tokens - 1, tokens + 1):
        q, k, v = rng.normal(size=(1, 2, n, head)).astype(np.float32), rows(rng, 1, n, head), rows(rng, 1, n, head)
        y = session.run({"q": q, "k_rows": k, "v_rows": v}, cache=cache)["y"]
        tables = cache.pool.tables
        keys, values = (
            np.concatenate([tables[name][page].decode() for page in cache.pages], axis=1)[None, :, : cache.length]
            for name in "kv"
        )
        expected = attention(q, keys, values, None, np.array([cache.length]), True, scale=head**-0.5)
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_every_residue_of_the_length_modulo_the_page_size(session):
    for first in range(2 * TOKENS + 1):
        for second in range(2 * TOKENS + 1):
            cache = new_cache(session, Uniform("F16"))
            parts = [append(session, cache, n, n + 1)[1] for n in (first, second) if n]
            assert cache.length == first + second
            assert len(cache.pages) == -(-cache.length // TOKENS)
            if parts:
                assert np.array_equal(held(cache, "k"), np.concatenate(parts, axis=1).astype(np.float32))
            cache.free()


def test_a_run_of_no_rows_changes_nothing(session):
    cache = new_cache(session)
    append(session, cache, 0)
    assert cache.length == 0 and cache.nbytes == 0
    append(session, cache, 3)
    append(session, cache, 0)
    assert cache.length == 3 and len(cache.pages) == 1


def test_the_error_of_an_old_page_does_not_move_over_1000_later_appends(session):
    cache = new_cache(session, Aged([("F16", 10), ("INT8_PAGE", 50), ("INT4_PAGE", None)]))
    for step in range(40):
        append(session, cache, 5, step)
    page = cache.pages[0]
    before = [cache.pool.tables[name][page].data.copy() for name in "kv"]
    assert cache.page_formats()[0]["k"] == "INT4_PAGE"
    where = addresses(cache.pool)
    for step in range(1000):
        append(session, cache, 1, step)
    after = [cache.pool.tables[name][page].data for name in "kv"]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert addresses(cache.pool)["k", page] == where["k", page]


def test_a_long_context_costs_nothing_until_it_is_used(session):
    before = ledger_bytes()
    cache = new_cache(session, capacity=1_000_000)
    assert cache.nbytes == 0 and ledger_bytes() == before
    append(session, cache, 1)
    assert cache.nbytes == sum(table.spec.nbytes("F16") for table in cache.pool.tables.values())


def test_the_peak_while_adding_and_retyping_is_one_page_over_the_steady_state(session):
    from tenonnx.runtime import reset_peaks

    cache = new_cache(session)
    append(session, cache, 20)
    page = max(table.spec.nbytes("F32") for table in cache.pool.tables.values())
    for name in FORMATS:
        for number in cache.pages:
            reset_peaks()
            before = ledger_bytes()
            cache.requantize(number, name)
            assert ledger()["page"]["peak"] <= max(before, ledger_bytes()) + page


# ---- Refusals


def test_a_capacity_is_a_bound_and_nothing_is_written_past_it(session):
    cache = new_cache(session, capacity=7)
    append(session, cache, 6)
    old = held(cache, "k")
    before = ledger_bytes()
    with pytest.raises(errors.CapacityError, match="2 more tokens do not fit"):
        append(session, cache, 2)
    assert cache.length == 6 and ledger_bytes() == before and np.array_equal(old, held(cache, "k"))
    append(session, cache, 1)


def test_a_failed_run_leaves_pages_length_and_ids_as_they_were(session):
    cache = new_cache(session)
    append(session, cache, 4)
    before, ids = ledger_bytes(), cache.pages
    rng, q = np.random.default_rng(0), np.zeros((1, HEADS, 9, HEAD), np.float32)
    with pytest.raises(errors.TenonnxError):
        session.run({"q": q, "k_rows": np.zeros((KV_HEADS, 9, HEAD), np.float16)}, cache=cache)
    with pytest.raises(errors.ShapeError):
        session.run({"q": q, "k_rows": rows(rng, KV_HEADS, 9, 3), "v_rows": rows(rng, KV_HEADS, 9, VALUE)}, cache=cache)
    assert (ledger_bytes(), cache.pages, cache.length) == (before, ids, 4)
    append(session, cache, 9)


def test_double_free_and_use_after_free_are_refused(session):
    cache = new_cache(session)
    append(session, cache, 6)
    pool, before = cache.pool, ledger_bytes()
    size = cache.nbytes
    cache.free()
    assert ledger_bytes() == before - size and pool.pages == 0
    acts = (cache.free, cache.reset, cache.fork, cache.prepare, lambda: append(session, cache, 1), lambda: cache.truncate(0))
    for act in acts:
        with pytest.raises(errors.PageError, match="was freed"):
            act()
    with pytest.raises(errors.PageError, match="is free"):
        pool.release([0])
    with pytest.raises(errors.PageError, match="is free"):
        pool.share([0])


def test_a_sequence_that_is_dropped_gives_its_pages_back(session):
    before = ledger_bytes()
    cache = new_cache(session)
    pool = cache.pool
    append(session, cache, 6)
    other = PagedCache(pool)
    del cache
    gc.collect()
    assert pool.pages == 0 and ledger_bytes() == before
    append(session, other, 1)
    assert other.pages == (0,)


def test_a_boundary_page_shared_by_two_sequences_is_freed_once_and_by_the_last(session):
    cache = new_cache(session)
    append(session, cache, 7)
    other = cache.fork()
    assert other.pages == cache.pages and cache.pool.pages == 2
    cache.free()
    assert other.pool.pages == 2
    content = held(other, "k")
    assert content.shape[1] == 7
    other.free()
    assert other.pool.pages == 0


def test_a_shared_page_is_written_only_after_prepare_which_allocates_one_page(session):
    cache = new_cache(session)
    append(session, cache, 7)
    fork = cache.fork()
    old = held(cache, "k")
    for sequence in (cache, fork):
        with pytest.raises(errors.PageError, match=r"is shared by 2 sequences; call prepare\(\)"):
            append(session, sequence, 1)
    before, tables = ledger()["page"]["allocations"], len(cache.pool.tables)
    fork.prepare()
    assert ledger()["page"]["allocations"] == before + tables
    assert fork.pages[:-1] == cache.pages[:-1] and fork.pages[-1] != cache.pages[-1]
    append(session, fork, 2, 1)
    append(session, cache, 2, 2)
    assert np.array_equal(held(cache, "k")[:, :7], old) and np.array_equal(held(fork, "k")[:, :7], old)
    assert not np.array_equal(held(cache, "k")[:, 7:], held(fork, "k")[:, 7:])
    assert ledger()["page"]["allocations"] == before + tables


def test_a_prefix_that_ends_with_a_page_needs_no_unsharing(session):
    cache = new_cache(session)
    append(session, cache, 2 * TOKENS)
    fork = cache.fork()
    before = ledger()["page"]["allocations"]
    fork.prepare(3)
    assert ledger()["page"]["allocations"] == before
    append(session, fork, 3)
    assert cache.pool.owners(cache.pages[0]) == 2 and cache.pool.pages == 3


def test_formats_of_shared_and_of_strange_pages_cannot_be_changed(session):
    cache = new_cache(session)
    append(session, cache, 7)
    with pytest.raises(errors.PageError, match="none of this sequence's pages"):
        cache.requantize(5, "INT8_PAGE")
    fork = cache.fork()
    with pytest.raises(errors.PageError, match="shared by 2"):
        fork.requantize(0, "INT8_PAGE")
    fork.free()
    cache.requantize(0, "INT8_PAGE", ["k"])
    assert cache.page_formats()[0] == {"k": "INT8_PAGE", "v": "F16"}


def test_one_cache_cannot_be_bound_by_two_running_calls(session):
    cache = new_cache(session)
    with cache.step(1):
        with pytest.raises(errors.ConcurrentUseError, match="still running"):
            append(session, cache, 1)
        for act in (cache.free, lambda: cache.truncate(0), cache.fork, lambda: cache.requantize(0, "F32")):
            with pytest.raises(errors.ConcurrentUseError):
                act()
    assert cache.length == 1


def test_many_sequences_of_one_pool_are_decoded_in_parallel(session):
    base = new_cache(session, Uniform("INT8_PAGE"))
    append(session, base, 12, 99)
    forks = [base.fork() for _ in range(6)]
    failures = []

    def work(number):
        try:
            for step in range(30):
                forks[number].prepare()
                append(session, forks[number], 1 + step % 3, 100 * number + step)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failures
    for number, fork in enumerate(forks):
        alone = new_cache(session, Uniform("INT8_PAGE"))
        append(session, alone, 12, 99)
        for step in range(30):
            append(session, alone, 1 + step % 3, 100 * number + step)
        for name in "kv":
            assert np.array_equal(held(alone, name), held(fork, name))
    expected = sum(table.spec.nbytes("INT8_PAGE") for table in base.pool.tables.values()) * base.pool.pages
    assert base.pool.nbytes == expected


# ---- Policies


def test_aged_pages_step_down_once_and_touch_nothing_else(session):
    cache = new_cache(session, Aged([("F16", 10), ("INT8_PAGE", 20), ("INT2_PAGE", None)]))
    for step in range(9):
        before = addresses(cache.pool)
        formats = [page["k"] for page in cache.page_formats()]
        append(session, cache, TOKENS, step)
        after = addresses(cache.pool)
        now = [page["k"] for page in cache.page_formats()]
        for (name, page), where in before.items():
            if formats[page] == now[page]:
                assert after[name, page] == where
    assert now == ["INT2_PAGE"] * 5 + ["INT8_PAGE"] * 2 + ["F16"] * 2


def test_k_and_v_have_policies_of_their_own(session):
    cache = new_cache(session, (Aged([("F16", 5), ("INT8_PAGE", None)]), Uniform("INT4_PAGE")))
    append(session, cache, 3 * TOKENS)
    append(session, cache, 1)
    assert [page["k"] for page in cache.page_formats()] == ["INT8_PAGE"] * 3 + ["F16"]
    assert {page["v"] for page in cache.page_formats()} == {"INT4_PAGE"}


def test_a_budget_keeps_the_whole_cache_under_its_bytes_and_refuses_when_it_cannot(session):
    probe = new_cache(session)
    append(session, probe, 1)
    page = probe.nbytes
    budget = 3 * page
    cache = new_cache(session, Budget(budget))
    refused = None
    for step in range(200):
        try:
            append(session, cache, 1, step)
        except errors.CapacityError as error:
            refused = error
            break
        assert cache.nbytes <= budget
    assert refused is not None and "give a larger budget" in str(refused)
    assert {page["k"] for page in cache.page_formats()[:-1]} <= {"INT4_PAGE", "INT2_PAGE"}
    length, content = cache.length, held(cache, "k")
    with pytest.raises(errors.CapacityError):
        append(session, cache, 1)
    assert cache.length == length and np.array_equal(held(cache, "k"), content)


@pytest.mark.parametrize("pages", [6, 10])
def test_a_budget_holds_within_one_run_of_many_pages(session, pages):
    probe = new_cache(session)
    append(session, probe, 1)
    cache = new_cache(session, Budget(4 * probe.nbytes))
    append(session, cache, pages * TOKENS)
    assert len(cache.pages) == pages and cache.nbytes <= 4 * probe.nbytes
    assert [page["k"] for page in cache.page_formats()][-1] == "F16"
    with pytest.raises(errors.CapacityError, match="give a larger budget"):
        append(session, cache, 100 * TOKENS)
    assert len(cache.pages) == pages


def test_policies_are_parsed_from_what_a_command_line_gives():
    assert parse_policy("int8_page").new_format() == "INT8_PAGE"
    assert isinstance(parse_policy("aged"), Aged)
    assert parse_policy("budget:64MiB").bytes == 64 * 2**20
    with pytest.raises(errors.OptionError, match="budget:64MiB"):
        parse_policy("budget")
    with pytest.raises(errors.OptionError, match=r"policy 'INT8' is no format of pages; choose one of .*INT8_PAGE"):
        parse_policy("INT8")
    for text in ("budget:", "budget:-1", "budget:3x", "no.such.module:thing", "tenonnx.cache:nothing"):
        with pytest.raises(errors.OptionError):
            parse_policy(text)
    for steps in ([], [("F16", 5)], [("F16", 5), ("INT8_PAGE", 5), ("INT4_PAGE", None)], [("F16", None), ("INT8_PAGE", None)]):
        with pytest.raises(errors.OptionError):
            Aged(steps)


def test_an_unknown_format_is_named_when_the_cache_is_made(session):
    with pytest.raises(errors.UnsupportedError, match="no known format"):
        new_cache(session, Uniform("NO_SUCH"))


# ---- Formats of users


@pytest.fixture
def own_formats(monkeypatch):
    """What a test adds to the catalogue leaves it afterwards."""
    monkeypatch.setattr(catalogue, "_added", dict(catalogue._added))


def test_a_users_format_with_an_encoder_is_written_and_read_through_them(session, own_formats):
    def quantize(x):
        scale = np.abs(x).max(axis=1, keepdims=True) / 7 + 1e-6
        codes = (np.rint(x / scale).clip(-7, 7) + 8).astype(np.uint8)
        return {"d": scale[:, 0].astype(np.float16), "q": {"a": codes[:, ::2], "b": codes[:, 1::2]}}

    def decoder(x):
        codes = np.stack([x.q.a, x.q.b], axis=2).reshape(-1, 16).astype(np.float32)
        return x.d.astype(np.float32)[:, None] * (codes - 8)

    block = structure("MINE_16", d=f16, q=bits(a=4, b=4)[8])
    mine = catalogue.add(Format("MINE_16", block, (16,), decoder, quantize))
    cache = new_cache(session, Uniform("MINE_16"))
    for n in (3, 1, 8):
        q, _, _, y = append(session, cache, n, n)
        expected = attention(
            q, held(cache, "k")[None], held(cache, "v")[None], None, np.array([cache.length]), True, scale=HEAD**-0.5
        )
        np.testing.assert_allclose(y, expected, atol=0.35)  # new rows are attended to before they are encoded
    assert cache.page_formats()[0]["k"] == mine.name
    cache.requantize(cache.pages[0], "INT8_PAGE")
    q, _, _, y = append(session, cache, 1, 5)
    assert np.isfinite(y).all()


def test_a_format_whose_blocks_span_tokens_seals_a_page(session, own_formats):
    def quantize(x):
        scale = np.abs(x[:, :, 0]).max(axis=1, keepdims=True) / 127 + 1e-6
        return {"d": scale[:, 0].astype(np.float16), "q": np.rint(x[:, :, 0] / scale).clip(-127, 127).astype(np.int8)}

    def decoder(x):
        return (x.d.astype(np.float32)[:, None] * x.q.astype(np.float32))[:, :, None]

    sealed = Format("CHANNELS_5", structure("CHANNELS_5", d=f16, q=i8[TOKENS]), (TOKENS, 1), decoder, quantize)
    catalogue.add(sealed)
    cache = new_cache(session)
    append(session, cache, 7)
    before = held(cache, "k")
    cache.requantize(cache.pages[0], "CHANNELS_5")
    np.testing.assert_allclose(held(cache, "k"), before, atol=0.05)
    append(session, cache, 1)
    cache.requantize(cache.pages[1], "CHANNELS_5")
    with pytest.raises(errors.PageError, match="is written by whole pages alone"):
        append(session, cache, 1)


# ---- Files


def saved(session, tmp_path):
    cache = new_cache(session, Aged([("F16", 5), ("INT8_PAGE", 10), ("INT4_PAGE", None)]))
    for step in range(13):
        append(session, cache, 2, step)
    path = tmp_path / "cache.pages"
    cache.save(path)
    return cache, path


def test_a_saved_cache_is_loaded_page_by_page_with_its_formats(session, tmp_path):
    cache, path = saved(session, tmp_path)
    other = new_cache(session)
    append(session, other, 3)
    other.load(path)
    assert other.length == cache.length and other.page_formats() == cache.page_formats()
    for name in "kv":
        assert np.array_equal(held(other, name), held(cache, name))
    assert other.pool.pages == len(cache.pages)
    a, b = append(session, cache, 1, 77)[3], append(session, other, 1, 77)[3]
    assert np.array_equal(a, b)
    header = read_header(path)
    assert is_saved(path) and header.nbytes == sum(nbytes for page in header.pages for _, nbytes, _ in page.values())


def test_a_truncated_or_altered_file_is_refused_with_the_running_cache_untouched(session, tmp_path):
    _, path = saved(session, tmp_path)
    data = path.read_bytes()
    other = new_cache(session)
    append(session, other, 3)
    content, ids, before = held(other, "k"), other.pages, ledger_bytes()
    rng = np.random.default_rng(0)
    cuts = [0, 1, 12, 13, 20, 21, 40, 53, 54, len(data) // 2, len(data) - 1]
    for damaged in (
        *(data[:cut] for cut in cuts),
        data + b"x",
        *(bytes([*data[:at], data[at] ^ 1, *data[at + 1 :]]) for at in (0, 14, 22, 60, *rng.integers(60, len(data), 20))),
    ):
        path.write_bytes(damaged)
        with pytest.raises(errors.PayloadError):
            other.load(path)
        assert other.pages == ids and ledger_bytes() == before
    assert np.array_equal(held(other, "k"), content)
    with pytest.raises(errors.PayloadError, match="cannot be read"):
        other.load(tmp_path / "missing")


def test_a_file_of_another_model_is_refused(session, tmp_path):
    _, path = saved(session, tmp_path)
    other = Session(attending(2, 1, TOKENS, 64)).new_cache(100)
    with pytest.raises(errors.PayloadError, match="of another model or page size"):
        other.load(path)
    with pytest.raises(errors.PayloadError, match="the cache takes 5"):
        new_cache(session, capacity=5).load(path)


# ---- A pool against a model of it


@dataclass
class Sequence:
    cache: PagedCache
    rows: list = field(default_factory=list)  # what each token was written as: [kv_heads, size]


class Pages(RuleBasedStateMachine):
    """Random operations on sequences of one pool; rows are kept as floats beside, formats within their resolution."""

    SPEC = PageSpec(FLOAT16, (2, 3, 16))

    def __init__(self):
        super().__init__()
        self.before = ledger_bytes()
        self.pool = PagePool({"t": PageTable(self.SPEC)})
        self.sequences = [Sequence(PagedCache(self.pool))]
        self.touched = set()
        self.addresses = {}
        self.count = 0

    def pick(self, data):
        return data.draw(st.sampled_from(self.sequences))

    def write(self, sequence, n):
        cache = sequence.cache
        values = np.random.default_rng(self.count).normal(size=(2, n, 16)).astype(np.float32)
        self.count += 1
        with cache.step(n) as step:
            table = self.pool.tables["t"]
            for i in range(n):
                place = int(step.position) + i
                page = table[int(step.page_id[place // 3])]
                whole = np.zeros(self.SPEC.dims, np.float32)
                whole[:, place % 3] = values[:, i]
                page.write_tokens(page.encoded_tokens(whole, place % 3, place % 3 + 1), place % 3, place % 3 + 1)
        sequence.rows += [values[:, i] for i in range(n)]

    @rule(data=st.data(), n=st.integers(0, 8))
    def append(self, data, n):
        sequence = self.pick(data)
        sequence.cache.prepare(n)
        self.write(sequence, n)

    @rule(data=st.data())
    def truncate(self, data):
        sequence = self.pick(data)
        length = data.draw(st.integers(0, sequence.cache.length))
        sequence.cache.truncate(length)
        del sequence.rows[length:]

    @precondition(lambda self: len(self.sequences) < 5)
    @rule(data=st.data())
    def fork(self, data):
        sequence = self.pick(data)
        self.sequences.append(Sequence(sequence.cache.fork(), list(sequence.rows)))

    @precondition(lambda self: len(self.sequences) > 1)
    @rule(data=st.data())
    def free(self, data):
        sequence = self.pick(data)
        sequence.cache.free()
        self.sequences.remove(sequence)

    @rule(data=st.data(), name=st.sampled_from(["F32", "F16", "BF16", "FP8_PAGE", "INT8_PAGE"]))
    def requantize(self, data, name):
        cache = self.pick(data).cache
        alone = [page for page in cache.pages if self.pool.owners(page) == 1]
        if alone:
            page = data.draw(st.sampled_from(alone))
            cache.requantize(page, name)
            self.touched.add(page)

    @invariant()
    def addresses_of_untouched_pages_never_change(self):
        now = {i: page for i, page in enumerate(self.pool.tables["t"]) if page is not None}
        # No rule frees an id and takes it again, so one that is there before and after is the same page.
        for number, where in self.addresses.items():
            assert number not in now or number in self.touched or now[number].address == where
        for number, page in now.items():
            assert int(self.pool.tables["t"].descriptors[number, 0]) == page.address
        self.addresses = {number: page.address for number, page in now.items()}
        self.touched = set()

    @invariant()
    def the_ledger_is_the_sum_of_page_sizes(self):
        assert ledger()["page"]["bytes"] - self.before == self.pool.nbytes
        used = {page for sequence in self.sequences for page in sequence.cache.pages}
        assert self.pool.pages == len(used)
        for page in used:
            assert self.pool.owners(page) == sum(page in sequence.cache.pages for sequence in self.sequences)

    @invariant()
    def every_sequence_holds_its_rows(self):
        table = self.pool.tables["t"]
        for sequence in self.sequences:
            assert sequence.cache.length == len(sequence.rows)
            for i, row in enumerate(sequence.rows):
                found = table[sequence.cache.pages[i // 3]].decode()[:, i % 3]
                np.testing.assert_allclose(found, row, atol=0.35)

    def teardown(self):
        for sequence in self.sequences:
            sequence.cache.free()
        assert ledger()["page"]["bytes"] == self.before


TestPages = Pages.TestCase
TestPages.settings = settings(max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(FORMATS), min_size=1, max_size=12), st.integers(0, 99))
def test_pages_go_from_any_format_to_any_other(names, seed):
    table = PageTable(PageSpec(FLOAT16, (2, 4, 32)), "F32")
    values = np.random.default_rng(seed).normal(size=(2, 4, 32)).astype(np.float32)
    table.create(0).encode(values)
    for name in names:
        expected = page_format(name, 32)
        wanted = expected.decode(expected.encode(table[0].decode()), values.shape)
        table.requantize(0, name)
        np.testing.assert_allclose(table[0].decode(), wanted, rtol=1e-6, atol=1e-6)
        assert table.nbytes == table.spec.nbytes(name)


def test_attention_refuses_a_length_or_an_id_that_its_page_table_does_not_have(session):
    from tenonnx import writable

    def table(size):
        made = PageTable(PageSpec(FLOAT16, (KV_HEADS, TOKENS, size)))
        made.create(0).encode(np.ones(made.spec.dims))
        return made

    k, v = table(HEAD), table(VALUE)
    before = [page.data.copy() for page in (k[0], v[0])]
    given = {
        "q": np.zeros((1, HEADS, 1, HEAD), np.float32),
        "k": writable(k),
        "v": writable(v),
        "k_rows": np.zeros((KV_HEADS, 1, HEAD), np.float16),
        "v_rows": np.zeros((KV_HEADS, 1, VALUE), np.float16),
        "page_id": np.array([0]),
        "position": np.array(0),
    }
    for ids, length, error in (([0], 6, errors.CapacityError), ([0], -1, errors.CapacityError), ([5], 1, errors.PageError)):
        with pytest.raises(error, match="Nothing was written"):
            session.run({**given, "page_table": np.array([ids]), "lengths": np.array([length])})
    assert all(np.array_equal(a, page.data) for a, page in zip(before, (k[0], v[0]), strict=True))
