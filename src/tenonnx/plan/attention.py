"""Lowering of Attention: tiles of queries for a prompt, chunks of keys for a step."""

from __future__ import annotations

import math
from typing import Any

from tenonnx.errors import UnsupportedError
from tenonnx.plan.builder import BFLOAT16, BOOL, FLOAT, FLOAT16, INT64, UINT8, Builder, CastOf
from tenonnx.plan.draft import Value, row_major
from tenonnx.plan.types import Storage
from tenonnx.schema.graph import attributes

CHUNK = 128  # keys of one task of attention_partial, as in native/kernels/attention_decode.cpp
FEW_QUERIES = 16  # queries that share a K/V head, up to which keys are split rather than queries


def attention(builder: Builder, node: Any) -> bool:
    """Attention over dense K and V, or over caches read in their own 16-bit type up to the valid length."""
    given = attributes(node)
    names = [*node.input, *[""] * 7][:7]
    if names[4] or names[5] or len([name for name in node.output if name]) > 1 or not names[2]:
        return False
    if given.get("softmax_precision", FLOAT) != FLOAT or given.get("right_window_size", -1) != -1:
        return False
    q = heads_of(builder, builder.value(names[0]), given.get("q_num_heads"))
    k = heads_of(builder, _cached(builder, names[1]), given.get("kv_num_heads"))
    v = heads_of(builder, _cached(builder, names[2]), given.get("kv_num_heads"))
    mask = builder.value(names[3]) if names[3] else None
    lengths = builder.value(names[6]) if names[6] else None
    if not _fits(q, k, v, mask, lengths):
        return False
    result = result_for(builder, node)
    y = result if len(result.dims) == 4 else heads_of(builder, result, given.get("q_num_heads"))
    if mask is not None:
        mask = _mask(mask, q)
    scale = float(given.get("scale", 1.0 / math.sqrt(q.dims[3]) if q.dims[3] else 1.0))
    ints = (int(given.get("is_causal", 0)), int(given.get("left_window_size", -1)))
    floats = (scale, float(given.get("softcap", 0.0)))
    attend(builder, builder.label(node), [q, k, v, mask, lengths], y, ints, floats)
    builder.define(node, result)
    return True


def attend(
    builder: Builder,
    label: str,
    operands: list[Value | None],
    y: Value,
    ints: tuple[int, int],
    floats: tuple[float, float],
) -> None:
    """The steps from q, k, v, mask and lengths (as ``native/kernels/attention.hpp`` takes them) to y."""
    q, k, v, _, lengths = operands
    if q is None or k is None or v is None:
        raise UnsupportedError(f"{label}: attention needs queries, keys and values")
    heads, count, capacity = q.dims[1], q.dims[2], k.dims[2]
    if count * (heads // k.dims[1]) > FEW_QUERIES:
        builder.step("attention", label, operands, [y], ints=ints, floats=floats, parallel=True)
        return
    nbytes = 4 * q.dims[0] * heads * count * -(-capacity // CHUNK) * (v.dims[3] + 2)
    workspace = builder.new(f"{y.name}.partial", UINT8, (nbytes,), Storage.WORKSPACE)
    builder.step("attention_partial", label, operands, [workspace], ints=ints, floats=floats, parallel=True)
    builder.step("attention_combine", label, [workspace, lengths], [y], ints=(capacity,), parallel=False)


def _cached(builder: Builder, name: str) -> Value:
    """K or V: the cache itself where the graph casts it to FLOAT, as the kernel reads 16-bit types."""
    lazy = builder.lazy(name)
    if isinstance(lazy, CastOf) and lazy.elem_type == FLOAT and lazy.source.elem_type in (FLOAT16, BFLOAT16):
        return lazy.source
    return builder.value(name)


def heads_of(builder: Builder, value: Value, heads: int | None) -> Value:
    """[batch, n, heads * size] seen as [batch, heads, n, size]; a value of rank 4 as it is. Unit stride on the last axis."""
    if len(value.dims) == 3 and heads and value.dims[2] % heads == 0:
        batch, count, hidden = value.dims
        if value.strides[2] != 1:
            value = builder.dense(value)
        size = hidden // heads
        strides = (value.strides[0], size, value.strides[1], 1)
        return value.view((batch, heads, count, size), strides, value.name)
    return value if not value.strides or value.strides[-1] == 1 else builder.dense(value)


def _fits(q: Value, k: Value, v: Value, mask: Value | None, lengths: Value | None) -> bool:
    if not len(q.dims) == len(k.dims) == len(v.dims) == 4:
        return False
    if q.elem_type != FLOAT or k.elem_type not in (FLOAT, FLOAT16, BFLOAT16) or v.elem_type not in (FLOAT, FLOAT16, BFLOAT16):
        return False
    if mask is not None and (mask.elem_type not in (FLOAT, BOOL) or len(mask.dims) > 4):
        return False
    grouped = k.dims[1] > 0 and q.dims[1] % k.dims[1] == 0
    return grouped and max(q.dims[3], v.dims[3]) <= 512 and (lengths is None or lengths.elem_type == INT64)


def _mask(mask: Value, q: Value) -> Value:
    """The mask as a view [batch, heads, n, total]."""
    total = mask.dims[-1] if mask.dims else 1
    return mask.broadcast((*q.dims[:3], total))


def result_for(builder: Builder, node: Any) -> Value:
    """The output; where the graph goes on to put tokens before heads, it is laid out like that from the start."""
    result = builder.output(node)
    reader = builder.scope.sole_reader(node.output[0])
    if reader is None or len(result.dims) != 4:
        return result
    following = builder.scope.nodes[reader.node]
    if following.op_type != "Transpose" or attributes(following).get("perm") != [0, 2, 1, 3]:
        return result
    batch, heads, count, size = result.dims
    inner = row_major((batch, count, heads, size))
    return Value(result.name, result.elem_type, result.dims, (inner[0], inner[2], inner[1], 1), result.owner, version=1)
