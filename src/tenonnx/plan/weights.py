"""Which initializers kernels read packed, and as which matrix."""

from __future__ import annotations

from typing import Any

from tenonnx.layouts import layout_for
from tenonnx.plan.builder import BFLOAT16, FLOAT, FLOAT16, Weight
from tenonnx.schema.graph import Scope, attributes

FORMATS = {FLOAT: "F32", FLOAT16: "F16", BFLOAT16: "BF16"}  # of plain tensors, by element type


def products(scope: Scope) -> dict[str, Weight]:
    """The plain float initializers that a MatMul or Gemm has as its right operand, as they are or transposed."""
    found = {}
    for name, tensor in scope.initializers.items():
        if tensor.data_type not in FORMATS or len(tensor.dims) != 2 or 0 in tensor.dims:
            continue
        turned = _turned(scope, name)
        if turned is not None:
            shape = tuple(tensor.dims) if turned else tuple(tensor.dims)[::-1]
            layout = layout_for(FORMATS[tensor.data_type], shape)
            found[name] = Weight(name, shape, layout, not turned, tensor.data_type, columns_first=not turned)
    return found


def _turned(scope: Scope, name: str) -> bool | None:
    """Whether the first product that reads a value reads its transpose; None where there is none.

    On the way there may be what changes neither content nor rank: Identity, Transpose, and a Cast to FLOAT.
    """
    pending = [(name, False)]
    while pending:
        value, turned = pending.pop()
        for port in scope.readers.get(value, ()):
            node = scope.nodes[port.node]
            if node.domain not in ("", "ai.onnx"):
                continue
            if port.slot == 1 and node.op_type in ("MatMul", "Gemm"):
                return turned != bool(attributes(node).get("transB", 0))
            if port.slot == 0 and _passes(node):
                pending.append((node.output[0], turned != (node.op_type == "Transpose")))
    return None


def _passes(node: Any) -> bool:
    if node.op_type == "Cast":
        return bool(attributes(node).get("to") == FLOAT)
    if node.op_type == "Transpose":
        return attributes(node).get("perm") in (None, [1, 0])
    return bool(node.op_type == "Identity")
