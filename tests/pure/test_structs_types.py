"""Declared types: sizes, references, and every rule that makes one invalid."""

from __future__ import annotations

import pytest
from google.protobuf import text_format
from hypothesis import given, settings

from tenonnx import structs
from tenonnx.check.structs import check_structs
from tenonnx.dtypes import SCALARS
from tenonnx.errors import CheckError, PayloadError
from tenonnx.schema.external import DataRoot
from tenonnx.schema.messages import ModelProto, StructProto, StructTypeProto, TypeProto
from tenonnx.structs import TypeLimit, Types
from tests.pure.test_structs_values import nodes, whole


def declared(text):
    return text_format.Parse(text, StructTypeProto())


def model_of(*texts, values=()):
    model = ModelProto(struct_types=[declared(text) for text in texts])
    model.graph.struct_initializer.extend(text_format.Parse(value, StructProto()) for value in values)
    return model


def findings(model, data_root=None):
    return [(found.rule, found.where) for found in check_structs(model, data_root)]


U8 = "tensor_type { elem_type: 2 shape {} }"


def reference(index):
    return f"struct_type {{ type_index: {index} }}"


def array(dimension, element):
    return f"array {{ dimension: {dimension} element_type {{ {element} }} }}"


def structure(**fields):
    return "structure {" + " ".join(f'field {{ name: "{name}" {content} }}' for name, content in fields.items()) + "}"


BYTES = array(4, U8)

# The example of the specification, written as there.
LINEAR_INT4_128 = """
name: "LINEAR_INT4_128"
structure {
  field { name: "values" type { struct_type {
    array { dimension: 128 element_type { tensor_type { elem_type: 22 shape {} } } }
  } } }
  field { name: "scale" constant { data_type: 1 float_data: 0.125 } }
  field { name: "zero_point" constant { data_type: 7 int64_data: 0 } }
}"""


def test_the_example_of_the_specification_takes_64_bytes_and_reads_back():
    payload = bytes(range(64))
    model = model_of(LINEAR_INT4_128, values=['name: "weight" type: 0'])
    weight = model.graph.struct_initializer[0]
    weight.raw_data = payload
    assert structs.size_bits(0, model.struct_types) == 128 * 4
    assert findings(model) == []
    view = structs.view(weight, struct_types=model.struct_types)
    codes = [(byte >> shift) & 15 for byte in payload for shift in (0, 4)]
    assert [int(value) for value in view["values"]] == [code - 16 if code > 7 else code for code in codes]
    assert (view.scale.item(), view.zero_point.item()) == (0.125, 0)
    assert [(leaf.path, leaf.offset, leaf.axes) for leaf in structs.leaves(structs.physical(0, model.struct_types))] == [
        ("values", 0, (structs.Axis(128, 4),)),
        ("scale", 512, ()),
        ("zero_point", 512, ()),
    ]


@settings(max_examples=100, deadline=None)
@given(nodes.map(whole))
def test_a_type_survives_its_message_with_size_and_names(node):
    message = structs.to_proto(node, "T")
    again = structs.physical(StructTypeProto.FromString(message.SerializeToString()))
    assert again == node and again.bits == node.bits
    assert [leaf.path for leaf in structs.leaves(again)] == [leaf.path for leaf in structs.leaves(node)]


@pytest.mark.parametrize("scalar", SCALARS, ids=lambda scalar: scalar.name)
def test_the_size_of_every_scalar(scalar):
    text = array(24, f"tensor_type {{ elem_type: {scalar.number} shape {{ dim {{ dim_value: 3 }} }} }}")
    assert structs.size_bits(declared(text)) == 72 * scalar.bits
    for length in (9 * scalar.bits - 1, 9 * scalar.bits + 1):
        with pytest.raises(PayloadError):
            structs.view(bytes(length), declared(text))


def test_references_are_followed_forward_and_shared():
    model = model_of(
        structure(a=f"type {{ {reference(1)} }}", b=f"type {{ {reference(1)} }}"),
        array(3, reference(2)),
        'bit_packing { dimension: 2 component { name: "x" bit_width: 3 } component { name: "y" bit_width: 5 } }',
    )
    assert [structs.size_bits(index, model.struct_types) for index in range(3)] == [96, 48, 16]
    types = Types(model.struct_types)
    assert types.node(0).members[0].content is types.node(1)
    assert findings(model) == []


def test_a_nested_declaration_may_end_inside_a_byte_but_no_root():
    three = 'bit_packing { dimension: 1 component { name: "x" bit_width: 3 } }'
    eight_of_it = array(8, reference(0))
    assert findings(model_of(three, eight_of_it)) == []
    assert findings(model_of(three)) == [("root-is-whole-bytes", "struct_types[0]")]
    selected = model_of(three, eight_of_it, values=['name: "w" type: 0 raw_data: "x"'])
    assert ("root-is-whole-bytes", "struct_types[0]") in findings(selected)
    with pytest.raises(CheckError, match="add a field of 5 bits"):
        structs.nbytes(0, model_of(three).struct_types)


FIELD = "structure {{ field {{ {} }} }}"
INVALID = {
    "kind-is-set": ["", FIELD.format('name: "a" type { struct_type {} }'), FIELD.format('name: "a" type {}')],
    "root-is-no-reference": ["type_index: 1"],
    "only-roots-carry-more": [
        f'array {{ dimension: 1 element_type {{ struct_type {{ name: "n" {BYTES} }} }} }}',
        'array { dimension: 1 element_type { struct_type { type_index: 1 decoder { name: "d" } } } }',
        f'array {{ dimension: 1 element_type {{ struct_type {{ {BYTES} encoder {{ name: "d" }} }} }} }}',
        f'array {{ dimension: 1 element_type {{ struct_type {{ {BYTES} metadata_props {{ key: "k" }} }} }} }}',
    ],
    "leaf-is-supported": [
        "array { dimension: 1 element_type { tensor_type { elem_type: 8 shape {} } } }",
        "array { dimension: 1 element_type { tensor_type { shape {} } } }",
        "array { dimension: 1 element_type { tensor_type { elem_type: 99 shape {} } } }",
        "array { dimension: 1 element_type { sequence_type { elem_type { } } } }",
    ],
    "leaf-shape-is-concrete": [
        "array { dimension: 1 element_type { tensor_type { elem_type: 2 } } }",
        "array { dimension: 1 element_type { tensor_type { elem_type: 2 shape { dim { dim_param: 'n' } } } } }",
        "array { dimension: 1 element_type { tensor_type { elem_type: 2 shape { dim { dim_value: -1 } } } } }",
        "array { dimension: 1 element_type { tensor_type { elem_type: 2 shape { dim {} } } } }",
    ],
    "field-has-one-content": [FIELD.format('name: "a"')],
    "field-names-are-unique": [
        FIELD.format(f"type {{ {U8} }}"),
        f'structure {{ field {{ name: "a" type {{ {U8} }} }} field {{ name: "a" constant {{ data_type: 1 float_data: 1 }} }} }}',
    ],
    "component-names-are-unique": [
        "bit_packing { dimension: 1 component { bit_width: 8 } }",
        'bit_packing { dimension: 1 component { name: "a" bit_width: 4 } component { name: "a" bit_width: 4 } }',
    ],
    "component-has-width": ['bit_packing { dimension: 1 component { name: "a" bit_width: 0 } }'],
    "constant-is-inline-and-fixed-width": [
        FIELD.format('name: "a" constant { data_type: 8 string_data: "x" }'),
        structure(a='constant { data_type: 1 external_data { key: "location" value: "/etc/passwd" } }'),
        structure(a="constant { data_type: 1 data_location: EXTERNAL }"),
        FIELD.format('name: "a" constant { data_type: 22 dims: -1 raw_data: "x" }'),
    ],
    "constant-is-whole": [FIELD.format('name: "a" constant { data_type: 1 dims: 2 raw_data: "abcd" }')],
    "reference-exists": [
        "array { dimension: 1 element_type { struct_type { type_index: 7 } } }",
        "array { dimension: 1 element_type { struct_type { type_index: -1 } } }",
    ],
    "references-are-acyclic": ["array { dimension: 0 element_type { struct_type { type_index: 0 } } }"],
    "size-fits-uint64": [
        array(2**64 - 1, U8),
        array(0, f"struct_type {{ {array(2**64 - 1, U8)} }}"),
        "array { dimension: 1 element_type { tensor_type { elem_type: 2 "
        "shape { dim { dim_value: 4194305 } dim { dim_value: 4194305 } dim { dim_value: 211106198978564 } } } } }",
        'bit_packing { dimension: 4294967296 component { name: "a" bit_width: 4294967295 } '
        'component { name: "b" bit_width: 2 } }',
    ],
}  # fmt: skip


@pytest.mark.parametrize(("rule", "text"), [(rule, text) for rule, texts in INVALID.items() for text in texts])
def test_an_invalid_declaration_is_found_by_its_rule_and_refused_by_readers(rule, text):
    model = model_of(text, BYTES)
    found = list(check_structs(model))
    assert {finding.rule for finding in found} == {rule}
    assert all(finding.where.startswith("struct_types[0]") and finding.kind == "invalid" for finding in found)
    with pytest.raises(CheckError, match=r"struct_types\[0\]"):
        structs.size_bits(0, model.struct_types)
    inline = model_of(text)
    inline.graph.struct_initializer.add(name="w", type=-1).struct_type.CopyFrom(inline.struct_types[0])
    with pytest.raises(CheckError):
        structs.view(inline.graph.struct_initializer[0], struct_types=inline.struct_types)


def test_all_findings_come_in_one_pass_with_the_place_of_each():
    twice = f'field {{ name: "a" }} field {{ name: "a" type {{ {U8} }} }}'
    text = f'structure {{ {twice} field {{ name: "b" type {{ tensor_type {{ elem_type: 8 }} }} }} }}'
    assert findings(model_of(BYTES, text)) == [
        ("field-has-one-content", "struct_types[1].structure.field[0]"),
        ("field-names-are-unique", "struct_types[1].structure.field[1].name"),
        ("leaf-is-supported", "struct_types[1].structure.field[2].type.tensor_type.elem_type"),
        ("leaf-shape-is-concrete", "struct_types[1].structure.field[2].type.tensor_type.shape"),
    ]


def test_a_fault_is_listed_once_where_it_is_and_blamed_by_all_that_contain_it():
    model = model_of(array(2, reference(1)), array(2, reference(2)), 'bit_packing { dimension: 1 component { name: "a" } }')
    assert findings(model) == [("component-has-width", "struct_types[2].bit_packing.component[0].bit_width")]
    with pytest.raises(CheckError, match=r"struct_types\[2\].*0 bits wide"):
        structs.nbytes(0, model.struct_types)


def external(length):
    return f'external_data {{ key: "location" value: "f" }} external_data {{ key: "length" value: "{length}" }}'


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        ('name: "w"', "value-selects-one-type"),
        ('name: "w" type: -1', "value-selects-one-type"),
        (f'name: "w" type: 0 struct_type {{ {BYTES} }}', "value-selects-one-type"),
        ('name: "w" type: 5 raw_data: "abcd"', "reference-exists"),
        ('name: "w" type: -2 raw_data: "abcd"', "reference-exists"),
        ('name: "w" type: -1 struct_type { type_index: 0 } raw_data: "abcd"', "root-is-no-reference"),
        ('name: "w" type: 0 raw_data: "abc"', "payload-is-exact"),
        ('name: "w" type: 0 raw_data: "abcde"', "payload-is-exact"),
        ('name: "w" type: 0', "payload-is-exact"),
        ('name: "w" type: 0 external_data { key: "location" value: "f" }', "payload-is-exact"),
        (f'name: "w" type: 0 {external(3)}', "payload-is-exact"),
        ('name: "w" type: 0 external_data { key: "lokation" value: "f" }', "payload-is-exact"),
        ('type: 0 raw_data: "abcd"', "value-names-are-unique"),
    ],
)  # fmt: skip
def test_an_invalid_value_is_found_and_never_viewed(value, rule):
    model = model_of(BYTES, values=[value])
    found = list(check_structs(model))
    assert {finding.rule for finding in found} == {rule}
    assert found[0].where.startswith("graph.struct_initializer[0]")
    if rule != "value-names-are-unique":
        with pytest.raises((CheckError, PayloadError)):
            structs.view(model.graph.struct_initializer[0], struct_types=model.struct_types)


def test_a_value_with_two_sources_and_two_of_one_name_are_found():
    both = f'name: "w" type: 0 raw_data: "abcd" {external(4)}'
    model = model_of(BYTES, values=[both, 'name: "w" type: 0 raw_data: "abcd"', 'name: "t" type: 0 raw_data: "abcd"'])
    model.graph.initializer.add(name="t")
    assert findings(model) == [
        ("payload-has-one-source", "graph.struct_initializer[0]"),
        ("value-names-are-unique", "graph.struct_initializer[1].name"),
        ("value-names-are-unique", "graph.struct_initializer[2].name"),
    ]


def test_external_bytes_are_looked_at_only_with_a_data_root(tmp_path):
    value = f'name: "w" type: 0 {external(4)}'
    model = model_of(BYTES, values=[value])
    assert findings(model) == []
    assert findings(model, DataRoot(tmp_path)) == [("payload-is-exact", "graph.struct_initializer[0].external_data")]
    (tmp_path / "f").write_bytes(b"abcd")
    assert findings(model, DataRoot(tmp_path)) == []
    view = structs.view(model.graph.struct_initializer[0], None, model.struct_types, DataRoot(tmp_path))
    assert view.value().tobytes() == b"abcd"


@pytest.mark.parametrize(
    ("static", "rule"),
    [
        ("struct_type {}", None),
        ("struct_type { type_index: 0 }", None),
        ("sequence_type { elem_type { struct_type { type_index: 0 } } }", None),
        ("struct_type { type_index: 1 }", "reference-exists"),
        (f"struct_type {{ {BYTES} }}", "static-type-is-bare"),
        ('struct_type { name: "n" }', "static-type-is-bare"),
        ('struct_type { type_index: 0 decoder { name: "d" } }', "static-type-is-bare"),
        ('map_type { value_type { struct_type { metadata_props { key: "k" } } } }', "static-type-is-bare"),
    ],
)
def test_the_type_of_a_graph_value_is_a_bare_reference_or_the_category(static, rule):
    model = model_of(BYTES)
    model.graph.input.add(name="x", type=text_format.Parse(static, TypeProto()))
    assert {found for found, _ in findings(model)} == ({rule} if rule else set())


def nested(inner, levels):
    """``levels`` arrays of one element around the TypeProto ``inner``."""
    for _ in range(levels - 1):
        inner = f"struct_type {{ array {{ dimension: 1 element_type {{ {inner} }} }} }}"
    return f"array {{ dimension: 1 element_type {{ {inner} }} }}"


def test_limits_are_a_kind_of_their_own():
    model = model_of(nested(U8, 24), nested(reference(0), 24), nested(reference(1), 15), nested(reference(1), 16))
    assert structs.size_bits(2, model.struct_types) == 8
    found = list(check_structs(model))
    assert [(finding.kind, finding.rule) for finding in found] == [("limit", "type-is-within-limits")]
    with pytest.raises(TypeLimit, match="more than 64 levels"):
        structs.size_bits(3, model.struct_types)
