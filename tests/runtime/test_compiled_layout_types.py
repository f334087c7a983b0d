"""Compute layouts as types: exactly the bytes that kernels read, decoded to exactly the tensor that was packed."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenonnx.check.structs import check_structs
from tenonnx.codecs import decode
from tenonnx.compiled import Wanted, layout_types, pack
from tenonnx.layouts import LAYOUTS, layout_for
from tenonnx.schema.messages import ModelProto, StructProto
from tenonnx.structs import catalogue
from tenonnx.structs.decoders import inferred_type
from tenonnx.structs.layout import leaves

FORMATS = [name for name in catalogue if layout_for(name, (8, 256)) is not None]
# Of 11 rows of fixed bytes, packed. Another digest means other bytes: then the layout's version has to go up as well.
BYTES = {
    ("q4", 1): "9dfc5e7c4c42d9e6",
    ("q8", 1): "1e6254c0cf1f95bf",
    ("f16", 1): "1aa49cc160d69e29",
    ("bf16", 1): "1aa49cc160d69e29",
    ("f32", 1): "b224fe9fd32a73d6",
}


def source(format_name, rows, columns, seed=0):
    """The blocks of random values, None where the catalogue has no encoder."""
    format = catalogue[format_name]
    values = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)
    return format.encode(values) if format.quantize is not None else None


def packed(format_name, payload, rows, columns, threads=1):
    layout = layout_for(format_name, (rows, columns))
    return layout, pack(payload, format_name, Wanted(layout, rows, columns), threads)


def value_of(layout, data, rows, columns):
    value = StructProto(name="w", type=-1, raw_data=data.tobytes())
    value.struct_type.ParseFromString(layout_types.declaration(layout.name, rows, columns))
    return value


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_is_a_type_of_its_block_bytes(name):
    layout = LAYOUTS[name]
    assert layout_types.storable(layout)
    for rows, columns in ((1, layout.columns), (8, layout.columns), (9, 2 * layout.columns), (577, 3 * layout.columns)):
        assert layout_types.node(layout, rows, columns).nbytes == layout.nbytes(rows, columns)


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_declares_a_valid_type_and_decoder(name):
    layout = LAYOUTS[name]
    rows, columns = 11, 2 * layout.columns
    model = ModelProto()
    model.struct_types.add().ParseFromString(layout_types.declaration(name, rows, columns))
    assert list(check_structs(model)) == []
    places = leaves(layout_types.node(layout, rows, columns))
    decoded = inferred_type(model.struct_types[0].decoder, places, {}, "type")
    assert [dim.dim_value for dim in decoded.tensor_type.shape.dim] == [rows, columns]


@pytest.mark.parametrize("format_name", FORMATS)
@settings(max_examples=12, deadline=None)
@given(rows=st.integers(1, 33), blocks=st.integers(1, 5), seed=st.integers(0, 2**32 - 1), threads=st.integers(1, 3))
def test_a_pack_decodes_to_its_source(format_name, rows, blocks, seed, threads):
    columns = blocks * max(32, *catalogue[format_name].block_shape, 1)
    payload = source(format_name, rows, columns, seed)
    if payload is None:
        pytest.skip("the catalogue does not encode this format")
    expected = catalogue[format_name].decode(payload, (rows, columns))
    layout, data = packed(format_name, payload, rows, columns, threads)
    found = decode(value_of(layout, data, rows, columns), ModelProto())
    assert found.dtype == np.float32
    if format_name == "Q4_0":  # d * code - 8d has no negative zero
        found, expected = found + np.float32(0), expected + np.float32(0)
    assert found.tobytes() == expected.tobytes()


def test_rows_that_fill_up_a_group_are_zeros_and_do_not_show():
    payload = source("Q4_1", 9, 32)
    layout, data = packed("Q4_1", payload, 9, 32)
    blocks = data.reshape(2, layout.block_bytes)
    assert not blocks[1, 2:16].any() and not blocks[1, 18:32].any()  # d and m of rows 9 to 15
    assert decode(value_of(layout, data, 9, 32), ModelProto()).shape == (9, 32)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_bytes_of_a_layout_change_only_with_its_version(name):
    format_name = next(format_name for format_name in FORMATS if layout_for(format_name, (8, 256)).name == name)
    rows, columns = 11, 512
    format = catalogue[format_name]
    payload = np.random.default_rng(1).integers(0, 256, format.nbytes * format.blocks((rows, columns)), np.uint8)
    payload = payload & 0x3F  # no scale is infinite or NaN
    layout, data = packed(format_name, payload, rows, columns)
    found = hashlib.sha256(data.tobytes()).hexdigest()[:16]
    assert BYTES.get((name, layout.version)) == found, (
        f"layout {layout_types.identity(layout)} of {format_name} has bytes {found}"
    )
