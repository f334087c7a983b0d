from collections.abc import MutableSequence
from typing import Any

import onnx

# Structural types for readers and type checkers; the classes themselves come from the merged descriptors.

class StringStringEntryProto(onnx.StringStringEntryProto): ...
class TensorShapeProto(onnx.TensorShapeProto): ...
class TensorProto(onnx.TensorProto): ...
class OperatorSetIdProto(onnx.OperatorSetIdProto): ...
class AttributeProto(onnx.AttributeProto): ...
class FunctionProto(onnx.FunctionProto): ...
class MapProto(onnx.MapProto): ...

class ValueAliasProto(Any):
    UNDEFINED: int
    MUST_ALIAS: int
    output_index: int
    input_index: int
    kind: int

class NodeProto(onnx.NodeProto):
    output_alias: MutableSequence[ValueAliasProto]

class ValueInfoProto(onnx.ValueInfoProto):
    READ_ONLY: int
    READ_WRITE: int
    access: int
    alias_of: str

class StructTypeProto(Any):
    class BitPacking(Any):
        class Component(Any):
            name: str
            bit_width: int

        component: MutableSequence[Component]
        dimension: int

    class Array(Any):
        element_type: TypeProto
        dimension: int

    class Field(Any):
        name: str
        type: TypeProto
        constant: TensorProto
        doc_string: str

    class Structure(Any):
        field: MutableSequence[StructTypeProto.Field]

    array: Array
    structure: Structure
    bit_packing: BitPacking
    type_index: int
    decoder: FunctionProto
    encoder: FunctionProto
    name: str
    doc_string: str
    metadata_props: MutableSequence[StringStringEntryProto]

class StructProto(Any):
    type: int
    struct_type: StructTypeProto
    raw_data: bytes
    external_data: MutableSequence[StringStringEntryProto]
    name: str
    doc_string: str

class QuantizationProto(Any):
    name: str
    elem_type: int
    block_type: int
    block_shape: MutableSequence[int]
    doc_string: str
    metadata_props: MutableSequence[StringStringEntryProto]

class QuantizedTensorProto(Any):
    dims: MutableSequence[int]
    raw_data: bytes
    n_bytes: int
    quantized_type: int
    quantization: QuantizationProto
    name: str
    doc_string: str
    external_data: MutableSequence[StringStringEntryProto]

class TypeProto(onnx.TypeProto):
    class QuantizedTensor(Any):
        allowed_quantized_type: MutableSequence[int]
        elem_type: int
        shape: TensorShapeProto

    struct_type: StructTypeProto
    quantized_tensor_type: QuantizedTensor

class DeviceProto(Any):
    type: str
    index: int
    architecture: str
    runtime: str
    runtime_version: str
    metadata_props: MutableSequence[StringStringEntryProto]

class CompiledTensorProto(Any):
    source_name: str
    value: StructProto
    device: int
    source_digest: bytes
    digest_algorithm: str
    metadata_props: MutableSequence[StringStringEntryProto]

class GraphProto(onnx.GraphProto):
    struct_initializer: MutableSequence[StructProto]

class ModelProto(onnx.ModelProto):
    struct_types: MutableSequence[StructTypeProto]
    devices: MutableSequence[DeviceProto]
    compiled_tensors: MutableSequence[CompiledTensorProto]
    quantizations: MutableSequence[QuantizationProto]

class SequenceProto(onnx.SequenceProto):
    struct_values: MutableSequence[StructProto]
    quantized_tensor_values: MutableSequence[QuantizedTensorProto]
    value_type: TypeProto

class OptionalProto(onnx.OptionalProto):
    struct_value: StructProto
    quantized_tensor_value: QuantizedTensorProto
    value_type: TypeProto

def from_onnx(message: Any) -> Any: ...
def as_model(model: Any) -> Any: ...
def to_onnx(message: Any) -> Any: ...
