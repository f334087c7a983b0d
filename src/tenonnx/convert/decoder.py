"""The graph of a decoder: standard operators at opset 24 (25 with a window), StructDecode for weights, CacheUpdate for K and V.

    inputs   input_ids, position_ids INT64[batch, n]; position INT64[]; logit_rows INT64[k];
             key_cache.i, value_cache.i FLOAT16[batch, kv_heads, max_length, head]  (READ_WRITE)
    outputs  logits FLOAT[batch, k, vocab]; key_cache.i.updated, value_cache.i.updated  (alias_of the inputs)

With pages of t tokens, for one sequence (batch is 1), in place of the caches and of ``position``:

    inputs   key_pages.i, value_pages.i: sequences of quantized FLOAT16[kv_heads, t, head]  (READ_WRITE);
             page_id INT64[p], position INT64[]: the pages that the n new rows flow through, and the place in the first;
             page_table INT64[1, pages], lengths INT64[1]: all pages of the sequence, and its length with the new rows
    outputs  key_pages.i.updated, value_pages.i.updated  (alias_of the inputs)

``position_ids`` turn the rotation, ``position`` is where the n new rows of K and V are written and what makes
position + n the valid length that attention reads; ``logit_rows`` are the rows of n whose logits are computed.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tenonnx.convert.architectures import Decoder
from tenonnx.convert.builder import GraphBuilder
from tenonnx.convert.rope import Rotation
from tenonnx.schema.domains import DOMAIN
from tenonnx.schema.messages import TensorProto

FLOAT, FLOAT16, INT64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64


class _Shared(NamedTuple):
    """Values that every layer reads."""

    full: tuple[str, str]  # cosines and sines for layers that see all tokens
    windowed: tuple[str, str]
    valid_length: str  # INT64[batch]
    page_tokens: int  # of a page; 0: caches are dense


def build(builder: GraphBuilder, decoder: Decoder, rotations: tuple[Rotation, Rotation], page_tokens: int = 0) -> None:
    """Append inputs, nodes and outputs of the whole model; with ``page_tokens``, over pages of so many tokens.

    ``rotations``: of layers that see all tokens, and of those that see a window.
    """
    batch = 1 if page_tokens else "batch"
    for name in ("input_ids", "position_ids"):
        builder.input(name, INT64, [batch, "n"])
    builder.input("position", INT64, [])
    builder.input("logit_rows", INT64, ["k"])
    builder.output("logits", FLOAT, [batch, "k", decoder.vocab])
    full = _rotation(builder, rotations[0], "rope")
    windowed = full if rotations[1] is rotations[0] else _rotation(builder, rotations[1], "rope.windowed")
    shared = _Shared(full, windowed, _lengths(builder) if page_tokens else _valid_length(builder), page_tokens)
    hidden = builder.node("Gather", [builder.weight("token_embd.weight"), "input_ids"], "embedding", axis=0)
    if decoder.architecture.scaled_embedding:
        factor = builder.constant("embedding.factor", np.array(math.sqrt(decoder.hidden), np.float32))
        hidden = builder.node("Mul", [hidden, factor], "embedding.scaled")
    for layer in range(decoder.layers):
        hidden = _layer(builder, decoder, shared, hidden, layer, last=layer == decoder.layers - 1)
    hidden = _norm(builder, decoder, hidden, "output_norm", "output_norm")
    head = "output" if "output.weight" in builder.gguf.tensors else "token_embd"
    if decoder.logit_cap:
        _capped(builder, builder.linear(hidden, head, "logits.uncapped"), decoder.logit_cap, "logits")
    else:
        builder.linear(hidden, head, "logits")


def _rotation(builder: GraphBuilder, rotation: Rotation, name: str) -> tuple[str, str]:
    """cos and sin FLOAT[batch, n, rotary / 2]."""
    inv_freq = builder.constant(f"{name}.inv_freq", rotation.inv_freq)
    column = builder.node("Unsqueeze", ["position_ids", builder.shape(-1)], f"{name}.column")
    positions = builder.node("Cast", [column], f"{name}.positions", to=FLOAT)
    angles = builder.node("Mul", [positions, inv_freq], f"{name}.angles")
    cos, sin = builder.node("Cos", [angles], f"{name}.cos"), builder.node("Sin", [angles], f"{name}.sin")
    if rotation.gain == 1:
        return cos, sin
    gain = builder.constant(f"{name}.gain", np.array(rotation.gain, np.float32))
    return builder.node("Mul", [cos, gain], f"{cos}.scaled"), builder.node("Mul", [sin, gain], f"{sin}.scaled")


def _capped(builder: GraphBuilder, x: str, cap: float, output: str) -> str:
    """cap · tanh(x / cap)"""
    limit = builder.constant(f"{output}.cap", np.array(cap, np.float32))
    bounded = builder.node("Tanh", [builder.node("Div", [x, limit], f"{output}.ratio")], f"{output}.bounded")
    return builder.node("Mul", [bounded, limit], output)


def _valid_length(builder: GraphBuilder) -> str:
    new = builder.node("Shape", ["input_ids"], "new_length", start=1, end=2)
    batch = builder.node("Shape", ["input_ids"], "batch_size", start=0, end=1)
    length = builder.node("Add", ["position", new], "end_position")
    return builder.node("Expand", [length, batch], "valid_length")


def _lengths(builder: GraphBuilder) -> str:
    builder.input("page_id", INT64, ["p"])
    builder.input("page_table", INT64, [1, "pages"])
    return builder.input("lengths", INT64, [1])


def _norm(builder: GraphBuilder, decoder: Decoder, x: str, name: str, output: str) -> str:
    weight = builder.weight(f"{name}.weight")
    return builder.node("RMSNormalization", [x, weight], output, axis=-1, epsilon=decoder.epsilon)


def _layer(builder: GraphBuilder, decoder: Decoder, shared: _Shared, hidden: str, layer: int, *, last: bool) -> str:
    source, to = f"blk.{layer}", f"layers.{layer}"
    normed = _norm(builder, decoder, hidden, f"{source}.attn_norm", f"{to}.attn.norm")
    attended = _attention(builder, decoder, shared, normed, layer)
    if last:  # only the rows whose logits are asked for go on
        attended = builder.node("Gather", [attended, "logit_rows"], f"{to}.attn.rows", axis=1)
        hidden = builder.node("Gather", [hidden, "logit_rows"], f"{to}.rows", axis=1)
    output = builder.linear(attended, f"{source}.attn_output", f"{to}.attn.output")
    if decoder.architecture.post_norms:
        output = _norm(builder, decoder, output, f"{source}.post_attention_norm", f"{to}.attn.post_norm")
    hidden = builder.node("Add", [hidden, output], f"{to}.attn.residual")
    normed = _norm(builder, decoder, hidden, f"{source}.ffn_norm", f"{to}.ffn.norm")
    gate = builder.linear(normed, f"{source}.ffn_gate", f"{to}.ffn.gate")
    up = builder.linear(normed, f"{source}.ffn_up", f"{to}.ffn.up")
    gate = _activated(builder, decoder, gate, f"{to}.ffn")
    gated = builder.node("Mul", [gate, up], f"{to}.ffn.gated")
    down = builder.linear(gated, f"{source}.ffn_down", f"{to}.ffn.down")
    if decoder.architecture.post_norms:
        down = _norm(builder, decoder, down, f"{source}.post_ffw_norm", f"{to}.ffn.post_norm")
    return builder.node("Add", [hidden, down], f"{to}.residual")


def _activated(builder: GraphBuilder, decoder: Decoder, gate: str, to: str) -> str:
    if decoder.architecture.gate == "Gelu":
        return builder.node("Gelu", [gate], f"{to}.gelu", approximate="tanh")
    return builder.node("Swish", [gate], f"{to}.swish")


def _attention(builder: GraphBuilder, decoder: Decoder, shared: _Shared, x: str, layer: int) -> str:
    """Attention of the new rows over the caches: FLOAT[batch, n, heads * value_size]."""
    source, to = f"blk.{layer}", f"layers.{layer}.attn"
    q = builder.linear(x, f"{source}.attn_q", f"{to}.q")
    k = builder.linear(x, f"{source}.attn_k", f"{to}.k")
    v = builder.linear(x, f"{source}.attn_v", f"{to}.v")
    if decoder.architecture.head_norms:
        q = _head_norm(builder, decoder, q, decoder.heads, f"{source}.attn_q_norm")
        k = _head_norm(builder, decoder, k, decoder.kv_heads, f"{source}.attn_k_norm")
    window = decoder.window_of(layer)
    rotation = shared.windowed if window else shared.full
    q = _by_head(builder, _rotated(builder, decoder, rotation, q, decoder.heads), decoder.heads, decoder.key_size)
    k = _by_head(builder, _rotated(builder, decoder, rotation, k, decoder.kv_heads), decoder.kv_heads, decoder.key_size)
    v = _by_head(builder, v, decoder.kv_heads, decoder.value_size)
    given: dict[str, Any] = {"is_causal": 1, "scale": decoder.scale}
    if decoder.score_cap:
        given["softcap"] = decoder.score_cap
    if window:  # both operators count the tokens to the left of the new one
        given["left_window" if shared.page_tokens else "left_window_size"] = window - 1
    if shared.page_tokens:
        keys = _paged(builder, shared, k, f"key_pages.{layer}", [decoder.kv_heads, shared.page_tokens, decoder.key_size])
        values = _paged(builder, shared, v, f"value_pages.{layer}", [decoder.kv_heads, shared.page_tokens, decoder.value_size])
        inputs = [q, keys, values, "page_table", shared.valid_length]
        y = builder.node("PagedAttention", inputs, f"{to}.heads", DOMAIN, **given)
    else:
        keys = _cached(builder, decoder, k, f"key_cache.{layer}", decoder.key_size)
        values = _cached(builder, decoder, v, f"value_cache.{layer}", decoder.value_size)
        inputs = [q, keys, values, "", "", "", shared.valid_length]
        y = builder.node("Attention", inputs, f"{to}.heads", **given)
    rows = builder.node("Transpose", [y], f"{to}.by_row", perm=[0, 2, 1, 3])
    return builder.node("Reshape", [rows, builder.shape(0, 0, decoder.heads * decoder.value_size)], f"{to}.attended")


def _head_norm(builder: GraphBuilder, decoder: Decoder, x: str, heads: int, name: str) -> str:
    split = builder.node("Reshape", [x, builder.shape(0, 0, heads, decoder.key_size)], f"{x}.heads")
    normed = _norm(builder, decoder, split, name, f"{x}.head_norm")
    return builder.node("Reshape", [normed, builder.shape(0, 0, heads * decoder.key_size)], f"{x}.normed")


def _rotated(builder: GraphBuilder, decoder: Decoder, rotation: tuple[str, str], x: str, heads: int) -> str:
    attributes: dict[str, Any] = {"num_heads": heads, "interleaved": int(decoder.architecture.interleaved_rope)}
    if decoder.rotary != decoder.key_size:
        attributes["rotary_embedding_dim"] = decoder.rotary
    return builder.node("RotaryEmbedding", [x, *rotation], f"{x}.rotated", **attributes)


def _by_head(builder: GraphBuilder, x: str, heads: int, head_size: int) -> str:
    split = builder.node("Reshape", [x, builder.shape(0, 0, heads, head_size)], f"{x}.split")
    return builder.node("Transpose", [split], f"{x}.by_head", perm=[0, 2, 1, 3])


def _cached(builder: GraphBuilder, decoder: Decoder, rows: str, cache: str, head_size: int) -> str:
    """Write ``rows`` into ``cache`` in place; the whole updated cache as FLOAT."""
    dims: list[int | str] = ["batch", decoder.kv_heads, "max_length", head_size]
    builder.input(cache, FLOAT16, dims, writable=True)
    builder.output(f"{cache}.updated", FLOAT16, dims, alias_of=cache)
    narrow = builder.node("Cast", [rows], f"{rows}.half", to=FLOAT16)
    updated = builder.node("CacheUpdate", [cache, narrow, "position"], f"{cache}.updated", DOMAIN, axis=-2)
    builder.alias(0, 0)
    return builder.node("Cast", [updated], f"{updated}.float", to=FLOAT)


def _paged(builder: GraphBuilder, shared: _Shared, rows: str, table: str, dims: list[int | str]) -> str:
    """Write ``rows`` through their pages; the updated table."""
    builder.input(table, FLOAT16, dims, writable=True, pages=True)
    builder.output(f"{table}.updated", FLOAT16, dims, alias_of=table, pages=True)
    sequence = builder.node("Squeeze", [rows, builder.shape(0)], f"{rows}.sequence")
    narrow = builder.node("Cast", [sequence], f"{rows}.half", to=FLOAT16)
    updated = builder.node("PagedCacheUpdate", [table, "page_id", narrow, "position"], f"{table}.updated", DOMAIN)
    builder.alias(0, 0)
    return updated
