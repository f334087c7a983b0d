"""What a declared decoder may make of its bytes: a few of them must not stand for memory without end."""

from __future__ import annotations

import math
from typing import Any

from tenonnx import dtypes
from tenonnx.errors import UnsupportedError
from tenonnx.structs.functions import STANDARD
from tenonnx.structs.physical import TypeLimit

MAX_GROWTH = 4096  # bytes of all values of a decoder for each byte of payload and decoder
MAX_BASE = 2**24  # bytes that any decoder may make


def check_growth(model: Any, payload: int, where: str) -> None:
    """Sum the sizes of all values that the model (stock onnx) of a decoder computes from ``payload`` bytes.

    Raises ``TypeLimit`` when they are more than this version allocates, or known only from the payload's content, and
    ``UnsupportedError`` for what is not made of standard operators that fit one another.
    """
    import onnx
    from onnx.inliner import inline_local_functions

    limit, made = MAX_GROWTH * (payload + model.ByteSize()) + MAX_BASE, 0
    try:
        inlined = inline_local_functions(model)
        # Without data propagation, which itself fills memory for some of the sizes that are refused here.
        inferred = onnx.shape_inference.infer_shapes(inlined, strict_mode=True)
    except Exception as error:  # onnx raises its own InferenceError, and others for malformed nodes
        raise UnsupportedError(f"{where}: no engine runs its decoder: {error}") from error
    for graph in _graphs(inferred.graph):
        types = {info.name: info.type for info in (*graph.value_info, *graph.output)}
        for node in graph.node:
            if not onnx.defs.has(node.op_type, node.domain if node.domain not in STANDARD else ""):
                name = ".".join(filter(None, (node.domain, node.op_type)))
                raise UnsupportedError(f"{where}: no engine runs its decoder: {name} is no operator of standard ONNX")
            if node.op_type == "Loop":
                raise TypeLimit(f"{where}: its decoder has a Loop, which no size bounds; write it without")
            for name in filter(None, node.output):
                made += _nbytes(types.get(name), name, where)
    if made > limit:
        raise TypeLimit(f"{where}: its decoder makes {made} bytes of {payload}; this version allows {limit}")


def _graphs(graph: Any) -> list[Any]:
    found = [graph]
    for current in found:  # grows as nested graphs are met
        for node in current.node:
            for attribute in node.attribute:
                found.extend((*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs))
    return found


def _nbytes(declared: Any, name: str, where: str) -> int:
    if declared is not None and declared.WhichOneof("value") == "tensor_type" and declared.tensor_type.HasField("shape"):
        dims = declared.tensor_type.shape.dim
        kind = dtypes.BY_NUMBER.get(declared.tensor_type.elem_type)
        if kind is not None and all(dim.HasField("dim_value") for dim in dims):
            return math.prod(dim.dim_value for dim in dims) * max(kind.bits // 8, 1)
    raise TypeLimit(f"{where}: its decoder gives {name!r} a size that is not known before it runs; use constant shapes")
