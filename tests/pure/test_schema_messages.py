"""The messages of the three specifications, field for field, and their way through stock onnx and back."""

from __future__ import annotations

import subprocess
import sys
from importlib import resources
from pathlib import Path

import onnx
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, text_format
from google.protobuf.message import DecodeError

from tenonnx.errors import PayloadError
from tenonnx.schema import descriptors, messages
from tenonnx.schema.descriptors import message_class
from tenonnx.schema.messages import ModelProto, OptionalProto, SequenceProto, TypeProto, from_onnx, to_onnx

# message: field number label type [oneof], as the specifications and the design write them.
NEW = {
    "ValueAliasProto": """
        output_index 1 optional int32
        input_index 2 optional int32
        kind 3 optional ValueAliasProto.Kind""",
    "StructTypeProto": """
        array 1 optional StructTypeProto.Array kind
        structure 2 optional StructTypeProto.Structure kind
        bit_packing 3 optional StructTypeProto.BitPacking kind
        type_index 5 optional int32 kind
        decoder 6 optional FunctionProto
        encoder 7 optional FunctionProto
        name 8 optional string
        doc_string 9 optional string
        metadata_props 10 repeated StringStringEntryProto""",
    "StructTypeProto.BitPacking": """
        component 1 repeated StructTypeProto.BitPacking.Component
        dimension 2 optional uint64""",
    "StructTypeProto.BitPacking.Component": """
        name 1 optional string
        bit_width 2 optional uint32""",
    "StructTypeProto.Array": """
        element_type 1 optional TypeProto
        dimension 2 optional uint64""",
    "StructTypeProto.Field": """
        name 1 optional string
        type 2 optional TypeProto content
        doc_string 3 optional string
        constant 4 optional TensorProto content""",
    "StructTypeProto.Structure": """
        field 1 repeated StructTypeProto.Field""",
    "StructProto": """
        type 1 optional int32
        struct_type 2 optional StructTypeProto
        raw_data 3 optional bytes
        external_data 4 repeated StringStringEntryProto
        name 5 optional string
        doc_string 6 optional string""",
    "QuantizationProto": """
        name 1 optional string
        elem_type 2 optional int32
        block_type 3 optional int32
        block_shape 4 repeated int64
        doc_string 5 optional string
        metadata_props 6 repeated StringStringEntryProto""",
    "QuantizedTensorProto": """
        dims 1 repeated int64
        raw_data 2 optional bytes
        n_bytes 3 optional int64
        quantized_type 4 optional int32
        quantization 5 optional QuantizationProto
        name 6 optional string
        doc_string 7 optional string
        external_data 8 repeated StringStringEntryProto""",
    "TypeProto.QuantizedTensor": """
        allowed_quantized_type 1 repeated int32
        elem_type 2 optional int32
        shape 3 optional TensorShapeProto""",
    "DeviceProto": """
        type 1 optional string
        index 2 optional int32
        architecture 3 optional string
        runtime 4 optional string
        runtime_version 5 optional string
        metadata_props 6 repeated StringStringEntryProto""",
    "CompiledTensorProto": """
        source_name 1 optional string
        value 2 optional StructProto
        device 3 optional int32
        source_digest 4 optional bytes
        digest_algorithm 5 optional string
        metadata_props 6 repeated StringStringEntryProto""",
}
ADDED = {
    "NodeProto": """
        output_alias 1001 repeated ValueAliasProto""",
    "ValueInfoProto": """
        access 1001 optional ValueInfoProto.Access
        alias_of 1002 optional string""",
    "TypeProto": """
        struct_type 1001 optional StructTypeProto value
        quantized_tensor_type 1002 optional TypeProto.QuantizedTensor value""",
    "GraphProto": """
        struct_initializer 1001 repeated StructProto""",
    "ModelProto": """
        struct_types 1001 repeated StructTypeProto
        devices 1002 repeated DeviceProto
        compiled_tensors 1003 repeated CompiledTensorProto
        quantizations 1004 repeated QuantizationProto""",
    "SequenceProto": """
        struct_values 1001 repeated StructProto
        quantized_tensor_values 1002 repeated QuantizedTensorProto
        value_type 1003 optional TypeProto""",
    "OptionalProto": """
        struct_value 1001 optional StructProto
        quantized_tensor_value 1002 optional QuantizedTensorProto
        value_type 1003 optional TypeProto""",
}
ENUMS = {
    "ValueAliasProto.Kind": {"UNDEFINED": 0, "MUST_ALIAS": 1},
    "ValueInfoProto.Access": {"READ_ONLY": 0, "READ_WRITE": 1},
    "SequenceProto.DataType": {**dict(onnx.SequenceProto.DataType.items()), "STRUCT": 1001, "QUANTIZED_TENSOR": 1002},
    "OptionalProto.DataType": {**dict(onnx.OptionalProto.DataType.items()), "STRUCT": 1001, "QUANTIZED_TENSOR": 1002},
}
_KINDS = descriptor_pb2.FieldDescriptorProto.Type
_LABELS = descriptor_pb2.FieldDescriptorProto.Label


def fields(cls):
    """(name, number, label, type, oneof) of each field of a message class."""
    message = descriptor_pb2.DescriptorProto()
    cls.DESCRIPTOR.CopyToProto(message)
    for field in message.field:
        kind = field.type_name.removeprefix(".onnx.") or _KINDS.Name(field.type).removeprefix("TYPE_").lower()
        oneof = [message.oneof_decl[field.oneof_index].name] if field.HasField("oneof_index") else []
        yield (field.name, str(field.number), _LABELS.Name(field.label).removeprefix("LABEL_").lower(), kind, *oneof)


def table(text):
    return sorted(tuple(line.split()) for line in text.strip().splitlines())


def stock_class(name):
    return getattr(onnx, name)


@pytest.mark.parametrize("name", NEW)
def test_a_new_message_has_exactly_the_fields_of_its_specification(name):
    assert sorted(fields(message_class(name))) == table(NEW[name])


@pytest.mark.parametrize("name", ADDED)
def test_a_message_of_onnx_has_its_own_fields_and_the_additions(name):
    assert sorted(fields(message_class(name))) == sorted([*fields(stock_class(name)), *table(ADDED[name])])


def test_every_other_message_of_onnx_is_unchanged():
    for module in (onnx.onnx_ml_pb2, onnx.onnx_data_pb2):
        for name in module.DESCRIPTOR.message_types_by_name:
            if name not in ADDED:
                assert list(fields(message_class(name))) == list(fields(stock_class(name))), name


def test_a_oneof_of_onnx_takes_the_additions_in():
    value = TypeProto()
    value.tensor_type.elem_type = 1
    value.struct_type.type_index = 0
    assert value.WhichOneof("value") == "struct_type"
    value.quantized_tensor_type.elem_type = 10
    assert value.WhichOneof("value") == "quantized_tensor_type"


@pytest.mark.parametrize("name", ENUMS)
def test_an_enum_has_the_numbers_of_its_specification(name):
    owner, _, enum = name.partition(".")
    assert dict(getattr(message_class(owner), enum).items()) == ENUMS[name]


def test_presence_tells_an_absent_number_from_zero():
    device = messages.DeviceProto()
    assert not device.HasField("index")
    device.index = 0
    assert messages.DeviceProto.FromString(device.SerializeToString()).HasField("index")
    assert not messages.StructProto().HasField("type") and not messages.ValueAliasProto().HasField("kind")


def test_every_message_of_the_design_is_exported():
    for name in [*NEW, *ADDED]:
        if "." not in name:
            assert getattr(messages, name) is message_class(name)


# ---- Through stock onnx -------------------------------------------------------------------------------------------------


EVERYTHING = """
ir_version: 13
opset_import { version: 24 }
graph {
  name: "g"
  node {
    op_type: "CacheUpdate" domain: "tenonnx" input: "cache" output: "updated"
    output_alias { output_index: 0 input_index: 0 kind: MUST_ALIAS }
  }
  input { name: "cache" access: READ_WRITE }
  input { name: "record" type { struct_type { type_index: 1 } } }
  input {
    name: "pages"
    type { quantized_tensor_type { allowed_quantized_type: [0, 1] elem_type: 10 shape { dim { dim_value: 2 } } } }
  }
  output { name: "updated" alias_of: "cache" }
  struct_initializer {
    type: -1
    struct_type { structure { field { name: "scale" constant { dims: 0 data_type: 1 name: "é" } doc_string: "d" } } }
    name: "weight" doc_string: "d" raw_data: "\\000\\377"
  }
  struct_initializer { type: 0 external_data { key: "location" value: "weights.bin" } }
}
struct_types {
  array { element_type { tensor_type { elem_type: 1 shape { } } } dimension: 18446744073709551615 }
  decoder { name: "F" domain: "tenonnx.formats" input: "x" output: "y" node { op_type: "Identity" input: "x" output: "y" } }
  encoder { name: "E" } name: "A" doc_string: "d" metadata_props { key: "k" value: "v" }
}
struct_types { structure { field { name: "a" type { struct_type { type_index: 0 } } } } }
struct_types { bit_packing { component { name: "lo" bit_width: 4 } component { name: "hi" bit_width: 4 } dimension: 16 } }
devices {
  type: "cpu" index: 0 architecture: "x86_64-avx2" runtime: "tenonnx" runtime_version: "1" metadata_props { key: "k" value: "v" }
}
compiled_tensors {
  source_name: "weight" value { type: 0 raw_data: "p" } device: 0 source_digest: "\\001" digest_algorithm: "blake3"
  metadata_props { key: "k" value: "v" }
}
quantizations { name: "INT4_PAGE" elem_type: 10 block_type: 2 block_shape: [1, 32] doc_string: "d" metadata_props { key: "k" } }
"""


def full_model():
    return text_format.Parse(EVERYTHING, ModelProto())


def test_the_model_of_these_tests_has_every_addition():
    seen = set()

    def note(message):
        for field, value in message.ListFields():
            seen.add(field.full_name)
            if field.message_type is not None:
                for item in value if hasattr(value, "add") else [value]:
                    note(item)

    note(full_model())
    for owner, text in {**NEW, **ADDED}.items():
        if owner not in ("SequenceProto", "OptionalProto", "QuantizedTensorProto"):  # none of these stands in a model
            assert {f"onnx.{owner}.{name}" for name, *_ in table(text)} <= seen, owner


def test_additions_survive_a_stock_load_and_save(tmp_path):
    model = full_model()
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    before.write_bytes(model.SerializeToString())
    onnx.save(onnx.load(before), after)
    assert ModelProto.FromString(after.read_bytes()) == model


def test_additions_survive_a_stock_message_and_its_edit():
    model = full_model()
    stock = to_onnx(model)
    stock.producer_name = "edited"
    model.producer_name = "edited"
    assert from_onnx(stock) == model
    assert isinstance(stock, onnx.ModelProto)


@pytest.mark.parametrize("cls", [SequenceProto, OptionalProto])
def test_containers_keep_structured_and_quantized_values(cls):
    value = cls(name="pages", elem_type=cls.QUANTIZED_TENSOR)
    value.value_type.quantized_tensor_type.elem_type = 10
    repeated = cls is SequenceProto
    page = value.quantized_tensor_values.add() if repeated else value.quantized_tensor_value
    page.dims.extend([2, 4])
    page.raw_data, page.n_bytes, page.quantized_type, page.name, page.doc_string = b"12345678", 8, 0, "p", "d"
    page.quantization.name = "INT4_PAGE"
    page.external_data.add(key="location", value="pages.bin")
    record = value.struct_values.add() if repeated else value.struct_value
    record.type = 3
    stock = to_onnx(value)
    assert stock.elem_type == 1002 and from_onnx(stock) == value


def test_a_map_holds_pages_through_its_sequence():
    pages = messages.MapProto(key_type=7, keys=[3])
    pages.values.quantized_tensor_values.add(quantized_type=1)
    assert from_onnx(to_onnx(pages)) == pages


def test_fields_of_a_later_version_survive():
    later = b"\xc2\xbb\x01\x03abc"  # field 3000, three bytes
    model = ModelProto.FromString(full_model().SerializeToString() + later)
    model.producer_name = "edited"
    assert later in model.SerializeToString()
    assert later in to_onnx(model).SerializeToString()


def test_text_that_is_not_utf8_is_refused():
    raw = ModelProto(producer_name="AAAA").SerializeToString().replace(b"AAAA", b"\xff\xfeAA")
    with pytest.raises(DecodeError):
        ModelProto.FromString(raw)
    with pytest.raises(PayloadError, match=r"onnx\.ModelProto cannot be read"):
        from_onnx(onnx.ModelProto.FromString(raw))


def test_packed_fields_have_stock_onnxs_wire_format():
    tensor = messages.TensorProto(dims=[2], float_data=[1, 2], int64_data=[3], int32_data=[4], double_data=[5], uint64_data=[6])
    tensor.raw_data, tensor.doc_string = b"x", "doc"
    stock = onnx.TensorProto(dims=[2], float_data=[1, 2], int64_data=[3], int32_data=[4], double_data=[5], uint64_data=[6])
    stock.raw_data, stock.doc_string = b"x", "doc"
    assert tensor.SerializeToString(deterministic=True) == stock.SerializeToString(deterministic=True)


# ---- The pool -----------------------------------------------------------------------------------------------------------


def test_the_default_pool_is_left_alone():
    default = descriptor_pool.Default()
    assert messages.ModelProto is not onnx.ModelProto
    assert "struct_types" not in onnx.ModelProto.DESCRIPTOR.fields_by_name
    with pytest.raises(KeyError):
        default.FindMessageTypeByName("onnx.StructTypeProto")


def test_a_clash_with_a_later_onnx_is_refused():
    """A later onnx that takes one of these numbers must not be merged into nonsense."""
    files = descriptors.merged_files()
    model = next(message for message in files[0].message_type if message.name == "ModelProto")
    model.field.add(name="later", number=1001, label=1, type=9)
    pool = descriptor_pool.DescriptorPool()
    with pytest.raises(TypeError):
        pool.AddSerializedFile(files[0].SerializeToString())


def test_the_texts_compile_to_what_the_package_ships(tmp_path):
    proto = Path(__file__).parents[2] / "proto"
    out = tmp_path / "additions.binpb"
    names = ["tenonnx-ml.proto", "tenonnx-data.proto"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{proto}", f"--descriptor_set_out={out}", *names], check=True)
    compiled, shipped = descriptor_pb2.FileDescriptorSet(), descriptor_pb2.FileDescriptorSet()
    compiled.ParseFromString(out.read_bytes())
    shipped.ParseFromString(resources.files("tenonnx.schema").joinpath("additions.binpb").read_bytes())
    assert compiled == shipped
