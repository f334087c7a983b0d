"""Lowering of what decoder models are made of: matrix products, norms, rotary embedding, attention, cache updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tenonnx.errors import UnsupportedError
from tenonnx.layouts import quantized_row_bytes
from tenonnx.plan.attention import attention
from tenonnx.plan.builder import FLOAT, FLOAT16, INT64, PARALLEL_BYTES, UINT8, Builder, CastOf, Weight, identity
from tenonnx.plan.draft import Value
from tenonnx.plan.movement import packed_weight
from tenonnx.plan.types import CacheWrite
from tenonnx.schema.graph import attributes
from tenonnx.shapes.operators import update_axes


def _rows(builder: Builder, value: Value) -> Value:
    """``value`` [..., K] as a matrix [M, K]."""
    dims = (value.size // value.dims[-1] if value.dims[-1] else 0, value.dims[-1])
    view = value.reshaped(dims, value.name)
    if view is None or view.strides[-1] != 1:
        view = builder.dense(value).reshaped(dims, value.name)
    return view if view is not None else value


def matmul(builder: Builder, node: Any) -> bool:
    """Activations times a packed weight: StructDecode → Transpose → MatMul of the graph in one kernel."""
    weight = builder.lazy(node.input[1])
    left = builder.value(node.input[0])
    if not isinstance(weight, Weight) or not multiplies(builder, node, left, weight):
        return False
    result = builder.output(node)
    product = product_with(builder, builder.label(node), left, weight, result)
    if product is not result:
        builder.step("copy", f"Cast of {product.name}", [product], [result])
    builder.define(node, result)
    return True


def gemm(builder: Builder, node: Any) -> bool:
    """alpha · A · B + beta · C with a packed weight B, the sum rounded to the result's type once."""
    given = attributes(node)
    weight, left = builder.lazy(node.input[1]), builder.value(node.input[0])
    if isinstance(weight, Weight) and given.get("transB", 0):
        weight = weight.turned()
    if not isinstance(weight, Weight) or len(left.dims) != 2 or not multiplies(builder, node, left, weight):
        return False
    if given.get("transA", 0):
        left = left.view(left.dims[::-1], left.strides[::-1], left.name)
    result, label = builder.output(node), builder.label(node)
    total = _scaled(builder, product_with(builder, label, left, weight, result), float(given.get("alpha", 1.0)))
    beta = float(given.get("beta", 1.0))
    bias = builder.optional(node, 2)
    if bias is not None and beta != 0.0:
        bias = _scaled(builder, _as_float(builder, bias), beta).broadcast(total.dims)
        total, product = builder.new(f"{result.name}.sum", FLOAT, total.dims), total
        builder.step("add", label, [product, bias], [total], reuse=(0,))
    if result.elem_type == FLOAT:
        result = total.view(total.dims, total.strides, result.name)
    else:
        builder.step("copy", f"Cast of {total.name}", [total], [result])
    builder.define(node, result)
    return True


def multiplies(builder: Builder, node: Any, left: Value, weight: Weight) -> bool:
    """Whether a kernel has this product: of floats of one type, into storage of its own."""
    if weight.layout is None or not weight.transposed or builder.aliases.source(node.output[0]) is not None:
        return False
    return bool(left.dims) and left.elem_type == weight.elem_type


def product_with(builder: Builder, label: str, left: Value, weight: Weight, result: Value) -> Value:
    """``left`` [..., K] times a packed weight, in FLOAT: ``result`` itself where that is FLOAT."""
    layout = weight.layout
    if layout is None:
        raise UnsupportedError(f"{label}: no kernel reads weight {weight.name!r} packed")
    product = result if result.elem_type == FLOAT else builder.new(f"{result.name}.wide", FLOAT, result.dims)
    rows = _rows(builder, _as_float(builder, left))
    out = product.view((rows.dims[0], weight.shape[0]), (weight.shape[0], 1), product.name)
    if layout.quantized_activations:
        rows = _quantized(builder, rows)
    ints = (*weight.shape, *layout.arguments)
    builder.step(layout.matmul, label, [rows, packed_weight(weight)], [out], ints=ints, parallel=True)
    return product


def _as_float(builder: Builder, value: Value) -> Value:
    if value.elem_type == FLOAT:
        return value

    def make() -> Value:
        result = builder.new(f"{value.name}.wide", FLOAT, value.dims)
        builder.step("copy", f"Cast of {value.name}", [value], [result])
        return result

    return builder.once(("wide", *identity(value)), make)


def _scaled(builder: Builder, value: Value, factor: float) -> Value:
    if factor == 1.0:
        return value
    result = builder.new(f"{value.name}.scaled", FLOAT, value.dims)
    scale = builder.constant(f"{value.name}.scale", np.asarray(factor, np.float32)).broadcast(value.dims)
    builder.step("mul", f"{factor} times {value.name}", [value, scale], [result], reuse=(0,))
    return result


def _quantized(builder: Builder, rows: Value) -> Value:
    """INT8 rows of the activations, made once for all products that read them."""

    def make() -> Value:
        count, columns = rows.dims
        result = builder.new(f"{rows.name}.int8", UINT8, (count, quantized_row_bytes(columns)))
        builder.step("quantize_rows", f"INT8 rows of {rows.name}", [rows], [result])
        return result

    return builder.once(("quantized", *identity(rows)), make)


def struct_decode(builder: Builder, node: Any) -> bool:
    """Waits for its readers: those with a kernel for the packed layout never see the decoded values."""
    builder.define(node, builder.lazy(node.input[0]))
    return True


def rms_norm(builder: Builder, node: Any) -> bool:
    """RMSNormalization over the last axis."""
    x, scale = builder.value(node.input[0]), builder.value(node.input[1])
    given = attributes(node)
    last = given.get("axis", -1) in (-1, len(x.dims) - 1)
    if (
        not last
        or x.elem_type != FLOAT
        or scale.elem_type != FLOAT
        or scale.dims != x.dims[-1:]
        or given.get("stash_type", 1) != FLOAT
    ):
        return False
    if x.strides[-1] != 1:
        x = builder.dense(x)
    result = builder.output(node)
    builder.step("rms_norm", builder.label(node), [x, scale], [result], floats=(float(given.get("epsilon", 1e-5)),))
    builder.define(node, result)
    return True


def rotary(builder: Builder, node: Any) -> bool:
    """RotaryEmbedding with its cosines and sines per token."""
    if len(node.input) != 3:
        return False
    given = attributes(node)
    x, cos, sin = builder.value(node.input[0]), *(_angles(builder, name) for name in node.input[1:3])
    if x.elem_type != FLOAT or cos.elem_type != FLOAT or sin.elem_type != FLOAT or len(x.dims) not in (3, 4):
        return False
    if x.strides[-1] != 1:
        x = builder.dense(x)
    result = builder.output(node)
    ints = (given.get("interleaved", 0), given.get("num_heads", 0), given.get("rotary_embedding_dim", 0))
    builder.step("rotary", builder.label(node), [x, cos, sin], [result], ints=ints, reuse=(0,))
    builder.define(node, result)
    return True


def _angles(builder: Builder, name: str) -> Value:
    """Cosines or sines: of Cos or Sin over position × frequency, both come from one pass over the positions."""
    source = _rope_source(builder, name)
    if source is None:
        return builder.value(name)
    positions, frequencies, which, product = source

    def make() -> tuple[Value, Value]:
        dims = (*positions.dims, frequencies.dims[0])
        cos, sin = builder.new(f"{product}.cos", FLOAT, dims), builder.new(f"{product}.sin", FLOAT, dims)
        builder.step(
            "rope_table", f"cosines and sines of {product}", [builder.dense(positions), frequencies], [cos, sin], floats=(1.0,)
        )
        return cos, sin

    pair = builder.once(("rope", *identity(positions), *identity(frequencies)), make)
    return pair[which]


def _rope_source(builder: Builder, name: str) -> tuple[Value, Value, int, str] | None:
    """(positions INT64 [...], frequencies FLOAT[h], 0 for Cos or 1 for Sin, name of the product) behind a value, or None."""
    scope = builder.scope
    maker = scope.producer.get(name)
    if maker is None or scope.nodes[maker.node].op_type not in ("Cos", "Sin"):
        return None
    trig = scope.nodes[maker.node]
    inner = scope.producer.get(trig.input[0])
    if inner is None or scope.nodes[inner.node].op_type != "Mul":
        return None
    a, b = (builder.value(operand) for operand in scope.nodes[inner.node].input)
    for angle, frequency in ((_cast_source(a), b), (_cast_source(b), a)):
        if angle is None or frequency.elem_type != FLOAT or len(frequency.dims) != 1:
            continue
        if angle.elem_type != INT64 or not angle.dims or angle.dims[-1] != 1:
            continue
        positions = angle.reshaped(angle.dims[:-1], angle.name)
        if positions is not None:
            return positions, frequency, int(trig.op_type == "Sin"), trig.input[0]
    return None


def _cast_source(value: Value) -> Value | None:
    """What a cast to FLOAT reads, when ``value`` is that cast's whole result."""
    makers = value.owner.writers.get(value.version, [])
    if len(makers) != 1 or makers[0].kernel != "copy" or value.of is not None or value.elem_type != FLOAT:
        return None
    return makers[0].inputs[0]


def cache_update(builder: Builder, node: Any) -> bool:
    """CacheUpdate, and TensorScatter that declares its alias: rows written where they belong, nothing copied."""
    label = builder.label(node)
    root = builder.aliases.root(node.output[0])
    if root == node.output[0]:
        if node.op_type != "CacheUpdate":
            return False
        raise UnsupportedError(f"{label}: declares no output_alias; a cache update must alias its cache input")
    cache = builder.value(node.input[0])
    if not cache.owner.mutable:
        raise UnsupportedError(f"{label}: its cache {node.input[0]!r} is not the storage of a READ_WRITE graph input")
    axis, batch_axis = update_axes(node, len(cache.dims), label)
    values = builder.lazy(node.input[1])
    if (
        isinstance(values, CastOf)
        and values.elem_type == cache.elem_type
        and values.source.elem_type == FLOAT
        and cache.elem_type == FLOAT16
    ):
        values = values.source  # the kernel converts as it writes
    else:
        values = builder.value(node.input[1])
    position = builder.optional(node, 2)
    if position is None:
        position = builder.constant(f"{node.output[0]}.position", np.zeros((), np.int64))
    position = builder.dense(position)
    rows, capacity = values.dims[axis], cache.dims[axis]
    check = builder.check("check_position", position, (capacity - rows,), label)
    updated = Value(
        node.output[0], cache.elem_type, cache.dims, cache.strides, cache.owner, cache.offset, cache.version + 1, cache
    )
    builder.step(
        "cache_update",
        label,
        [cache, values, position],
        [updated],
        ints=(axis, batch_axis),
        after=[check],
        parallel=values.size * values.itemsize >= PARALLEL_BYTES,
    )
    builder.writes.append(CacheWrite(label, root, node.input[2] if len(node.input) > 2 else "", rows, capacity, axis))
    builder.define(node, updated)
    return True


def tensor_scatter(builder: Builder, node: Any) -> bool:
    """TensorScatter in linear mode is a CacheUpdate where its alias is declared."""
    if attributes(node).get("mode", b"linear") != b"linear":
        return False
    return cache_update(builder, node)


RULES: dict[str, Callable[[Builder, Any], bool]] = {
    "MatMul": matmul,
    "Gemm": gemm,
    "RMSNormalization": rms_norm,
    "RotaryEmbedding": rotary,
    "Attention": attention,
    "TensorScatter": tensor_scatter,
}
DOMAIN_RULES: dict[str, Callable[[Builder, Any], bool]] = {"StructDecode": struct_decode, "CacheUpdate": cache_update}
