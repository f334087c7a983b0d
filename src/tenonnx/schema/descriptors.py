"""onnx's installed descriptors and the additions of ``proto/*.proto``, merged in a private pool.

The additions are compiled alone, with partial messages for those that onnx already has. Merging appends their fields,
nested messages and enum values to onnx's own descriptors, so a newer onnx keeps all that it adds, and a stock onnx reads
the same bytes with the additions kept as unknown fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tenonnx.errors import UnsupportedError

# Our file -> onnx's own file of the same role.
_FILES = {"tenonnx-ml.proto": "onnx/onnx-ml.proto", "tenonnx-data.proto": "onnx/onnx-data.proto"}


def _merge_enum(target: Any, addition: Any) -> None:
    target.value.extend(addition.value)


def _merge_message(target: Any, addition: Any) -> None:
    """Append to a message of onnx what its partial twin adds; a clash of numbers or names is refused by the pool."""
    oneofs: list[int] = []
    known = [oneof.name for oneof in target.oneof_decl]
    for oneof in addition.oneof_decl:
        if oneof.name not in known:
            target.oneof_decl.append(oneof)
            known.append(oneof.name)
        oneofs.append(known.index(oneof.name))
    for field in addition.field:
        target.field.append(field)
        if field.HasField("oneof_index"):
            target.field[-1].oneof_index = oneofs[field.oneof_index]
    _merge_named(target.nested_type, addition.nested_type, _merge_message)
    _merge_named(target.enum_type, addition.enum_type, _merge_enum)


def _merge_named(targets: Any, additions: Any, merge: Any) -> None:
    by_name = {target.name: target for target in targets}
    for addition in additions:
        if addition.name in by_name:
            merge(by_name[addition.name], addition)
        else:
            targets.append(addition)


def _verify_text(file: descriptor_pb2.FileDescriptorProto) -> None:
    """Let the parser refuse text that is not UTF-8, as stock proto2 does not: such a name would come out as ``bytes``.

    Only an edition can say so; the other features are those of proto2, and the wire format stays the same.
    """
    features = descriptor_pb2.FeatureSet
    file.syntax = "editions"
    file.edition = descriptor_pb2.EDITION_2023
    file.options.features.field_presence = features.EXPLICIT
    file.options.features.enum_type = features.CLOSED
    file.options.features.repeated_field_encoding = features.EXPANDED
    file.options.features.utf8_validation = features.VERIFY
    file.options.features.json_format = features.LEGACY_BEST_EFFORT
    for message in _messages(file.message_type):
        for field in message.field:
            if field.options.packed:
                field.options.ClearField("packed")
                field.options.features.repeated_field_encoding = features.PACKED


def _messages(messages: Any) -> Iterator[Any]:
    for message in messages:
        yield message
        yield from _messages(message.nested_type)


def merged_files() -> list[descriptor_pb2.FileDescriptorProto]:
    """onnx-ml and onnx-data of the installed onnx, each with its additions."""
    from onnx import onnx_data_pb2, onnx_ml_pb2

    files = []
    for module in (onnx_ml_pb2, onnx_data_pb2):
        file = descriptor_pb2.FileDescriptorProto()
        file.ParseFromString(module.DESCRIPTOR.serialized_pb)
        files.append(file)
    by_name = {file.name: file for file in files}
    additions = descriptor_pb2.FileDescriptorSet()
    additions.ParseFromString(resources.files(__package__).joinpath("additions.binpb").read_bytes())
    for addition in additions.file:
        target = by_name.get(_FILES[addition.name])
        if target is None:
            raise UnsupportedError(f"the installed onnx package has no {_FILES[addition.name]}; install onnx>=1.23")
        _merge_named(target.message_type, addition.message_type, _merge_message)
    return files


@cache
def _pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for file in merged_files():
        if file.syntax in ("", "proto2"):
            _verify_text(file)
        pool.AddSerializedFile(file.SerializeToString())
    return pool


@cache
def message_class(name: str) -> Any:
    """The class of ``onnx.<name>`` in the private pool, for example ``message_class("TypeProto.QuantizedTensor")``."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"onnx.{name}"))
