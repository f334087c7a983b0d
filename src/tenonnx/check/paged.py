"""Rules of quantized pages: declarations, values and containers. All pages of a container decode to one type and shape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tenonnx import dtypes
from tenonnx.check.diagnostics import Diagnostic
from tenonnx.errors import TenonnxError
from tenonnx.schema.messages import QuantizationProto
from tenonnx.structs.quantizations import Quantizations

_INT64 = 7


def _error(rule: str, where: str, message: str) -> Diagnostic:
    return Diagnostic("error", "invalid", rule, where, message)


def check_pages(model: Any) -> Iterator[Diagnostic]:
    """Every finding about a model's quantizations, and about the types of pages at its inputs and outputs."""
    quantizations = Quantizations(model)
    for index in range(len(quantizations)):
        try:
            _ = quantizations[index]
        except TenonnxError as error:
            yield _error("quantization-is-sound", f"quantizations[{index}]", str(error))
    for part in (model.graph.input, model.graph.output, model.graph.value_info):
        for value in part:
            yield from _type_findings(value.type, model, f"value {value.name!r}")


def _type_findings(type_proto: Any, model: Any, where: str) -> Iterator[Diagnostic]:
    kind = type_proto.WhichOneof("value")
    if kind == "sequence_type":
        yield from _type_findings(type_proto.sequence_type.elem_type, model, where)
    elif kind == "map_type":
        held = type_proto.map_type.value_type
        if held.WhichOneof("value") == "quantized_tensor_type" and type_proto.map_type.key_type != _INT64:
            yield _error("page-keys", where, f"a map of pages has keys of type {type_proto.map_type.key_type}; expected INT64")
        yield from _type_findings(held, model, where)
    elif kind == "quantized_tensor_type":
        yield from _page_type_findings(type_proto.quantized_tensor_type, model, where)


def _page_type_findings(page: Any, model: Any, where: str) -> Iterator[Diagnostic]:
    if page.elem_type not in dtypes.BY_NUMBER:
        yield _error(
            "page-type", where, f"pages have element type {page.elem_type}; expected one of fixed width, such as FLOAT16"
        )
    for index in page.allowed_quantized_type:
        if not 0 <= index < len(model.quantizations):
            yield _error(
                "allowed-quantized-type",
                where,
                f"allows quantization {index}; the model declares {len(model.quantizations)}: use their indices, or none for any",
            )
        elif model.quantizations[index].elem_type != page.elem_type:
            yield _error(
                "allowed-quantized-type",
                where,
                f"allows {model.quantizations[index].name!r}, which decodes to element type "
                f"{model.quantizations[index].elem_type}, but the pages are of {page.elem_type}",
            )


def page_findings(container: Any, quantizations: Quantizations, where: str) -> Iterator[Diagnostic]:
    """What is unsound in a SequenceProto of quantized tensors: indices, allowed sets, types and shapes, payloads."""
    declared = container.value_type.quantized_tensor_type
    expected = tuple(dim.dim_value for dim in declared.shape.dim) if declared.HasField("shape") else None
    for number, value in enumerate(container.quantized_tensor_values):
        place = f"{where}: page {number}"
        try:
            format, profile = _format_of(value, quantizations)
        except TenonnxError as error:
            yield _error("quantized-type", place, str(error))
            continue
        yield from _agreement(value, declared, profile, quantizations, place)
        dims = tuple(value.dims)
        expected = dims if expected is None else expected
        if dims != expected:
            yield _error("page-shape", place, f"has dims {list(dims)}; all pages of a container have {list(expected)}")
        try:
            wanted = format.blocks(dims) * format.nbytes
        except TenonnxError as error:
            yield _error("page-payload", place, str(error))
            continue
        found = len(value.raw_data)
        if found != wanted or (value.HasField("n_bytes") and value.n_bytes != found):
            said = f", and n_bytes says {value.n_bytes}" if value.HasField("n_bytes") and value.n_bytes != found else ""
            yield _error("page-payload", place, f"has {found} bytes; {format.name} takes exactly {wanted}{said}")


def _format_of(value: Any, quantizations: Quantizations) -> tuple[Any, Any]:
    """The format of a page and the profile that names it."""
    if value.HasField("quantized_type"):
        return quantizations[value.quantized_type], quantizations.model.quantizations[value.quantized_type]
    return quantizations.inline(value.quantization), value.quantization


def _agreement(value: Any, declared: Any, profile: Any, quantizations: Quantizations, place: str) -> Iterator[Diagnostic]:
    if value.HasField("quantized_type") and value.HasField("quantization") and not _same(value.quantization, profile):
        yield _error(
            "inline-quantization",
            place,
            f"its inline quantization {value.quantization.name!r} is not quantizations[{value.quantized_type}]; keep one",
        )
    if declared.elem_type and profile.elem_type != declared.elem_type:
        yield _error(
            "page-elem-type",
            place,
            f"{profile.name!r} decodes to element type {profile.elem_type}; the container's pages are of {declared.elem_type}",
        )
    allowed = list(declared.allowed_quantized_type)
    if allowed and value.quantized_type not in allowed:
        yield _error(
            "allowed-quantized-type", place, f"has quantized_type {value.quantized_type}; the container allows {allowed}"
        )


def _same(a: Any, b: Any) -> bool:
    """Equal in all that bears on the bytes."""
    bare = [QuantizationProto(elem_type=q.elem_type, block_type=q.block_type, block_shape=q.block_shape) for q in (a, b)]
    return bool(bare[0] == bare[1])
