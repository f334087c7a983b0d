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
from tests.native import packed as packed_blocks

FORMATS = [name for name in catalogue if layout_for(name, (8, 256)) is not None]
LAYOUT_OF = {name: layout_for(name, (8, 256)) for name in FORMATS}
STORED = {layout.name: layout for layout in (*LAYOUTS.values(), *LAYOUT_OF.values())}
# Of 11 rows of fixed bytes, packed. Another digest means other bytes: then the layout's version has to go up as well.
BYTES = {
    ("bf16", 1): "b7444632ae874ae7",
    ("f16", 1): "b7444632ae874ae7",
    ("f32", 1): "28bfacd3261d211b",
    ("fp4", 1): "5985869de5fe347b",
    ("fp4h", 1): "7a407d7cf6831640",
    ("g4_128", 1): "b2d75df2a5d2956f",
    ("g4_32", 1): "e680bfc59573055d",
    ("g4_64", 1): "cbfd53359e19d49c",
    ("g8_128", 1): "45bcbb90984e22c8",
    ("g8_32", 1): "917946184d6a00ce",
    ("g8_64", 1): "334fd7187e3d90c3",
    ("iq4", 1): "2f63605f18ec0918",
    ("iq4k", 1): "c3d7b93028fa888f",
    ("lut_128", 1): "a86f5c41b5dd3338",
    ("lut_64", 1): "506d9ee97386e2c9",
    ("q2k", 1): "ee8b43f764759d77",
    ("q3k", 1): "0b8db05f2fe77484",
    ("q4", 1): "2f63605f18ec0918",
    ("q4k", 1): "0e3f12657a582fec",
    ("q4m", 1): "378c09735858087b",
    ("q5", 1): "45d92b63993dbf7d",
    ("q5k", 1): "3e15708aba584ec5",
    ("q5m", 1): "4343fa47f1906b21",
    ("q6k", 1): "f0a0e9a0878e402d",
    ("q8", 1): "9b13110dd397efcf",
}
# Formats whose value at a code of 0 is a product d * 0: its sign is lost where the layout adds a minimum instead.
UNSIGNED_ZERO = {"TQ1_0", "TQ2_0", "NF4", "BITNET", "Q1_0"}


def source(format_name, rows, columns, seed=0):
    """Blocks with finite scales: of encoded values, or of random codes."""
    format, rng = catalogue[format_name], np.random.default_rng(seed)
    if format_name in packed_blocks.QUANTIZED:
        return packed_blocks.random_blocks(rng, format_name, rows, columns).reshape(-1)
    if format.quantize is None:
        return rng.integers(0, 64, format.nbytes * format.blocks((rows, columns)), np.uint8)
    return format.encode(rng.standard_normal((rows, columns)).astype(np.float32))


def packed(format_name, payload, rows, columns, threads=1):
    layout = layout_for(format_name, (rows, columns))
    return layout, pack(payload, format_name, Wanted(layout, rows, columns), threads)


def value_of(layout, data, rows, columns):
    value = StructProto(name="w", type=-1, raw_data=data.tobytes())
    value.struct_type.ParseFromString(layout_types.declaration(layout, rows, columns))
    return value


@pytest.mark.parametrize("name", STORED)
def test_every_layout_is_a_type_of_its_block_bytes(name):
    layout = STORED[name]
    assert layout_types.storable(layout)
    for rows, columns in ((1, layout.columns), (8, layout.columns), (9, 2 * layout.columns), (577, 3 * layout.columns)):
        assert layout_types.node(layout, rows, columns).nbytes == layout.nbytes(rows, columns)


@pytest.mark.parametrize("name", STORED)
def test_every_layout_declares_a_valid_type_and_decoder(name):
    layout = STORED[name]
    rows, columns = 11, 2 * layout.columns
    model = ModelProto()
    model.struct_types.add().ParseFromString(layout_types.declaration(layout, rows, columns))
    assert list(check_structs(model)) == []
    places = leaves(layout_types.node(layout, rows, columns))
    decoded = inferred_type(model.struct_types[0].decoder, places, {}, "type")
    assert [dim.dim_value for dim in decoded.tensor_type.shape.dim] == [rows, columns]


@pytest.mark.parametrize("format_name", FORMATS)
@settings(max_examples=8, deadline=None)
@given(rows=st.integers(1, 33), blocks=st.integers(1, 5), seed=st.integers(0, 2**32 - 1), threads=st.integers(1, 3))
def test_a_pack_decodes_to_its_source(format_name, rows, blocks, seed, threads):
    columns = blocks * max(32, LAYOUT_OF[format_name].columns, *catalogue[format_name].block_shape)
    payload = source(format_name, rows, columns, seed)
    expected = catalogue[format_name].decode(payload, (rows, columns))
    layout, data = packed(format_name, payload, rows, columns, threads)
    found = decode(value_of(layout, data, rows, columns), ModelProto())
    assert found.dtype == np.float32
    if format_name in UNSIGNED_ZERO:
        found, expected = found + np.float32(0), expected + np.float32(0)
    assert found.tobytes() == expected.tobytes()


def test_rows_that_fill_up_a_group_are_zeros_and_do_not_show():
    payload = source("Q4_1", 9, 32)
    layout, data = packed("Q4_1", payload, 9, 32)
    blocks = data.reshape(2, layout.block_bytes)
    assert not blocks[1, 2:16].any() and not blocks[1, 18:32].any()  # d and m of rows 9 to 15
    assert decode(value_of(layout, data, 9, 32), ModelProto()).shape == (9, 32)


@pytest.mark.parametrize("name", STORED)
def test_the_bytes_of_a_layout_change_only_with_its_version(name):
    format_name = next(format_name for format_name in FORMATS if LAYOUT_OF[format_name].name == name)
    rows, columns = 11, 512
    format = catalogue[format_name]
    payload = np.random.default_rng(1).integers(0, 64, format.nbytes * format.blocks((rows, columns)), np.uint8)
    layout, data = packed(format_name, payload, rows, columns)
    found = hashlib.sha256(data.tobytes()).hexdigest()[:16]
    assert BYTES.get((name, layout.version)) == found, (
        f"layout {layout_types.identity(layout)} of {format_name} has bytes {found}"
    )
