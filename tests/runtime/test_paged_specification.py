"""Each sentence of the specification's "Heterogeneous paged cache", and of what its runtime contract says of pages."""

from __future__ import annotations

import numpy as np
import pytest

from tenonnx import check, errors, writable
from tenonnx.cache import PageSpec, PageTable
from tenonnx.runtime import Session, ledger
from tenonnx.schema.messages import ModelProto, SequenceProto, TypeProto
from tenonnx.shapes import ShapesContext, SymQuantizedTensor, SymSequence
from tenonnx.structs.formats_pages import page_format
from tenonnx.structs.quantizations import declare_quantization
from tests.runtime.paged_models import FLOAT16, attending, model, rows, table_input, tensor, update, updating

DIMS = (2, 3, 16, 64)  # [2, heads, page_size, head_size]
SPEC = PageSpec(FLOAT16, DIMS)
THREE = ("INT4_PAGE", "FP8_PAGE", "INT2_PAGE")


def cache_of(*formats, dims=DIMS, seed=0, **options):
    """A table of pages of these formats with random content."""
    table = PageTable(PageSpec(FLOAT16, dims), **options)
    for number, name in enumerate(formats):
        table.create(number, name).encode(np.random.default_rng(seed + number).normal(size=dims))
    return table


def feeds(table, page_id, position, values):
    return {
        "cache": writable(table),
        "page_id": np.array(page_id, np.int64),
        "position": np.array(position, np.int64),
        "values": values,
    }


def new_rows(n, seed=9):
    return rows(np.random.default_rng(seed), 2, 3, n, 64)


def addresses(table):
    return [page.address for page in table if page is not None]


def content(table):
    return [page.data.copy() for page in table if page is not None]


@pytest.fixture(scope="module")
def session():
    return Session(updating(DIMS))


def test_the_specifications_example_int4_fp8_and_int2_pages_side_by_side():
    made = updating(DIMS)
    indices = [declare_quantization(made, page_format(name, 64), FLOAT16) for name in THREE]
    sequence = SequenceProto(name="cache", elem_type=SequenceProto.QUANTIZED_TENSOR)
    sequence.value_type.CopyFrom(made.graph.input[0].type.sequence_type.elem_type)
    content = np.random.default_rng(1).normal(size=(3, *DIMS))
    for index, name, values in zip(indices, THREE, content, strict=True):
        page = sequence.quantized_tensor_values.add()
        page.quantized_type = index
        page.dims.extend(DIMS)
        page.raw_data = page_format(name, 64).encode(values).tobytes()
    assert not check(made)
    table = PageTable.from_proto(
        SequenceProto.FromString(sequence.SerializeToString()), ModelProto.FromString(made.SerializeToString())
    )
    assert table.formats() == list(THREE)
    values = new_rows(40)
    before = ledger()["page"]["allocations"]
    result = Session(made).run(feeds(table, [0, 1, 2], 3, values))
    assert result["updated_cache"] is table
    assert ledger()["page"]["allocations"] == before
    for number, (name, old) in enumerate(zip(THREE, content, strict=True)):
        fmt = page_format(name, 64)
        expected = fmt.decode(fmt.encode(old), DIMS)
        for token in range(16):
            i = number * 16 + token - 3
            if 0 <= i < 40:
                part = np.ascontiguousarray(values[:, :, i : i + 1], np.float32)
                expected[:, :, token : token + 1] = fmt.decode(fmt.encode(part), part.shape)
        assert np.array_equal(table[number].decode(), expected), name
    back = table.to_proto(made)
    assert [page.quantized_type for page in back.quantized_tensor_values] == indices


def test_a_paged_cache_is_a_sequence_of_quantized_tensor_pages(session):
    symbol = session.inputs["cache"]
    assert isinstance(symbol, SymSequence)
    assert symbol.element == SymQuantizedTensor(FLOAT16, DIMS, ())


def test_the_container_accepts_several_quantization_types_while_every_page_selects_one(session):
    table = cache_of("F16", "Q8_0", "MXFP4", "INT8_PAGE", "F32", "BF16", "Q4_0")
    formats = table.formats()
    session.run(feeds(table, [4, 2, 6], 0, new_rows(48)))
    assert table.formats() == formats


def test_an_empty_allowed_set_admits_any_registered_quantization_and_another_admits_its_members_alone():
    made = model()
    allowed = [declare_quantization(made, page_format(name, 64), FLOAT16) for name in ("FP8_PAGE", "INT8_PAGE")]
    session = Session(updating(DIMS, allowed=allowed, made=made))
    fits = cache_of("INT8_PAGE", "FP8_PAGE", new_format="INT8_PAGE")
    session.run(feeds(fits, [0], 0, new_rows(2)))
    table = cache_of("INT8_PAGE", "INT4_PAGE")
    old = content(table)
    with pytest.raises(errors.PageError, match=r"page 1 has format INT4_PAGE; the model admits FP8_PAGE_64, INT8_PAGE"):
        session.run(feeds(table, [0], 0, new_rows(2)))
    assert all(np.array_equal(a, b) for a, b in zip(old, content(table), strict=True))


def test_all_page_types_decode_to_the_same_logical_element_type_and_page_shape():
    made = updating(DIMS)
    index = declare_quantization(made, page_format("INT8_PAGE", 64), FLOAT16)
    for change, message in ((("dims", [2, 3, 8, 64]), "all pages of a container have"), (("short", None), "takes exactly")):
        sequence = cache_of("INT8_PAGE", "INT8_PAGE").to_proto(made)
        page = sequence.quantized_tensor_values[1]
        if change[0] == "dims":
            del page.dims[:]
            page.dims.extend(change[1])
            page.raw_data = page.raw_data[: len(page.raw_data) // 2]
            page.ClearField("n_bytes")
        else:
            page.raw_data = page.raw_data[:-1]
        with pytest.raises(errors.PayloadError, match=message):
            PageTable.from_proto(sequence, made)
    sequence = cache_of("INT8_PAGE").to_proto(made)
    made.quantizations[index].elem_type = 1
    with pytest.raises(errors.PayloadError, match="decodes to element type 1"):
        PageTable.from_proto(sequence, made)


def test_their_physical_layouts_and_byte_sizes_may_differ():
    sizes = {name: SPEC.nbytes(name) for name in THREE}
    assert len(set(sizes.values())) == 3
    assert cache_of(*THREE).nbytes == sum(sizes.values())


def test_the_update_node_aliases_the_page_table():
    context = ShapesContext(updating(DIMS))
    assert context.alias_root("updated_cache") == "cache"
    assert context["updated_cache"] == context["cache"]
    made = updating(DIMS)
    del made.graph.node[0].output_alias[:]
    with pytest.raises(errors.CheckError, match="must alias the cache"):
        Session(made)


def test_shapes_context_keeps_only_the_common_logical_page_type_and_shape():
    made = model()
    allowed = [declare_quantization(made, page_format(name, 64), FLOAT16) for name in THREE]
    context = ShapesContext(updating(DIMS, allowed=allowed, made=made))
    assert context["cache"] == SymSequence(SymQuantizedTensor(FLOAT16, DIMS, tuple(allowed)))


def test_the_runtime_owns_the_page_storage_identities(session):
    table = cache_of(*THREE)
    before = addresses(table)
    for position in range(16):
        session.run(feeds(table, [1], position, new_rows(1)))
    assert addresses(table) == before
    assert len(set(before)) == 3


def test_the_kernel_dispatches_from_quantized_type_and_quantizes_the_new_values_directly_into_the_page(session):
    table = cache_of(*THREE)
    values = new_rows(1)
    for number, name in enumerate(THREE):
        session.run(feeds(table, [number], 5, values))
        rows = table[number].data.reshape(6, 16, -1)
        assert np.array_equal(rows[:, 5], page_format(name, 64).encode(values.astype(np.float32)).reshape(6, -1))


def test_updating_an_existing_page_allocates_nothing(session):
    table = cache_of(*THREE)
    session.run(feeds(table, [0, 1, 2], 0, new_rows(48)))
    before = {purpose: account["allocations"] for purpose, account in ledger().items()}
    session.run(feeds(table, [0, 1, 2], 0, new_rows(48)))
    after = {purpose: account["allocations"] for purpose, account in ledger().items()}
    assert after == before


def test_creating_a_page_allocates_only_that_page(session):
    table = cache_of(*THREE, new_format="INT8_PAGE")
    old, before, where = content(table), ledger()["page"], addresses(table)
    session.run(feeds(table, [2, 3], 15, new_rows(4)))
    after = ledger()["page"]
    assert after["allocations"] == before["allocations"] + 1
    assert after["total"] - before["total"] == SPEC.nbytes("INT8_PAGE") == table[3].nbytes
    assert addresses(table)[:3] == where
    assert np.array_equal(old[0], table[0].data) and np.array_equal(old[1], table[1].data)


def test_changing_a_page_to_another_byte_size_replaces_only_that_page():
    table = cache_of(*THREE)
    old, where, before = content(table), addresses(table), ledger()["page"]
    decoded = table[1].decode()
    table.requantize(1, "INT8_PAGE")
    after = ledger()["page"]
    assert after["total"] - before["total"] == SPEC.nbytes("INT8_PAGE")
    assert after["bytes"] - before["bytes"] == SPEC.nbytes("INT8_PAGE") - SPEC.nbytes("FP8_PAGE")
    assert [addresses(table)[i] for i in (0, 2)] == [where[i] for i in (0, 2)]
    assert np.array_equal(old[0], table[0].data) and np.array_equal(old[2], table[2].data)
    np.testing.assert_allclose(table[1].decode(), decoded, atol=0.05)


def test_changing_a_page_to_a_type_of_the_same_size_encodes_it_again_in_place():
    table = cache_of("F16", "F16")
    where, before = addresses(table), ledger()["page"]["allocations"]
    table.requantize(0, "BF16")
    assert addresses(table) == where
    assert ledger()["page"]["allocations"] == before


def test_quantizations_hold_the_referenced_declarations():
    made = updating(DIMS)
    sequence = cache_of("INT8_PAGE").to_proto(made)
    sequence.quantized_tensor_values[0].quantized_type = 7
    with pytest.raises(errors.PayloadError, match=r"quantizations\[7\]: the model declares 1"):
        PageTable.from_proto(sequence, made)
    made.quantizations[0].block_type = 99
    assert any("block_type 99" in str(finding) for finding in check(made))


def test_the_caller_opts_into_mutation_when_binding_the_cache(session):
    table = cache_of("F16")
    given = feeds(table, [0], 0, new_rows(1))
    with pytest.raises(errors.ImmutableStorageError, match=r"pass writable\(table\)"):
        session.run({**given, "cache": table})


def test_the_kernel_writes_only_inside_the_declared_capacity_and_an_overflow_is_an_error(session):
    table = cache_of(*THREE)
    old, before = content(table), ledger()["page"]["allocations"]
    for page_id, position, n, message in (
        ([0], 0, 17, "pass the 1 pages of 16 tokens"),
        ([0, 1], 1, 32, "pass the 2 pages"),
        ([0], -1, 1, "position -1 is outside the first page"),
        ([0], 16, 1, "position 16 is outside the first page"),
        ([0], 2**63 - 1, 1, "outside the first page"),
        ([], 0, 1, "pass the 0 pages"),
    ):
        with pytest.raises(errors.CapacityError, match=message):
            session.run(feeds(table, page_id, position, new_rows(n)))
    for page_id in ([-1], [4], [2**62], [3, 5], [0, -(2**63)]):
        with pytest.raises(errors.PageError, match="is unknown"):
            session.run(feeds(table, page_id, 0, new_rows(17 if len(page_id) > 1 else 1)))
    with pytest.raises(errors.PageError, match="names a page twice"):
        session.run(feeds(table, [1, 1], 0, new_rows(17)))
    assert len(table) == 3
    assert ledger()["page"]["allocations"] == before
    assert all(np.array_equal(a, b) for a, b in zip(old, content(table), strict=True))


def test_only_a_missing_page_may_be_allocated(session):
    table = cache_of(*THREE)
    table.remove(1)
    before = ledger()["page"]["allocations"]
    session.run(feeds(table, [1], 0, new_rows(1)))
    assert ledger()["page"]["allocations"] == before + 1
    session.run(feeds(table, [1], 1, new_rows(1)))
    assert ledger()["page"]["allocations"] == before + 1


def test_page_table_growth_does_not_duplicate_page_payloads(session):
    table = PageTable(SPEC, "INT2_PAGE")
    seen = []
    for number in range(70):
        before = ledger()["page"]["total"]
        session.run(feeds(table, [number], 0, new_rows(1)))
        assert ledger()["page"]["total"] - before == SPEC.nbytes("INT2_PAGE")
        assert addresses(table)[:number] == seen
        seen = addresses(table)


def test_one_writable_binding_cannot_be_used_twice_in_one_call():
    made = model()
    for name in ("a", "b"):
        table_input(made.graph, name, DIMS)
    tensor(made.graph.input, "page_id", 7, [1])
    tensor(made.graph.input, "position", 7, [])
    tensor(made.graph.input, "values", FLOAT16, [2, 3, "n", 64])
    for name in ("a", "b"):
        update(made.graph, name, "values")
        value = made.graph.output.add(name=f"{name}.updated", alias_of=name)
        value.type.CopyFrom(made.graph.input[0].type)
    table = cache_of("F16")
    given = {"page_id": np.zeros(1, np.int64), "position": np.array(0), "values": new_rows(1)}
    with pytest.raises(errors.SharedStorageError):
        Session(made).run({"a": writable(table), "b": writable(table), **given})


def test_each_page_keeps_its_own_quantized_type(session):
    table = cache_of(*THREE, new_format="F16")
    session.run(feeds(table, [0, 1, 2, 3], 0, new_rows(64)))
    assert table.formats() == [*THREE, "F16"]


def test_an_in_place_update_counts_as_zero_additional_cache_bytes():
    from tenonnx import plan

    assert plan(updating(DIMS), {"n": 1, "p": 1}).peak_bytes == 0


def test_stacked_pages_as_the_specification_has_them_are_read_by_attention():
    from tests.oracle.attention import attention

    rng = np.random.default_rng(3)
    session = Session(attending(6, 3, 16, 64, stacked=True))
    table = PageTable(SPEC, "F16")
    for number, name in enumerate(THREE):
        table.create(number, name)
    q, kv = rng.normal(size=(1, 6, 40, 64)).astype(np.float32), new_rows(40)
    given = {"page_id": np.arange(3), "position": np.array(0), "page_table": np.arange(3)[None], "lengths": np.array([40])}
    y = session.run({"q": q, "kv": writable(table), "kv_rows": kv, **given})["y"]
    held = np.concatenate([table[i].decode() for i in range(3)], axis=2)[:, None, :, :40]
    np.testing.assert_allclose(
        y, attention(q, held[0], held[1], None, np.array([40]), True, scale=64**-0.5), rtol=1e-4, atol=1e-5
    )


def test_type_proto_has_the_fields_of_the_specification():
    kind = TypeProto.QuantizedTensor(elem_type=FLOAT16)
    kind.allowed_quantized_type.append(3)
    assert TypeProto.QuantizedTensor.FromString(kind.SerializeToString()) == kind
