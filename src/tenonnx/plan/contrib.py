"""Lowering of onnxruntime's own operators, as onnxruntime-genai's models have them: norms, products by blocks of codes, and
attention that updates a cache.

What they compute is described in onnxruntime's docs/ContribOperators.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tenonnx.plan.attention import attend, heads_of
from tenonnx.plan.builder import FLOAT, INT32, INT64, Builder, Weight, identity
from tenonnx.plan.decoder import multiplies, product_with, rms_norm
from tenonnx.plan.draft import Value
from tenonnx.plan.inplace import shifted, updated
from tenonnx.plan.movement import packed_rows
from tenonnx.plan.nbits import MICROSOFT, Blocks, gathered
from tenonnx.schema.graph import Scope, attributes

# Inputs of GroupQueryAttention, and the values of those attributes that no kernel has otherwise.
_QUERY, _KEY, _VALUE, _PAST_KEY, _PAST_VALUE, _SEQLENS, _COS, _SIN, _FURTHER = 0, 1, 2, 3, 4, 5, 7, 8, 9
_OPTIONS = {"smooth_softmax": 0, "qk_output": 0, "k_quant_type": b"NONE", "v_quant_type": b"NONE", "sliding_window_cache": 0}


def simplified_norm(builder: Builder, node: Any) -> bool:
    """SimplifiedLayerNormalization is RMSNormalization under the name that it had before."""
    return len(node.input) == 2 and not any(node.output[1:]) and rms_norm(builder, node)


def skip_norm(builder: Builder, node: Any) -> bool:
    """SkipSimplifiedLayerNormalization: input + skip + bias, which may be an output too, and its RMSNormalization."""
    names = [*node.output, *[""] * 4][:4]
    if len(node.input) not in (3, 4) or not all(node.input[:3]) or any(names[1:3]):
        return False
    x, skip, scale, *bias = (builder.value(name) for name in node.input if name)
    if any(value.elem_type != FLOAT for value in (x, skip, scale, *bias)) or x.dims != skip.dims or not x.dims:
        return False
    if any(value.dims != x.dims[-1:] for value in (scale, *bias)):
        return False
    if any(builder.aliases.source(name) is not None for name in node.output if name):
        return False
    label, total = builder.label(node), x
    for addend in (skip, *bias):
        total, before = builder.new(names[3] or f"{names[0]}.sum", FLOAT, x.dims), total
        builder.step("add", label, [before, addend.broadcast(x.dims)], [total], reuse=(0, 1))
    result = builder.output(node)
    builder.step("rms_norm", label, [total, scale], [result], floats=(float(attributes(node).get("epsilon", 1e-12)),))
    builder.define(node, *(total if port == 3 else result for port in range(len(node.output))))
    return True


def group_query_attention(builder: Builder, node: Any) -> bool:
    """GroupQueryAttention that writes its caches in place: rotary embedding, two cache updates, attention to what is valid."""
    given, names = attributes(node), [*node.input, *[""] * 16][:16]
    past = [names[port] for port in (_PAST_KEY, _PAST_VALUE)]
    if len(node.output) < 3 or [builder.aliases.source(name) for name in node.output[1:3]] != past:
        return False
    if any(names[_FURTHER:]) or any(given.get(option, none) != none for option, none in _OPTIONS.items()):
        return False
    projections = _projections(builder, names, int(given.get("num_heads", 0)), int(given.get("kv_num_heads", 0)))
    tables = [builder.value(names[port]) for port in (_COS, _SIN) if names[port]] if given.get("do_rotary", 0) else []
    seqlens = builder.optional(node, _SEQLENS)
    if projections is None or seqlens is None or not _fits(*projections, [builder.value(name) for name in past], seqlens, tables):
        return False
    q, k, v = projections
    label = builder.label(node)
    results, checks = updated(builder, node, label)
    first, lengths = shifted(builder, seqlens, 1 - k.dims[2]), shifted(builder, seqlens, 1)
    if tables:
        angles = _angles(builder, tables, first, k.dims[2], label)
        q, k = (_rotated(builder, label, value, angles, int(given.get("rotary_interleaved", 0))) for value in (q, k))
    for values, name, index in ((k, past[0], 1), (v, past[1], 2)):
        cache = builder.value(name)
        builder.step("cache_update", label, [cache, values, first], [results[index]], ints=(2, 0), after=checks)
    result = builder.output(node)
    window = int(given.get("local_window_size", -1))
    scale = float(given.get("scale", 0.0)) or 1.0 / math.sqrt(q.dims[3])
    ints, floats = (1, window - 1 if window > 0 else -1), (scale, float(given.get("softcap", 0.0)))
    y = heads_of(builder, result, q.dims[1])
    attend(builder, label, [q, results[1], results[2], None, lengths], y, ints, floats)
    builder.define(node, result, results[1], results[2])
    return True


def _projections(builder: Builder, names: list[str], heads: int, kv_heads: int) -> tuple[Value, Value, Value] | None:
    """Queries, keys and values as [batch, heads, n, size]: three inputs, or one behind the other in the first."""
    query, counts = builder.value(names[_QUERY]), (heads, kv_heads, kv_heads)
    if len(query.dims) != 3 or min(counts) < 1:
        return None
    if names[_KEY] and names[_VALUE]:
        found = [heads_of(builder, builder.value(name), count) for name, count in zip(names[:3], counts, strict=True)]
        return (found[0], found[1], found[2]) if all(len(value.dims) == 4 for value in found) else None
    if names[_KEY] or names[_VALUE] or query.dims[2] % sum(counts):
        return None
    query, size = builder.dense(query), query.dims[2] // sum(counts)
    parts, begin = [], 0
    for count in counts:
        part = query.view((*query.dims[:2], count * size), query.strides, query.name, begin)
        parts.append(heads_of(builder, part, count))
        begin += count * size
    return parts[0], parts[1], parts[2]


def _fits(q: Value, k: Value, v: Value, caches: list[Value], seqlens: Value, tables: list[Value]) -> bool:
    """Whether kernels have these types and dimensions; ``tables`` of cosines and sines are two, or none."""
    batch, heads, rows, size = k.dims
    if any(value.elem_type != FLOAT for value in (q, k, v, *caches, *tables)) or seqlens.elem_type != INT32:
        return False
    if v.dims != k.dims or (q.dims[0], *q.dims[2:]) != (batch, rows, size) or q.dims[1] % heads or not 0 < size <= 512:
        return False
    if any(len(cache.dims) != 4 or (*cache.dims[:2], cache.dims[3]) != (batch, heads, size) for cache in caches):
        return False
    rotated = {table.dims for table in tables}
    sound = all(len(dims) == 2 and 0 < 2 * dims[1] <= size for dims in rotated)
    return seqlens.dims == (batch,) and len(tables) in (0, 2) and len(rotated) <= 1 and sound


def _angles(builder: Builder, tables: list[Value], first: Value, rows: int, label: str) -> tuple[Value, Value]:
    """Cosines and sines FLOAT[batch, rows, h] of the rows from ``first`` [batch] on, which the tables are checked to have."""
    dims = (first.dims[0], rows)

    def positions() -> Value:
        found = builder.new(f"{first.name}.rows", INT64, dims)
        starts = first.view((*first.dims, 1), (*first.strides, 0), first.name).broadcast(dims)
        counted = builder.constant(f"{first.name}.range", np.arange(rows, dtype=np.int64)).broadcast(dims)
        builder.step("add", f"positions from {first.name}", [starts, counted], [found])
        return found

    places = builder.once(("rows", *identity(first), rows), positions)
    check = builder.check("check_indices", places, (tables[0].dims[0],), label)

    def gathered() -> tuple[Value, Value]:
        made = [builder.new(f"{table.name}.rows", FLOAT, (*dims, table.dims[1])) for table in tables]
        for table, value in zip(tables, made, strict=True):
            builder.step("gather", f"rows of {table.name}", [table, places], [value], ints=(0,), after=[check])
        return made[0], made[1]

    found: tuple[Value, Value] = builder.once(("angles", *identity(places), *map(id, tables)), gathered)
    return found


def _rotated(builder: Builder, label: str, value: Value, angles: tuple[Value, Value], interleaved: int) -> Value:
    result = builder.new(f"{value.name}.rotated", FLOAT, value.dims)
    width = 2 * angles[0].dims[-1]
    ints = (interleaved, 0, width if width < value.dims[3] else 0)
    builder.step("rotary", label, [value, *angles], [result], ints=ints, reuse=(0,))
    return result


def matmul_nbits(builder: Builder, node: Any) -> bool:
    """MatMulNBits: a product by blocks of codes, and a bias."""
    weight, left = builder.lazy(node.input[1]), builder.value(node.input[0])
    if not isinstance(weight, Weight) or not weight.apart or not multiplies(builder, node, left, weight.turned()):
        return False
    result, label = builder.output(node), builder.label(node)
    bias = builder.optional(node, 5)
    if bias is not None and bias.dims != result.dims[-1:]:
        return False
    product = product_with(builder, label, left, weight.turned(), result)
    if bias is not None:
        result = builder.new(node.output[0], FLOAT, product.dims)
        builder.step("add", label, [product, bias.broadcast(product.dims)], [result], reuse=(0,))
    builder.define(node, result)
    return True


def gather_nbits(builder: Builder, node: Any) -> bool:
    """GatherBlockQuantized: rows of a weight that MatMulNBits multiplies by as well, as tied embeddings are."""
    blocks = gathered(builder.scope, node, builder.blocks)
    weight = None if blocks is None else builder.lazy(blocks.codes)
    if not isinstance(weight, Weight) or blocks is None:
        return False
    if builder.type_of(node.input[0])[1] != (blocks.rows, blocks.columns * blocks.bits // 8):
        return False
    return packed_rows(builder, node, weight, builder.value(node.input[1]))


Rules = dict[tuple[str, str], Callable[[Builder, Any], bool]]
RULES: Rules = {
    ("", "SimplifiedLayerNormalization"): simplified_norm,
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): skip_norm,
    ("com.microsoft", "GroupQueryAttention"): group_query_attention,
    ("com.microsoft", "MatMulNBits"): matmul_nbits,
    ("com.microsoft", "GatherBlockQuantized"): gather_nbits,
}


def rules(scope: Scope, blocks: Mapping[str, Blocks]) -> Rules:
    """The rules of a graph whose operators of onnxruntime's own all have one, else none: native steps would cut into pieces
    what it runs as a whole, each with memory of its own. ``blocks`` are the weights of its MatMulNBits that kernels have.
    """
    own = [node for node in scope.nodes if node.domain == MICROSOFT]
    native = all((node.domain, node.op_type) in RULES and _has_weight(scope, node, blocks) for node in own)
    return RULES if native else {}


def _has_weight(scope: Scope, node: Any, blocks: Mapping[str, Blocks]) -> bool:
    if node.op_type == "MatMulNBits":
        return node.input[1] in blocks
    return node.op_type != "GatherBlockQuantized" or gathered(scope, node, blocks) is not None
