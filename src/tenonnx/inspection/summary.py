"""How big a model is, which types it has, which caches: read from its declarations, no weight touched."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from tenonnx import dtypes
from tenonnx.errors import TenonnxError
from tenonnx.inspection.subject import Subject
from tenonnx.schema.messages import ValueInfoProto
from tenonnx.structs.reader import INLINE


def summary(subject: Subject) -> dict[str, Any]:
    """Everything that ``tenonnx inspect`` tells of a model, as plain data."""
    model = subject.model
    aliases = {value.alias_of: value.name for value in model.graph.output if value.alias_of}
    return {
        "name": subject.name,
        "graph": model.graph.name,
        "producer": model.producer_name,
        "ir_version": model.ir_version,
        "opsets": {entry.domain or "ai.onnx": entry.version for entry in model.opset_import},
        "nodes": dict(Counter(node.op_type for node in model.graph.node).most_common()),
        "inputs": [_value(value, aliases) for value in _given(model)],
        "outputs": [_value(value, {}) for value in model.graph.output],
        "cache_bytes_per_token": _bytes_per_token(model),
        "weights": _weights(subject),
        "types": _types(subject),
        "metadata": {entry.key: entry.value for entry in model.metadata_props},
    }


def _given(model: Any) -> list[Any]:
    """The inputs that a caller binds: those that are no initializer's name."""
    fixed = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in fixed]


def _value(value: Any, aliases: dict[str, str]) -> dict[str, Any]:
    found = {"name": value.name, "type": type_text(value.type)}
    if value.access == ValueInfoProto.READ_WRITE:
        found |= {"access": "READ_WRITE", "updated_as": aliases.get(value.name)}
    return found | ({"alias_of": value.alias_of} if value.alias_of else {})


def type_text(declared: Any) -> str:
    """A TypeProto as it is read: ``FLOAT[batch, 4]``, ``sequence(struct_types[2])``."""
    kind = declared.WhichOneof("value")
    if kind == "tensor_type":
        known = dtypes.BY_NUMBER.get(declared.tensor_type.elem_type)
        name = known.name if known else "STRING" if declared.tensor_type.elem_type == dtypes.STRING else "UNKNOWN"
        if not declared.tensor_type.HasField("shape"):
            return f"{name}[…]"
        dims = [
            dim.dim_param or (str(dim.dim_value) if dim.HasField("dim_value") else "?") for dim in declared.tensor_type.shape.dim
        ]
        return f"{name}[{', '.join(dims)}]"
    if kind == "struct_type":
        static = declared.struct_type
        return f"struct_types[{static.type_index}]" if static.WhichOneof("kind") == "type_index" else "struct"
    if kind in ("sequence_type", "optional_type"):
        return f"{kind.removesuffix('_type')}({type_text(getattr(declared, kind).elem_type)})"
    if kind == "map_type":
        key = dtypes.BY_NUMBER.get(declared.map_type.key_type)
        return f"map({key.name if key else 'STRING'}, {type_text(declared.map_type.value_type)})"
    return (kind or "unknown").removesuffix("_type")


def _bytes_per_token(model: Any) -> int | None:
    """Bytes of all caches for one position of one sequence: their dimensions are numbers but for batch and capacity.

    None without caches, and where a cache is no tensor of that kind.
    """
    caches = [value.type for value in _given(model) if value.access == ValueInfoProto.READ_WRITE]
    found = [_bytes_per_position(declared.tensor_type) for declared in caches]
    return sum(filter(None, found)) if found and None not in found else None


def _bytes_per_position(tensor: Any) -> int | None:
    known = dtypes.BY_NUMBER.get(tensor.elem_type)
    symbols = [place for place, dim in enumerate(tensor.shape.dim) if not dim.HasField("dim_value")]
    if known is None or len([place for place in symbols if place > 0]) != 1:
        return None
    return math.prod(dim.dim_value for place, dim in enumerate(tensor.shape.dim) if place not in symbols) * known.bits // 8


def _weights(subject: Subject) -> list[dict[str, Any]]:
    """Formats by count and bytes, and the file that holds them (None: the model itself), the largest first."""
    found: dict[tuple[str, str | None], list[int]] = {}
    for value in subject.model.graph.struct_initializer:
        found.setdefault((_format(subject, value), _location(value)), []).append(_struct_bytes(subject, value))
    for tensor in subject.model.graph.initializer:
        kind = dtypes.BY_NUMBER.get(tensor.data_type)
        nbytes = tensor.ByteSize() if kind is None else -(-math.prod(max(dim, 0) for dim in tensor.dims) * kind.bits // 8)
        found.setdefault((kind.name if kind else "STRING", _location(tensor)), []).append(nbytes)
    groups = [{"format": name, "count": len(sizes), "bytes": sum(sizes), "file": file} for (name, file), sizes in found.items()]
    return sorted(groups, key=lambda group: (-int(str(group["bytes"])), str(group["format"])))


def _location(value: Any) -> str | None:
    return next((entry.value for entry in value.external_data if entry.key == "location"), None)


def _format(subject: Subject, value: Any) -> str:
    if value.type == INLINE:
        return value.struct_type.name or "inline type"
    try:
        known = subject.recognizer(value.type)
    except TenonnxError:
        return "invalid type"
    return known.format.name if known is not None else subject.block_name(value.type)


def _struct_bytes(subject: Subject, value: Any) -> int:
    try:
        return subject.recognizer.types.of_value(value, value.name).nbytes
    except TenonnxError:
        return value.ByteSize()


def _types(subject: Subject) -> list[dict[str, Any]]:
    uses = Counter(value.type for value in subject.model.graph.struct_initializer)
    return [
        {"index": index, "name": declaration.name, "bits": _bits(subject, index), "values": uses[index]}
        for index, declaration in enumerate(subject.model.struct_types)
    ]


def _bits(subject: Subject, index: int) -> int | None:
    """The size of a declaration, None for an invalid one."""
    try:
        return subject.recognizer.types.node(index).bits
    except TenonnxError:
        return None
