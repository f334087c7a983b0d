"""Structured values of graphs: what may be bound to a static type, and what the checker says where they disagree."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from google.protobuf import text_format
from hypothesis import given, settings

from tenonnx import codecs, structs
from tenonnx.check.structs import check_structs
from tenonnx.dtypes import SCALARS
from tenonnx.errors import CheckError, PayloadError, UnsupportedError
from tenonnx.schema.external import DataRoot
from tenonnx.schema.messages import MapProto, ModelProto, OptionalProto, SequenceProto, StructProto, StructTypeProto, TypeProto
from tenonnx.structs import bits, check_value, constant, f32, i4, i8, i64, pad, structure, u8
from tests.pure.test_structs_values import nodes

TYPES = [structs.to_proto(u8[2]), structs.to_proto(u8[3])]
TWO, THREE, ANY = (f"struct_type {{ {kind} }}" for kind in ("type_index: 0", "type_index: 1", ""))


def declared(text):
    return text_format.Parse(text, TypeProto())


def value(index=0, length=None):
    return StructProto(name="w", type=index, raw_data=bytes(index + 2 if length is None else length))


def inline(length=2):
    made = StructProto(type=-1, raw_data=bytes(length))
    made.struct_type.CopyFrom(TYPES[0])
    return made


def sequence(*values, of=None):
    made = SequenceProto(elem_type=1001)
    made.struct_values.extend(values)
    if of is not None:
        made.value_type.CopyFrom(declared(of))
    return made


def mapped(keys, *values, key_type=7):
    made = MapProto(key_type=key_type, values=sequence(*values))
    (made.string_keys if key_type == 8 else made.keys).extend(keys)
    return made


def sequence_of(element):
    return f"sequence_type {{ elem_type {{ {element} }} }}"


def map_of(element, key_type=7):
    return f"map_type {{ key_type: {key_type} value_type {{ {element} }} }}"


def optional_of(element):
    return f"optional_type {{ elem_type {{ {element} }} }}"


@pytest.mark.parametrize(
    ("bound", "static"),
    [
        (value(0), TWO),
        (value(1), THREE),
        (value(0), ANY),
        (inline(), ANY),
        ([], sequence_of(TWO)),
        ([value(0), value(0)], sequence_of(TWO)),
        (sequence(value(0), value(0)), sequence_of(TWO)),
        (sequence(value(0), value(1), inline(), of=ANY), sequence_of(ANY)),
        (SequenceProto(), sequence_of(ANY)),
        ({1: value(1)}, map_of(THREE)),
        (mapped([1, 2], value(1), value(0)), map_of(ANY)),
        (mapped([b"a"], value(1), key_type=8), map_of(THREE, 8)),
        (None, optional_of(TWO)),
        (OptionalProto(), optional_of(TWO)),
        (OptionalProto(struct_value=value(0)), optional_of(TWO)),
        (value(0), optional_of(TWO)),
        ([[value(0)], []], sequence_of(sequence_of(TWO))),
        ([{3: value(0)}, None][:1], sequence_of(map_of(TWO))),
        (OptionalProto(sequence_value=sequence(value(0))), optional_of(sequence_of(TWO))),
    ],
)
def test_what_is_of_its_static_type_is_taken(bound, static):
    check_value(bound, declared(static), TYPES)


@pytest.mark.parametrize(
    ("bound", "static", "error", "message"),
    [
        (value(1), TWO, CheckError, r"value: it has type 1; expected struct_types\[0\]"),
        (inline(), TWO, CheckError, "it has an inline type; expected"),
        (value(7), ANY, CheckError, r"type index 7 is not in struct_types"),
        (StructProto(raw_data=b"ab"), ANY, CheckError, "it has no type"),
        (value(0, 3), TWO, PayloadError, "takes 2 bytes, found 3"),
        (inline(1), ANY, PayloadError, "takes 2 bytes, found 1"),
        (np.zeros(2), TWO, CheckError, "expected a StructProto, found a ndarray"),
        ([value(0)], TWO, CheckError, "expected a StructProto, found a list"),
        (value(0), "struct_type { array { dimension: 1 } }", CheckError, "declares its own array"),
        (value(0), "tensor_type { elem_type: 1 }", UnsupportedError, "type tensor_type holds no structured values"),
        (value(0), "", UnsupportedError, "type unset"),
        ([value(0), value(1)], sequence_of(TWO), CheckError, r"value\[1\]: it has type 1"),
        (sequence(value(0), value(0, 1)), sequence_of(ANY), PayloadError, r"value\[1\]: .*found 1"),
        (sequence(value(0), of=ANY), sequence_of(TWO), CheckError, "its value_type is not the declared type"),
        (value(0), sequence_of(TWO), CheckError, "expected a SequenceProto or a list, found a StructProto"),
        ({"a": value(1)}, map_of(TWO), CheckError, r"value\['a'\]: it has type 1"),
        ([value(1)], map_of(TWO), CheckError, "expected a MapProto or a dict"),
        (mapped([1, 1], value(0), value(0)), map_of(TWO), CheckError, "2 values for 1 keys"),
        (mapped([1], value(0), value(0)), map_of(TWO), CheckError, "2 values for 1 keys"),
        (mapped([1], value(0)), map_of(TWO, 8), CheckError, "keys are of type 7; expected 8"),
        (OptionalProto(struct_value=value(1)), optional_of(TWO), CheckError, "it has type 1"),
        (
            OptionalProto(struct_value=value(0), sequence_value=sequence()),
            optional_of(TWO),
            CheckError,
            "holds struct_value and sequence_value",
        ),
        ([None], sequence_of(TWO), CheckError, r"value\[0\]: expected a StructProto, found a NoneType"),
    ],
)
def test_what_is_not_of_its_static_type_is_refused(bound, static, error, message):
    with pytest.raises(error, match=message):
        check_value(bound, declared(static), TYPES)


def test_a_sequence_of_two_kinds_is_refused():
    both = sequence(value(0))
    both.map_values.add()
    with pytest.raises(CheckError, match="holds struct_values and map_values"):
        check_value(both, declared(sequence_of(TWO)), TYPES)


def test_external_bytes_of_a_bound_value_are_looked_at_with_a_data_root(tmp_path):
    bound = StructProto(type=0)
    bound.external_data.add(key="location", value="w")
    with pytest.raises(PayloadError, match="no length"):
        check_value(bound, declared(TWO), TYPES)
    bound.external_data.add(key="length", value="2")
    check_value(bound, declared(TWO), TYPES)
    with pytest.raises(PayloadError):
        check_value(bound, declared(TWO), TYPES, DataRoot(tmp_path))
    (tmp_path / "w").write_bytes(b"ab")
    check_value(bound, declared(TWO), TYPES, DataRoot(tmp_path))
    bound.raw_data = b"ab"
    with pytest.raises(PayloadError, match="both raw_data and external_data"):
        check_value(bound, declared(TWO), TYPES)


def findings(model):
    return [(found.rule, found.where) for found in check_structs(model)]


def test_static_types_of_functions_nested_graphs_and_attributes_are_checked():
    model = ModelProto(struct_types=TYPES)
    function = model.functions.add(name="f")
    function.value_info.add(name="x", type=declared("struct_type { type_index: 9 }"))
    inner = model.graph.node.add(name="if").attribute.add(name="then_branch").g
    inner.output.add(name="y", type=declared(sequence_of("struct_type { array { dimension: 1 } }")))
    attribute = model.graph.node.add(op_type="Optional").attribute.add(name="type")
    attribute.tp.CopyFrom(declared(map_of('struct_type { name: "n" }')))
    assert sorted(findings(model)) == [
        ("reference-exists", "functions[0].value_info[0].type.struct_type.type_index"),
        ("static-type-is-bare", "graph.Optional.type.map_type.value_type.struct_type.name"),
        ("static-type-is-bare", "graph.if.then_branch.output[0].type.sequence_type.elem_type.struct_type"),
    ]


@pytest.mark.parametrize(
    ("static", "ok"),
    [(TWO, True), (ANY, True), (THREE, False), (sequence_of(TWO), False), ("tensor_type { elem_type: 1 }", False)],
)
@pytest.mark.parametrize("part", ["input", "output", "value_info"])
def test_an_initializer_has_the_type_that_its_graph_declares_for_its_name(static, ok, part):
    model = ModelProto(struct_types=TYPES)
    model.graph.struct_initializer.append(value(0))
    getattr(model.graph, part).add(name="w", type=declared(static))
    expected = [] if ok else [("initializer-is-of-its-declared-type", "graph.struct_initializer[0]")]
    assert findings(model) == expected


@pytest.mark.parametrize("scalar", SCALARS, ids=lambda scalar: scalar.name)
@pytest.mark.parametrize("nested", [False, True], ids=["array", "tensor in a structure"])
def test_truncated_and_over_long_payloads_of_every_scalar_are_refused_everywhere(scalar, nested, tmp_path):
    leaf = structs.Tensor(scalar)
    count = 8 // math.gcd(scalar.bits, 8)
    node = structure("S", head=pad(8), values=structs.tensor(leaf, count, 1)) if nested else leaf[count]
    model = ModelProto(struct_types=[structs.to_proto(node)])
    for length, ok in ((node.nbytes, True), (node.nbytes - 1, False), (node.nbytes + 1, False), (0, False), (10**6, False)):
        payload = bytes(length)
        (tmp_path / "w").write_bytes(payload)
        own = StructProto(name="w", type=-1, raw_data=payload)
        own.struct_type.CopyFrom(model.struct_types[0])
        outside = StructProto(name="w", type=0)
        for key, text in (("location", "w"), ("length", str(length))):
            outside.external_data.add(key=key, value=text)
        for bound in (StructProto(name="w", type=0, raw_data=payload), own, outside):
            del model.graph.struct_initializer[:]
            model.graph.struct_initializer.append(bound)
            root = DataRoot(tmp_path)
            assert [found.rule for found in check_structs(model, root)] == ([] if ok else ["payload-is-exact"])
            if ok:
                structs.view(bound, None, model.struct_types, root)
                check_value(bound, declared(ANY), model.struct_types, root)
                continue
            with pytest.raises(PayloadError, match=f"takes {node.nbytes} bytes, found {length}"):
                structs.view(bound, None, model.struct_types, root)
            with pytest.raises(PayloadError, match=f"takes {node.nbytes} bytes, found {length}"):
                check_value(bound, declared(ANY), model.struct_types, root)


def test_the_example_of_the_specification_written_with_the_builder_is_the_same_type(tmp_path):
    node = structure("LINEAR_INT4_128", values=i4[128], scale=constant(0.125, f32), zero_point=constant(0, i64))
    assert node.nbytes == 64
    example = text_format.Parse(
        """
        name: "LINEAR_INT4_128"
        structure {
          field: {
            name: "values"
            type: { struct_type: { array: { element_type: { tensor_type: { elem_type: 22 shape: {} } } dimension: 128 } } }
          }
          field: { name: "scale" constant: { data_type: 1 float_data: 0.125 } }
          field: { name: "zero_point" constant: { data_type: 7 int64_data: 0 } }
        }""",
        StructTypeProto(),
    )
    assert structs.from_proto(example) == node
    text = "structure('LINEAR_INT4_128', values=i4[128], scale=constant(0.125, f32), zero_point=constant(0, i64))"
    assert repr(structs.from_proto(example)) == repr(node) == text
    decoder = structs.functions.parse(
        "decode",
        """(values, scale, zero_point) => (decoded) {
          codes = Cast<to = 1>(values)
          zero = Cast<to = 1>(zero_point)
          steps = Sub(codes, zero)
          decoded = Mul(steps, scale)
        }""",
    )
    example.decoder.CopyFrom(decoder)
    model = ModelProto(ir_version=11, struct_types=[example])
    model.graph.name = "g"
    payload = np.random.default_rng(0).integers(0, 256, 64, np.uint8)
    model.graph.struct_initializer.add(name="weight", type=0, raw_data=payload.tobytes())
    onnx.save(onnx.ModelProto.FromString(model.SerializeToString()), tmp_path / "m.onnx")
    again = ModelProto.FromString((tmp_path / "m.onnx").read_bytes())
    assert list(check_structs(again)) == []
    nibbles = np.stack((payload & 15, payload >> 4), axis=1).reshape(-1).astype(np.int64)
    expected = np.where(nibbles > 7, nibbles - 16, nibbles).astype(np.float32) * np.float32(0.125)
    np.testing.assert_array_equal(codecs.decode(again.graph.struct_initializer[0], again), expected)


def names_of(node):
    return [leaf.path for leaf in structs.leaves(node)], getattr(node, "name", "")


@settings(max_examples=100, deadline=None)
@given(nodes)
def test_what_repr_prints_makes_the_same_type(node):
    again = eval(repr(node), vars(structs) | {"nan": np.nan, "inf": np.inf})
    assert again == node and names_of(again) == names_of(node)


@pytest.mark.parametrize(
    "node",
    [
        structure("S", table=constant([1, -2], i8), levels=constant([[0.5], [-0.0]], np.float16), one=u8),
        structure("S", a=constant(np.array([1, 3], structs.bf16.scalar.numpy)), b=constant([7, -8], i4), c=constant(True)),
        structure("S", **{"of": u8, "no identifier": u8, "class": bits(**{"1st": 3, "lambda": 5})[2]}),
        structure("S", nan=constant([np.nan, np.inf, -np.inf], f32), complex=constant([1 + 2j], structs.c64)),
        structure("S"),
    ],
    ids=repr,
)
def test_constants_and_odd_names_are_printed_as_they_are_written(node):
    again = eval(repr(node), vars(structs) | {"nan": np.nan, "inf": np.inf})
    assert again == node and names_of(again) == names_of(node)
    assert repr(structs.from_proto(structs.to_proto(node))) == repr(node)
