"""Types that claim more than a reader may spend on them: each is answered at once, by an error of its own."""

from __future__ import annotations

import numpy as np
import pytest

from tenonnx import structs
from tenonnx.check.structs import check_structs
from tenonnx.errors import CheckError, PayloadError
from tenonnx.schema.messages import ModelProto
from tenonnx.structs import TypeLimit, bits, structure, u8


def refer(message, index):
    message.struct_type.type_index = index


def chain(length, last=None):
    """``length`` declarations, each an array of the next; the last refers to ``last``, or is an array of bytes."""
    model = ModelProto()
    for index in range(length):
        array = model.struct_types.add().array
        array.dimension = 1
        if index + 1 < length:
            refer(array.element_type, index + 1)
        elif last is not None:
            refer(array.element_type, last)
        else:
            array.element_type.CopyFrom(structs.to_proto(u8[1]).array.element_type)
    return model


def rules_of(model):
    return [(found.kind, found.rule) for found in check_structs(model)]


@pytest.mark.parametrize("length", [1, 2, 3, 4000])
def test_a_cycle_is_named_once_and_never_followed_twice(length):
    model = chain(length, last=0)
    assert rules_of(model) == [("invalid", "references-are-acyclic")]
    with pytest.raises(CheckError, match="contain one another"):
        structs.size_bits(length // 2, model.struct_types)


def test_a_cycle_through_an_array_inside_a_structure_is_found():
    model = ModelProto()
    field = model.struct_types.add().structure.field.add(name="a")
    field.type.struct_type.array.dimension = 0
    refer(field.type.struct_type.array.element_type, 1)
    refer(model.struct_types.add().structure.field.add(name="b").type, 0)
    assert rules_of(model) == [("invalid", "references-are-acyclic")]
    with pytest.raises(CheckError, match=r"struct_types 1 → 0 → 1 contain"):
        structs.size_bits(1, model.struct_types)


def test_a_long_chain_of_references_is_a_limit_and_not_a_crash():
    deep = chain(4000)
    assert structs.size_bits(3940, deep.struct_types) == 8
    assert rules_of(deep) == [("limit", "type-is-within-limits")]
    with pytest.raises(TypeLimit, match="more than 64 levels deep"):
        structs.size_bits(0, deep.struct_types)
    many = chain(100_000)
    assert rules_of(many) == [("limit", "type-is-within-limits")]
    with pytest.raises(TypeLimit, match="100000 declarations"):
        structs.size_bits(0, many.struct_types)


def doubling(levels, bottom):
    """Each declaration holds the next one twice: 2 ** levels times the last."""
    model = ModelProto()
    for index in range(levels):
        structure_ = model.struct_types.add().structure
        for name in "ab":
            refer(structure_.field.add(name=name).type, index + 1)
    model.struct_types.append(structs.to_proto(bottom))
    return model


@pytest.mark.parametrize("bottom", [u8[1], structure("")], ids=["bytes", "nothing"])
def test_a_graph_of_references_with_2_to_the_40_leaves_is_a_limit(bottom):
    model = doubling(40, bottom)
    assert rules_of(model) == [("limit", "type-is-within-limits")]
    with pytest.raises(TypeLimit, match="fields with references expanded"):
        structs.size_bits(0, model.struct_types)
    with pytest.raises(TypeLimit):
        structs.view(b"", 0, model.struct_types)


@pytest.mark.parametrize(
    "build",
    [
        lambda: structs.array(structure(""), 2**63),
        lambda: structs.array(u8[0], 700_000_000),
        lambda: structs.array(structure("")[60_000], 60_000),
        lambda: structs.array(structs.tensor(u8, 0), 2**40),
        lambda: structs.tensor(u8, 2**40, 0),
        lambda: bits()[2**63],
        lambda: structs.array(structure("", table=structs.constant(np.zeros(4, np.int8))), 2**63),
        lambda: structure("", count=u8, rest=structure("")[65_537]),
    ],
)
def test_elements_without_bits_do_not_multiply(build):
    with pytest.raises(TypeLimit, match="elements of no bits"):
        build()


def test_dims_around_an_empty_axis_are_no_allocation():
    assert structs.view(b"", structs.tensor(structs.f32, 0, 2**40)[1]).value().shape == (1, 0, 2**40)
    assert structs.view(b"", structs.tensor(u8, 2**60)[0]).value().size == 0
    with pytest.raises(TypeLimit, match="do not fit a NumPy array"):
        _ = structs.view(b"", structs.array(bits(a=1)[2**63], 0)).a


def test_one_byte_that_claims_many_elements_is_refused_by_its_length():
    for node in (u8[700_000_000], bits(a=1)[2**63], structs.array(structs.u2, 2**62)):
        with pytest.raises(PayloadError, match="found 1"):
            structs.view(b"x", node)


def test_a_wide_structure_is_a_limit():
    model = ModelProto()
    declared = model.struct_types.add().structure
    byte = structs.to_proto(u8[1]).array.element_type
    for index in range(20_000):
        declared.field.add(name=str(index)).type.CopyFrom(byte)
    assert rules_of(model) == [("limit", "type-is-within-limits")]
    with pytest.raises(TypeLimit, match="20000 fields"):
        structs.size_bits(0, model.struct_types)
