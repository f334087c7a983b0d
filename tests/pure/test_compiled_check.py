"""Each line of the specification's section on validation: what the checker rejects, on any machine."""

import pytest

from tenonnx import check
from tenonnx.check.compiled import check_compiled
from tenonnx.schema.messages import ModelProto, StructTypeProto
from tenonnx.structs import array, bits, f16, f32, to_proto


def model():
    """Two initializers, two devices, and a pack of each initializer for each device."""
    made = ModelProto(ir_version=10)
    made.opset_import.add(domain="", version=24)
    made.graph.name = "g"
    for name in ("w", "v"):
        made.graph.initializer.add(name=name, data_type=1, dims=[2], raw_data=bytes(8))
    made.struct_types.append(to_proto(array(f32, 2), "packed"))
    for architecture in ("x86_64_v3", "sm_80"):
        made.devices.add(type="cpu", architecture=architecture, runtime="somebody", runtime_version="1")
        for name in ("w", "v"):
            pack = made.compiled_tensors.add(source_name=name, device=len(made.devices) - 1)
            pack.source_digest, pack.digest_algorithm = bytes(32), "blake3"
            pack.value.type, pack.value.raw_data = 0, bytes(8)
    return made


def rules(made, root=None):
    return [(finding.rule, finding.where) for finding in check_compiled(made, root)]


def test_a_sound_model_has_no_findings():
    assert list(check_compiled(model())) == [] and check(model()) == []


def test_a_digest_that_does_not_match_and_a_device_that_is_not_here_are_no_findings():
    made = model()
    made.compiled_tensors[0].source_digest = b"\1" * 32
    made.devices[1].type = "abacus"
    made.compiled_tensors[1].digest_algorithm = "not-invented-yet"
    made.compiled_tensors[1].source_digest = b"\1\2\3"
    assert rules(made) == []


def test_unique_device_descriptors():
    made = model()
    made.devices[1].CopyFrom(made.devices[0])
    assert ("devices-are-unique", "devices[1]") in rules(made)


def test_device_descriptors_that_differ_only_in_the_order_of_metadata_are_one():
    made = model()
    made.devices[1].CopyFrom(made.devices[0])
    for device, keys in zip(made.devices, ("ab", "ba"), strict=True):
        for key in keys:
            device.metadata_props.add(key=key, value="1")
    assert ("devices-are-unique", "devices[1]") in rules(made)


@pytest.mark.parametrize("field,value", [("index", 1), ("architecture", "x86_64"), ("runtime_version", "2"), ("type", "cuda")])
def test_device_descriptors_that_differ_in_one_field_are_two(field, value):
    made = model()
    made.devices[1].CopyFrom(made.devices[0])
    setattr(made.devices[1], field, value)
    assert rules(made) == []


@pytest.mark.parametrize("index", [2, -1, 2**31 - 1, -(2**31)])
def test_valid_device_indices(index):
    made = model()
    made.compiled_tensors[3].device = index
    assert rules(made) == [("device-index-is-valid", "compiled_tensors[3].device")]


def test_an_absent_device_is_not_device_0():
    made = model()
    made.compiled_tensors[0].ClearField("device")
    assert ("device-index-is-valid", "compiled_tensors[0].device") in rules(made)


def test_unique_keys_of_source_device_and_physical_type():
    made = model()
    made.compiled_tensors.add().CopyFrom(made.compiled_tensors[1])
    made.compiled_tensors[4].source_digest = b"\7" * 32
    assert rules(made) == [("cache-keys-are-unique", "compiled_tensors[4]")]


def test_one_type_by_index_and_inline_is_one_key():
    made = model()
    again = made.compiled_tensors.add()
    again.CopyFrom(made.compiled_tensors[0])
    again.value.type = -1
    again.value.struct_type.CopyFrom(made.struct_types[0])
    assert rules(made) == [("cache-keys-are-unique", "compiled_tensors[4]")]


@pytest.mark.parametrize("type", [to_proto(array(f16, 4), "packed"), to_proto(array(f32, 2), "another format of the same bits")])
def test_another_physical_type_is_another_key(type):
    made = model()
    other = made.compiled_tensors.add()
    other.CopyFrom(made.compiled_tensors[0])
    other.value.type = -1
    other.value.struct_type.CopyFrom(type)
    assert rules(made) == []


@pytest.mark.parametrize("name", ["", "nowhere", "x"])
def test_source_initializer_existence(name):
    made = model()
    made.graph.input.add(name="x")
    made.compiled_tensors[2].source_name = name
    assert rules(made) == [("source-exists", "compiled_tensors[2].source_name")]


def test_a_source_of_a_nested_graph_is_not_addressed():
    made = model()
    node = made.graph.node.add(op_type="If", input=["c"], output=["y"])
    node.attribute.add(name="then_branch", type=5).g.initializer.add(name="inner", data_type=1, dims=[2], raw_data=bytes(8))
    made.compiled_tensors[0].source_name = "inner"
    assert ("source-exists", "compiled_tensors[0].source_name") in rules(made)


def test_a_source_of_two_initializers_is_none():
    made = model()
    made.graph.struct_initializer.add(name="v", type=0, raw_data=bytes(8))
    assert [rule for rule, _ in rules(made)] == ["source-exists", "source-exists"]


@pytest.mark.parametrize("field", ["source_digest", "digest_algorithm"])
@pytest.mark.parametrize("absent", [True, False])
def test_non_empty_digest_and_algorithm_fields(field, absent):
    made = model()
    made.compiled_tensors[0].ClearField(field)
    if not absent:
        setattr(made.compiled_tensors[0], field, b"" if field == "source_digest" else "")
    assert rules(made) == [("digest-is-declared", f"compiled_tensors[0].{field}")]


@pytest.mark.parametrize("size", [1, 31, 33, 64])
def test_a_digest_is_as_long_as_its_algorithm_says(size):
    made = model()
    made.compiled_tensors[0].source_digest = bytes(size)
    assert rules(made) == [("digest-is-declared", "compiled_tensors[0].source_digest")]


@pytest.mark.parametrize("index", [1, -2, 2**31 - 1])
def test_exact_structured_type_resolution(index):
    made = model()
    made.compiled_tensors[0].value.type = index
    assert ("reference-exists", "compiled_tensors[0].value.type") in rules(made)


def test_an_absent_type_is_not_type_0():
    made = model()
    made.compiled_tensors[0].value.ClearField("type")
    assert rules(made) == [("value-selects-one-type", "compiled_tensors[0].value")]


def test_an_index_and_an_inline_type_are_one_too_many():
    made = model()
    made.compiled_tensors[0].value.struct_type.CopyFrom(made.struct_types[0])
    assert rules(made) == [("value-selects-one-type", "compiled_tensors[0].value")]


@pytest.mark.parametrize("size", [0, 7, 9])
def test_payload_size(size):
    made = model()
    made.compiled_tensors[0].value.raw_data = bytes(size)
    assert rules(made) == [("payload-is-exact", "compiled_tensors[0].value")]


def test_a_payload_of_a_type_that_ends_inside_a_byte():
    made = model()
    made.compiled_tensors[0].value.type = -1
    made.compiled_tensors[0].value.struct_type.CopyFrom(to_proto(bits(a=3)[3]))
    assert ("root-is-whole-bytes", "compiled_tensors[0].value.struct_type") in rules(made)


def test_an_external_payload_without_a_length():
    made = model()
    made.compiled_tensors[0].value.ClearField("raw_data")
    made.compiled_tensors[0].value.external_data.add(key="location", value="p")
    assert rules(made) == [("payload-is-exact", "compiled_tensors[0].value.external_data")]


def test_a_pack_without_a_value():
    made = model()
    made.compiled_tensors[1].ClearField("value")
    assert rules(made) == [("value-is-present", "compiled_tensors[1].value")]


@pytest.mark.parametrize("static", [StructTypeProto(), StructTypeProto(type_index=0), StructTypeProto(name="named")])
def test_absence_of_unconstrained_static_structured_types(static):
    made = model()
    made.compiled_tensors[0].value.type = -1
    made.compiled_tensors[0].value.struct_type.CopyFrom(static)
    assert ("type-is-concrete", "compiled_tensors[0].value.struct_type") in rules(made)


def test_metadata_keys_are_unique():
    made = model()
    for message in (made.devices[0], made.compiled_tensors[2]):
        for value in ("1", "2"):
            message.metadata_props.add(key="k", value=value)
    assert rules(made) == [
        ("metadata-keys-are-unique", "devices[0].metadata_props"),
        ("metadata-keys-are-unique", "compiled_tensors[2].metadata_props"),
    ]


def test_the_checker_of_a_whole_model_lists_them():
    made = model()
    made.compiled_tensors[0].device = 9
    assert [(found.severity, found.kind, found.rule) for found in check(made)] == [("error", "invalid", "device-index-is-valid")]
