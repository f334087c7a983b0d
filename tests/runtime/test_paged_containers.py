"""Tables of pages as every container that the types allow: sequences and maps with INT64 keys, of quantized or plain tensors."""

from __future__ import annotations

import numpy as np
import pytest

from tenonnx import ModelProto, ShapesContext, SymTensor, check, errors, writable
from tenonnx.cache import PagedCache, PageSpec, PageTable, Uniform
from tenonnx.runtime import Session
from tenonnx.schema.messages import MapProto, SequenceProto
from tenonnx.structs.formats_pages import page_format
from tenonnx.structs.quantizations import declare_quantization
from tests.oracle.attention import attention
from tests.runtime.paged_models import FLOAT, FLOAT16, INT64, attending, model, rows, tensor, updating

DIMS = (2, 3, 4, 32)
BFLOAT16, STRING = 16, 8
CONTAINERS = ("sequence", "map")
ELEMENTS = {"quantized": None, "float": FLOAT, "float16": FLOAT16, "bfloat16": BFLOAT16}


def retyped(made, container, plain, key_type=INT64):
    """The model with its tables as another container; ``plain`` is the element type of ordinary tensors, None for quantized."""
    for value in (*made.graph.input, *made.graph.output):
        if not value.type.HasField("sequence_type"):
            continue
        held = value.type.sequence_type.elem_type
        kind = type(held)()
        kind.CopyFrom(held)
        if plain is not None:
            kind.tensor_type.elem_type = plain
            kind.tensor_type.shape.CopyFrom(held.quantized_tensor_type.shape)
        value.type.Clear()
        target = value.type.map_type.value_type if container == "map" else value.type.sequence_type.elem_type
        target.CopyFrom(kind)
        if container == "map":
            value.type.map_type.key_type = key_type
    return ModelProto.FromString(made.SerializeToString())


def container_model(container, plain, **options):
    elem_type = FLOAT16 if plain is None else plain
    return retyped(updating(DIMS, elem_type=elem_type, **options), container, plain)


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("container", CONTAINERS)
def test_rows_are_written_through_pages_of_every_container_in_place(container, element):
    from tenonnx import dtypes

    plain = ELEMENTS[element]
    made = container_model(container, plain)
    assert check(made) == []
    context = ShapesContext(made)
    assert context["updated_cache"] == context["cache"] and context.alias_root("updated_cache") == "cache"
    format = {None: "INT8_PAGE", FLOAT: "F32", FLOAT16: "F16", BFLOAT16: "BF16"}[plain]
    dtype = dtypes.BY_NUMBER[plain or FLOAT16].numpy
    table = PageTable(PageSpec(plain or FLOAT16, DIMS), format)
    table.create(0)
    where, values = table[0].address, np.random.default_rng(0).normal(size=(2, 3, 7, 32)).astype(dtype)
    given = {"page_id": np.array([0, 1]), "position": np.array(1), "values": values}
    result = Session(made).run({"cache": writable(table), **given})
    assert result["updated_cache"] is table and table[0].address == where and table.formats() == [format, format]
    found = np.concatenate([table[number].decode() for number in (0, 1)], axis=2)
    assert not found[:, :, 0].any()
    np.testing.assert_allclose(found[:, :, 1:], values.astype(np.float32), atol=0 if plain else 0.02)


@pytest.mark.parametrize("element", ["float", "float16", "quantized"])
@pytest.mark.parametrize("container", CONTAINERS)
def test_a_paged_cache_over_every_container_grows_and_attention_reads_it(container, element):
    plain = ELEMENTS[element]
    made = retyped(attending(4, 2, 4, 32), container, plain)
    for value in made.graph.input:
        if plain is not None and value.name.endswith("_rows"):
            value.type.tensor_type.elem_type = plain
    session = Session(made)
    cache = session.new_cache(100)
    assert isinstance(cache, PagedCache)
    rng, held = np.random.default_rng(1), {"k": [], "v": []}
    for n in (6, 1, 3):
        q = rng.normal(size=(1, 4, n, 32)).astype(np.float32)
        new = {name: rows(rng, 2, n, 32).astype(np.float32 if plain == FLOAT else np.float16) for name in "kv"}
        y = session.run({"q": q, "k_rows": new["k"], "v_rows": new["v"]}, cache=cache)["y"]
        for name in "kv":
            held[name].append(new[name].astype(np.float32))
        k, v = (np.concatenate(held[name], axis=1)[None] for name in "kv")
        np.testing.assert_allclose(y, attention(q, k, v, None, np.array([cache.length]), True, scale=32**-0.5), atol=1e-4)
    assert cache.length == 10 and len(cache.pages) == 3
    assert {format for page in cache.page_formats() for format in page.values()} == {"F32" if plain == FLOAT else "F16"}


def test_plain_tensors_admit_no_quantized_page():
    session = Session(container_model("sequence", FLOAT16))
    table = PageTable(PageSpec(FLOAT16, DIMS))
    table.create(0, "INT8_PAGE")
    given = {"page_id": np.array([0]), "position": np.array(0), "values": rows(np.random.default_rng(0), 2, 3, 1, 32)}
    with pytest.raises(errors.PageError, match="page 0 has format INT8_PAGE; the model admits F16"):
        session.run({"cache": writable(table), **given})
    with pytest.raises(errors.PageError, match="the model admits F16"):
        session.new_cache(10, Uniform("INT8_PAGE"))


@pytest.mark.parametrize("container", CONTAINERS)
def test_an_allowed_set_holds_in_a_map_as_in_a_sequence(container):
    made = model()
    index = declare_quantization(made, page_format("FP8_PAGE", 32), FLOAT16)
    session = Session(retyped(updating(DIMS, allowed=[index], made=made), container, None))
    with pytest.raises(errors.PageError, match="the model admits FP8_PAGE_32"):
        session.new_cache(10, Uniform("INT8_PAGE"))
    assert repr(session.new_cache(10).policy) == "Uniform('FP8_PAGE')"


@pytest.mark.parametrize("plain", [None, FLOAT16])
def test_a_map_with_keys_of_another_type_cannot_be_a_table(plain):
    made = retyped(updating(DIMS), "map", plain, key_type=STRING)
    with pytest.raises(errors.TenonnxError, match=r"map|keys"):
        Session(made)


@pytest.mark.parametrize("elem_type", [11, 3, 20])
def test_pages_of_tensors_that_no_kernel_reads_cannot_be_bound(elem_type):
    made = model()
    made.graph.input.add(name="cache").type.sequence_type.elem_type.tensor_type.elem_type = elem_type
    tensor(made.graph.input, "x", FLOAT, [1])
    made.graph.node.add(op_type="Neg", input=["x"], output=["y"])
    tensor(made.graph.output, "y", FLOAT, [1])
    with pytest.raises(errors.UnsupportedError, match=r"'cache': .* cannot be bound in this version"):
        Session(made)


def test_a_sequence_that_another_operator_reads_is_no_table():
    made = model()
    kind = made.graph.input.add(name="cache").type.sequence_type.elem_type.tensor_type
    kind.elem_type = FLOAT
    for dim in (2, 4, 8):
        kind.shape.dim.add(dim_value=dim)
    tensor(made.graph.input, "at", INT64, [])
    made.graph.node.add(op_type="SequenceAt", name="pick", input=["cache", "at"], output=["picked"])
    made.graph.node.add(op_type="Neg", input=["picked"], output=["y"])
    assert ShapesContext(made)["picked"] == SymTensor(FLOAT, (2, 4, 8))
    tensor(made.graph.output, "y", FLOAT, [2, 4, 8])
    table = PageTable(PageSpec(FLOAT, (2, 4, 8)), "F32")
    table.create(0)
    with pytest.raises(errors.UnsupportedError, match=r"pick .*: reads 'cache', a table of pages, which only PagedCacheUpdate"):
        Session(made).run({"cache": table, "at": np.array(0)})


# ---- As messages


def mixed(plain=False):
    """Pages at ids 0, 2 and 3 with content, 1 freed."""
    table = PageTable(PageSpec(FLOAT16, DIMS))
    for number, name in enumerate(["F16"] * 4 if plain else ["INT8_PAGE", "F16", "FP8_PAGE", "INT4_PAGE"]):
        table.create(number, name).encode(np.random.default_rng(number).normal(size=DIMS))
    table.remove(1)
    return table


@pytest.mark.parametrize("plain", [False, True])
def test_a_map_keeps_ids_formats_and_bytes_and_a_freed_id_stays_free(plain):
    table, made = mixed(plain), model()
    message = MapProto.FromString(table.to_proto(made, "cache", keyed=True, plain=plain).SerializeToString())
    assert (list(message.keys), message.key_type, message.name) == ([0, 2, 3], INT64, "cache")
    assert message.values.value_type.WhichOneof("value") == ("tensor_type" if plain else "quantized_tensor_type")
    order = [2, 0, 1]
    values = message.values.tensor_values if plain else message.values.quantized_tensor_values
    shuffled = [type(values[place]).FromString(values[place].SerializeToString()) for place in order]
    message.keys[:] = [message.keys[place] for place in order]
    del values[:]
    values.extend(shuffled)
    back = PageTable.from_proto(message, made)
    assert back.formats() == table.formats() and back.missing(1)
    assert all(np.array_equal(back[number].data, table[number].data) for number in (0, 2, 3))
    with pytest.raises(errors.PageError, match="page 1: the table has no such page"):
        table.to_proto(made)


def test_ordinary_tensors_go_through_a_sequence_and_a_quantized_page_is_none_of_them():
    table, made = mixed(plain=True), model()
    table.copy_page(2, 1)
    message = table.to_proto(made, plain=True)
    assert not made.quantizations and [value.data_type for value in message.tensor_values] == [FLOAT16] * 4
    held = np.frombuffer(message.tensor_values[3].raw_data, np.float16).reshape(DIMS)
    assert np.array_equal(held.astype(np.float32), table[3].decode())
    back = PageTable.from_proto(message, made)
    assert back.formats() == ["F16"] * 4 and all(np.array_equal(a.data, b.data) for a, b in zip(back, table, strict=True))
    table.requantize(0, "BF16")
    with pytest.raises(errors.PageError, match="page 0: has format BF16, which no ordinary tensor has"):
        table.to_proto(made, plain=True)


@pytest.mark.parametrize("keys", [[0, 2], [0, 2, 2], [0, 2, -1], [0, 2, 2**62], [0, 1, 64]])
def test_keys_that_are_no_ids_of_so_many_pages_are_refused_before_memory_is_taken(keys):
    made = model()
    message = mixed().to_proto(made, keyed=True)
    message.keys[:] = keys
    with pytest.raises(errors.PayloadError, match="keys"):
        PageTable.from_proto(message, made)


@pytest.mark.parametrize("change", ["dims", "data_type", "short", "float64", "no shape"])
def test_an_unsound_container_of_tensors_is_refused(change):
    made = model()
    message = mixed(plain=True).to_proto(made, keyed=True, plain=True).values
    value = message.tensor_values[1]
    if change == "dims":
        value.dims[:] = [2, 3, 32, 4]
    elif change == "data_type":
        value.data_type = BFLOAT16
    elif change == "short":
        value.raw_data = value.raw_data[:-2]
    elif change == "float64":
        message.value_type.tensor_type.elem_type = 11
        del message.tensor_values[:]
    else:
        message = SequenceProto(elem_type=SequenceProto.QUANTIZED_TENSOR)
    with pytest.raises(errors.PayloadError):
        PageTable.from_proto(message, made)
