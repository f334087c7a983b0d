"""The version of the standard operators that a rewritten model needs."""

from __future__ import annotations

from typing import Any

from tenonnx.errors import UnsupportedError
from tenonnx.schema.messages import ModelProto, from_onnx, to_onnx
from tenonnx.shapes import SymTensor
from tenonnx.shapes.skeleton import set_tensor_type

CACHED_ATTENTION = 24  # the first whose Attention takes a valid length
WINDOWED_ATTENTION = 25  # the first whose Attention takes the size of a window
_UNCHANGED_FROM = 23  # 24 adds types and inputs to the operators of 23, and changes the meaning of none
_SMALL = 4096  # bytes; smaller initializers stay, for the converter reads axes and shapes from them


def version_of(model: Any) -> int:
    """The version of the standard domain that a model imports; 0 for none."""
    return max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)


def raise_to(model: Any, version: int) -> None:
    """Let a model of version 23 or later import at least ``version`` of the standard domain."""
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = max(entry.version, version)


def upgrade(model: Any) -> None:
    """Restate the nodes of an older model at version 23, by onnx's version converter, which never sees the weights.

    ``UnsupportedError`` when it cannot.
    """
    found = version_of(model)
    if found >= _UNCHANGED_FROM:
        return
    from onnx import version_converter

    weights = [tensor for tensor in model.graph.initializer if tensor.external_data or tensor.ByteSize() > _SMALL]
    held = {tensor.name for tensor in weights} - {value.name for value in model.graph.input}
    twin = _without(model, weights, held)
    try:
        converted = version_converter.convert_version(twin, _UNCHANGED_FROM)
    except Exception as error:  # onnx raises RuntimeError, and types of its own
        raise UnsupportedError(
            f"the model imports version {found} of the standard operators, which onnx cannot restate at {_UNCHANGED_FROM}: "
            f"{error}; export the model again at opset {_UNCHANGED_FROM}"
        ) from error
    result = from_onnx(converted)
    kept = [value for value in result.graph.input if value.name not in held]
    del result.graph.input[:]
    result.graph.input.extend(kept)
    result.graph.initializer.extend(weights)
    model.CopyFrom(result)


def _without(model: Any, weights: list[Any], held: set[str]) -> Any:
    """A stock model in which weights are typed inputs."""
    twin = ModelProto()
    twin.CopyFrom(model)
    names = {tensor.name for tensor in weights}
    for position in reversed(range(len(twin.graph.initializer))):
        if twin.graph.initializer[position].name in names:
            del twin.graph.initializer[position]
    for tensor in weights:
        if tensor.name in held:
            set_tensor_type(twin.graph.input.add(name=tensor.name), SymTensor(tensor.data_type, tuple(tensor.dims)))
    return to_onnx(twin)
