"""Views read, and packing writes, exactly the bits that a type says: against one big integer, read bit by bit."""

from __future__ import annotations

import gc
import itertools
import mmap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenonnx import structs
from tenonnx.errors import CheckError, PayloadError, ShapeError
from tenonnx.structs import bits, constant, f16, pad, structure, u2, u8
from tenonnx.structs.packing import pack_leaves
from tenonnx.structs.scalars import SCALARS

scalars = st.sampled_from([node for node in SCALARS.values() if node.scalar.name != "BOOL"])
tensors = st.builds(structs.tensor, scalars, st.integers(0, 3), st.integers(0, 3)) | scalars
packings = st.builds(
    lambda widths, count: bits(**{f"c{place}": width for place, width in enumerate(widths)})[count],
    st.lists(st.integers(1, 70), max_size=4),
    st.integers(0, 5),
)


def _structures(inner):
    return st.lists(inner, max_size=4).map(lambda nodes: structure("", **{f"f{place}": node for place, node in enumerate(nodes)}))


nodes = st.recursive(
    tensors | packings, lambda inner: st.builds(structs.array, inner, st.integers(0, 5)) | _structures(inner), max_leaves=6
)


def whole(node):
    """``node`` with what is missing to the next byte as explicit padding."""
    return structure("", value=node, fill=pad(-node.bits % 8)) if node.bits % 8 else structure("", value=node)


def oracle(node, bits_, at, index=()):
    """Every element of every leaf, by reading one big integer: {path: {index: code}}."""
    if isinstance(node, structs.Tensor):
        for place, position in enumerate(itertools.product(*map(range, node.dims))):
            yield "", index + position, (bits_ >> (at + place * node.scalar.bits)) & (2**node.scalar.bits - 1)
    elif isinstance(node, structs.Array):
        for place in range(node.dimension):
            yield from oracle(node.element, bits_, at + place * node.element.bits, (*index, place))
    elif isinstance(node, structs.BitPacking):
        for place in range(node.dimension):
            for component in node.components:
                yield component.name, (*index, place), (bits_ >> at) & (2**component.bits - 1)
                at += component.bits
    else:
        for member in node.members:
            for path, position, code in oracle(member.content, bits_, at, index):
                yield f"{member.name}.{path}" if path else member.name, position, code
            at += member.content.bits


def code_of(array, position, leaf):
    element = np.ascontiguousarray(array[position])
    return int.from_bytes(element.tobytes(), "little") & (2**leaf.bits - 1)


@settings(max_examples=150, deadline=None)
@given(nodes.map(whole), st.randoms(use_true_random=False))
def test_every_bit_is_read_and_written_where_it_lies(node, random):
    payload = random.randbytes(node.nbytes)
    leaves = structs.leaves(node)
    arrays = structs.view(payload, node).leaves()
    assert [array.shape for array in arrays] == [leaf.shape for leaf in leaves]
    found = {leaf.path: (leaf, array) for leaf, array in zip(leaves, arrays, strict=True)}
    total = 0
    for path, position, code in oracle(node, int.from_bytes(payload, "little"), 0):
        leaf, array = found[path]
        assert code_of(array, position, leaf) == code
        total += leaf.bits
    assert total == node.bits
    assert pack_leaves(node, arrays, "packed").tobytes() == payload


@pytest.mark.parametrize("short", [name for name in SCALARS if name != "boolean"])
def test_every_code_of_a_scalar_off_its_byte_comes_as_the_ml_dtypes_value(short):
    scalar = SCALARS[short].scalar
    width = min(scalar.bits, 8)
    codes = np.arange(2**width, dtype=np.uint8)
    node = structure("", skew=pad(3), values=structs.tensor(SCALARS[short], 2**width), fill=pad(5))
    big = sum(int(code) << (3 + place * scalar.bits) for place, code in enumerate(codes))
    found = structs.view(big.to_bytes(node.nbytes, "little"), node).values
    assert found.dtype == scalar.numpy
    raw = np.zeros((codes.size, scalar.numpy.itemsize), np.uint8)
    raw[:, 0] = codes
    np.testing.assert_array_equal(found.astype(np.complex128), raw.view(scalar.numpy)[:, 0].astype(np.complex128))


def test_fp4_codes_come_low_nibble_first():
    assert structs.view(b"\x21", structs.f4e2m1[2]).value().astype(float).tolist() == [0.5, 1.0]


BLOCK = structure("", d=f16, qs=bits(lo=4, hi=4)[4], table=constant([1, -1], np.int8))


def test_fields_elements_and_slices_select_the_same_bytes():
    payload = np.arange(6 * 7, dtype=np.uint8)
    view = structs.view(payload, BLOCK[7])
    rows = payload.reshape(7, 6)
    np.testing.assert_array_equal(view.qs.lo, rows[:, 2:] & 15)
    np.testing.assert_array_equal(view[5].qs.hi, rows[5, 2:] >> 4)
    np.testing.assert_array_equal(view[-1].d, rows[6, :2].view(np.float16)[0])
    np.testing.assert_array_equal(view[1:6:2].qs[::-1].lo, rows[1:6:2, 2:][::-1] & 15)
    np.testing.assert_array_equal(view[::-2].d, np.ascontiguousarray(rows[::-2, :2]).view(np.float16)[:, 0])
    assert view.table.tolist() == [1, -1]
    assert len(view) == 7 and [element.qs.lo.shape for element in view] == [(4,)] * 7
    assert view.names == ("d", "qs", "table") and view["qs"].names == ("lo", "hi")


def test_leaves_in_whole_bytes_are_views_and_never_writable():
    payload = bytearray(np.arange(42, dtype=np.uint8))
    view = structs.view(payload, BLOCK[7])
    assert np.shares_memory(view.d, np.frombuffer(payload, np.uint8))
    for leaf in (view.d, view.qs.lo, view.table):
        with pytest.raises(ValueError, match="read-only"):
            leaf[...] = 0


def test_a_leaf_keeps_a_mapped_file_alive(tmp_path):
    path = tmp_path / "payload"
    path.write_bytes(bytes(range(42)))
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    leaf = structs.view(np.frombuffer(mapped, np.uint8), BLOCK[7]).d
    del mapped
    gc.collect()
    assert [element.tobytes()[0] for element in leaf] == list(range(0, 42, 6))


@pytest.mark.parametrize("length", [0, 41, 43])
def test_a_payload_of_another_length_is_refused(length):
    with pytest.raises(PayloadError, match=f"takes 42 bytes, found {length}"):
        structs.view(bytes(length), BLOCK[7])


def test_bool_bytes_other_than_0_and_1_are_refused_where_they_are_read():
    flags = structure("", count=u8, flags=structs.boolean[3])
    assert structs.view(bytes([9, 0, 1, 1]), flags).flags.tolist() == [False, True, True]
    view = structs.view(bytes([9, 0, 1, 2]), flags)
    assert view.count == 9
    with pytest.raises(PayloadError, match="BOOL byte of 2"):
        _ = view.flags


def test_unknown_fields_name_the_known_ones():
    view = structs.view(bytes(42), BLOCK[7])
    with pytest.raises(AttributeError, match="no field 'scale'; it has d, qs, table"):
        _ = view.scale
    with pytest.raises(KeyError, match="no field"):
        _ = view["scale"]
    with pytest.raises(IndexError):
        _ = view[7]
    with pytest.raises(TypeError, match="one element"):
        len(view[0])


def test_a_component_wider_than_64_bits_comes_as_bytes():
    view = structs.view(bytes(range(1, 11)), bits(low=4, wide=67, rest=9)[1])
    value = int.from_bytes(bytes(range(1, 11)), "little") >> 4 & (2**67 - 1)
    assert view.wide.tobytes() == value.to_bytes(9, "little")


def test_equal_types_are_equal_by_bits_and_constants_only():
    same = structure("other", scale=f16, codes=bits(a=4, b=4)[4], t=constant([1, -1], np.int8))
    assert same == BLOCK and hash(same) == hash(BLOCK)
    assert structure("", d=f16, qs=bits(lo=4, hi=4)[4], table=constant([1, -2], np.int8)) != BLOCK
    assert structure("", d=f16, qs=bits(lo=3, hi=5)[4], table=constant([1, -1], np.int8)) != BLOCK


def test_repr_reads_like_the_declaration():
    assert repr(BLOCK) == "structure('', d=f16, qs=bits(lo=4, hi=4)[4], table=constant([1, -1], i8))"
    assert repr(structs.tensor(u2, 2, 3)[4]) == "tensor(u2, 2, 3)[4]"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: bits(a=0)[1], "component 'a' is 0 bits wide"),
        (lambda: bits(a=2**32)[1], "expected 1 to 2"),
        (lambda: u8[-1], "dimension is -1"),
        (lambda: u8[2**64], "expected a count"),
        (lambda: structure("", a=3), "3 is no physical type"),
        (lambda: structs.to_proto(u8), "alone is no structured type"),
        (lambda: constant(["text"]), "no element type"),
        (lambda: structure("", a=u2)[1].nbytes, "of 2 bits is not whole bytes; add a field of 6 bits"),
    ],
)
def test_what_cannot_be_declared_says_why(build, message):
    with pytest.raises((CheckError, ShapeError), match=message):
        build()


def test_packing_refuses_values_that_the_bits_do_not_hold():
    node = structure("", codes=bits(lo=3, hi=5)[2], count=u8)
    with pytest.raises(PayloadError, match=r"leaf 'codes.lo' has values from 0 to 8; its bits hold 0 to 7"):
        pack_leaves(node, [[0, 8], [0, 0], 1], "value")
    with pytest.raises(PayloadError, match="takes unsigned integers"):
        pack_leaves(node, [[0.5, 1], [0, 0], 1], "value")
    with pytest.raises(PayloadError, match="UINT8 does not hold"):
        pack_leaves(node, [[0, 1], [0, 0], 256], "value")
    with pytest.raises(ShapeError, match=r"shape \[3\]; expected \[2\]"):
        pack_leaves(node, [[0, 1, 2], [0, 0], 1], "value")
