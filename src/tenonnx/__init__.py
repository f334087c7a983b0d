"""ONNX storage that fits exactly: caches updated in place, packed values with a type for every bit, prepacked weights.

Names load what they need when they are first used; importing the package does no work.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_MESSAGES = (
    "ModelProto", "GraphProto", "NodeProto", "ValueInfoProto", "TypeProto", "TensorProto", "StructTypeProto", "StructProto",
    "ValueAliasProto", "QuantizedTensorProto", "QuantizationProto", "DeviceProto", "CompiledTensorProto", "SequenceProto",
    "MapProto", "OptionalProto",
)  # fmt: skip
_ERRORS = (
    "TenonnxError", "CheckError", "PayloadError", "ShapeError", "AliasError", "BindingError", "ImmutableStorageError",
    "SharedStorageError", "ConcurrentUseError", "CapacityError", "PageError", "UnsupportedError", "OptionError",
)  # fmt: skip
_HOMES = {
    **dict.fromkeys(_MESSAGES, "schema.messages"),
    **dict.fromkeys(_ERRORS, "errors"),
    **dict.fromkeys(("load", "save"), "schema.files"),
    **dict.fromkeys(
        ("ShapesContext", "SymTensor", "SymSequence", "SymMap", "SymOptional", "SymStruct", "SymQuantizedTensor"), "shapes"
    ),
    **dict.fromkeys(("Session", "ledger"), "runtime"),
    **dict.fromkeys(("Cache", "writable"), "cache"),
    "Diagnostic": "check",
    "ExecutionPlan": "plan",
}
_PACKAGES = (
    "alias",
    "cache",
    "check",
    "cli",
    "codecs",
    "compiled",
    "convert",
    "errors",
    "inspection",
    "layouts",
    "plan",
    "runtime",
    "schema",
    "shapes",
    "structs",
    "text",
)

__all__ = [*_HOMES, "check", "convert", "plan", "structs", "text"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
