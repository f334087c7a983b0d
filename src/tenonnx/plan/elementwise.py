"""Lowering of elementwise operators: one kernel call over broadcast views."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tenonnx.plan.builder import ADDRESSED, BFLOAT16, BOOL, FLOAT, FLOAT16, INT32, INT64, Builder, CastOf, SwishOf, Weight
from tenonnx.schema.graph import attributes

_ARITHMETIC = frozenset({FLOAT, INT64, INT32})
_BINARY = {
    "Add": ("add", _ARITHMETIC),
    "Sub": ("sub", _ARITHMETIC),
    "Mul": ("mul", _ARITHMETIC),
    "Div": ("div", _ARITHMETIC),
    "Pow": ("pow", frozenset({FLOAT})),
    "Equal": ("equal", _ARITHMETIC),
    "Less": ("less", _ARITHMETIC),
    "Greater": ("greater", _ARITHMETIC),
    "LessOrEqual": ("less_equal", _ARITHMETIC),
    "GreaterOrEqual": ("greater_equal", _ARITHMETIC),
    "And": ("and", frozenset({BOOL})),
    "Or": ("or", frozenset({BOOL})),
}
_UNARY = {
    "Neg": ("neg", frozenset({FLOAT, INT64})),
    "Abs": ("abs", frozenset({FLOAT, INT64})),
    "Not": ("not", frozenset({BOOL})),
    **{
        op: (op.lower(), frozenset({FLOAT}))
        for op in ("Sqrt", "Reciprocal", "Exp", "Log", "Sin", "Cos", "Tanh", "Sigmoid", "Relu", "Softplus", "Erf")
    },
}


def binary(builder: Builder, node: Any) -> bool:
    """Two operands of one type, broadcast to the output's dimensions."""
    kernel, types = _BINARY[node.op_type]
    if node.op_type == "Mul" and (_swish_product(builder, node) or _swish_of_sigmoid(builder, node)):
        return True
    operands = [builder.value(name) for name in node.input]
    if len(operands) != 2 or operands[0].elem_type not in types or operands[1].elem_type != operands[0].elem_type:
        return False
    result = builder.output(node)
    views = [operand.broadcast(result.dims) for operand in operands]
    reuse = (0, 1) if result.elem_type == operands[0].elem_type else ()
    builder.step(kernel, builder.label(node), list(views), [result], reuse=reuse)
    builder.define(node, result)
    return True


def _swish_product(builder: Builder, node: Any) -> bool:
    """Swish(gate) * up in one pass, for equal shapes and an output that owns its storage."""
    lazy = [builder.lazy(name) for name in node.input]
    if builder.aliases.source(node.output[0]) is not None:
        return False
    for index in (0, 1):
        gate, other = lazy[index], lazy[1 - index]
        if not isinstance(gate, SwishOf) or isinstance(other, SwishOf):
            continue
        up = builder.value(node.input[1 - index])
        if up.dims != gate.source.dims:
            return False
        result = builder.output(node)
        builder.step("swish_mul", builder.label(node), [gate.source, up], [result], floats=(gate.alpha,), reuse=(0, 1))
        builder.define(node, result)
        return True
    return False


def _swish_of_sigmoid(builder: Builder, node: Any) -> bool:
    """x · Sigmoid(x) is Swish(x), as exporters without that operator spell it."""
    if len(node.input) != 2 or builder.aliases.source(node.output[0]) is not None:
        return False
    for x, factor in (node.input, node.input[::-1]):
        maker = builder.scope.producer.get(factor)
        made_of = None if maker is None else builder.scope.nodes[maker.node]
        if made_of is not None and (made_of.op_type, made_of.domain) == ("Sigmoid", "") and made_of.input[0] == x:
            operand = builder.value(x)
            if operand.elem_type == FLOAT:
                builder.define(node, SwishOf(operand, 1.0))
                return True
    return False


def unary(builder: Builder, node: Any) -> bool:
    """One operand, same shape and type."""
    kernel, types = _UNARY[node.op_type]
    operand = builder.value(node.input[0])
    if operand.elem_type not in types:
        return False
    result = builder.output(node)
    builder.step(kernel, builder.label(node), [operand], [result], reuse=(0,))
    builder.define(node, result)
    return True


def gelu(builder: Builder, node: Any) -> bool:
    """Gelu by tanh or by erf."""
    operand = builder.value(node.input[0])
    if operand.elem_type != FLOAT:
        return False
    approximate = attributes(node).get("approximate", b"none")
    result = builder.output(node)
    kernel = "gelu_tanh" if approximate == b"tanh" else "gelu_erf"
    builder.step(kernel, builder.label(node), [operand], [result], reuse=(0,))
    builder.define(node, result)
    return True


def swish(builder: Builder, node: Any) -> bool:
    """Waits for a product to be fused with."""
    operand = builder.value(node.input[0])
    if operand.elem_type != FLOAT or builder.aliases.source(node.output[0]) is not None:
        return False
    builder.define(node, SwishOf(operand, float(attributes(node).get("alpha", 1.0))))
    return True


def cast(builder: Builder, node: Any) -> bool:
    """Waits for a kernel that converts while it reads: attention over FLOAT16 caches, a cache update, a packed weight."""
    weight, target = builder.lazy(node.input[0]), int(attributes(node)["to"])
    if isinstance(weight, Weight) and target == FLOAT:
        builder.define(node, replace(weight, elem_type=FLOAT))
        return True
    operand = builder.value(node.input[0])
    if operand.elem_type not in ADDRESSED or target not in ADDRESSED or builder.aliases.source(node.output[0]) is not None:
        return False
    if operand.elem_type == target:
        builder.define(node, operand.view(operand.dims, operand.strides, node.output[0]))
        return True
    lazy = CastOf(operand, target)
    halves = {FLOAT, FLOAT16, BFLOAT16}
    builder.define(node, lazy)
    if not {operand.elem_type, target} <= halves:
        builder.value(node.output[0])
    return True


def where(builder: Builder, node: Any) -> bool:
    """Choice by a BOOL mask, all three broadcast."""
    condition, a, b = (builder.value(name) for name in node.input)
    if a.elem_type != b.elem_type:
        return False
    result = builder.output(node)
    builder.step("where", builder.label(node), [value.broadcast(result.dims) for value in (condition, a, b)], [result])
    builder.define(node, result)
    return True


def softmax(builder: Builder, node: Any) -> bool:
    """Softmax over the last axis."""
    operand = builder.value(node.input[0])
    axis = attributes(node).get("axis", -1)
    if operand.elem_type != FLOAT or axis not in (-1, len(operand.dims) - 1):
        return False
    operand = builder.dense(operand)
    result = builder.output(node)
    builder.step("softmax", builder.label(node), [operand], [result])
    builder.define(node, result)
    return True


RULES: dict[str, Callable[[Builder, Any], bool]] = {
    **dict.fromkeys(_BINARY, binary),
    **dict.fromkeys(_UNARY, unary),
    "Gelu": gelu,
    "Swish": swish,
    "Cast": cast,
    "Where": where,
    "Softmax": softmax,
}
