"""The messages: onnx's own, with the additions of the three specifications, in one private descriptor pool.

They are distinct Python classes from ``onnx.ModelProto`` and its kin, of the same wire format: to hand a message to stock
onnx, or take one from it, go through bytes (``to_onnx``, ``from_onnx``).
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from tenonnx.errors import PayloadError, UnsupportedError
from tenonnx.schema.descriptors import message_class

ModelProto = message_class("ModelProto")
GraphProto = message_class("GraphProto")
NodeProto = message_class("NodeProto")
AttributeProto = message_class("AttributeProto")
FunctionProto = message_class("FunctionProto")
ValueInfoProto = message_class("ValueInfoProto")
TypeProto = message_class("TypeProto")
TensorProto = message_class("TensorProto")
TensorShapeProto = message_class("TensorShapeProto")
StringStringEntryProto = message_class("StringStringEntryProto")
OperatorSetIdProto = message_class("OperatorSetIdProto")
ValueAliasProto = message_class("ValueAliasProto")
StructTypeProto = message_class("StructTypeProto")
StructProto = message_class("StructProto")
QuantizationProto = message_class("QuantizationProto")
QuantizedTensorProto = message_class("QuantizedTensorProto")
DeviceProto = message_class("DeviceProto")
CompiledTensorProto = message_class("CompiledTensorProto")
SequenceProto = message_class("SequenceProto")
MapProto = message_class("MapProto")
OptionalProto = message_class("OptionalProto")


def from_onnx(message: Any) -> Any:
    """The same message as one of this module's classes, from a message of the stock onnx package.

    Raises ``PayloadError`` for text that is not UTF-8, which stock onnx lets through.
    """
    name = message.DESCRIPTOR.full_name
    try:
        return message_class(name.removeprefix("onnx.")).FromString(message.SerializeToString())
    except DecodeError as error:
        raise PayloadError(f"the {name} cannot be read: {error}; export the model again") from error


def as_model(model: Any) -> Any:
    """``model`` as this module's ModelProto: itself, or the stock package's read again.

    Raises ``UnsupportedError`` for anything else.
    """
    if isinstance(model, ModelProto):
        return model
    if getattr(getattr(model, "DESCRIPTOR", None), "full_name", None) == ModelProto.DESCRIPTOR.full_name:
        return from_onnx(model)
    raise UnsupportedError(f"expected a ModelProto, found {type(model).__name__}; load a file by tenonnx.load(path)")


def to_onnx(message: Any) -> Any:
    """The same message as one of the stock onnx package, which keeps the additions as unknown fields."""
    import onnx

    return getattr(onnx, message.DESCRIPTOR.name).FromString(message.SerializeToString())
