"""Lowering of PagedCacheUpdate and PagedAttention. A table of pages is INT64[capacity, 4] to the plan; payloads are no values of
it: kernels find them by address, and update them in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tenonnx.errors import UnsupportedError
from tenonnx.layouts.pages import MAX_PAGE_TOKENS, MAX_ROW
from tenonnx.plan.attention import FEW_QUERIES, result_for
from tenonnx.plan.builder import BFLOAT16, FLOAT, FLOAT16, INT64, PARALLEL_BYTES, UINT8, Builder, CastOf
from tenonnx.plan.draft import Value
from tenonnx.plan.types import PageWrite, Storage
from tenonnx.schema.graph import attributes
from tenonnx.shapes.paged import is_stacked
from tenonnx.shapes.symbols import pages_of

_CHUNK = 128  # keys of one task, as in native/kernels/attention_paged.cpp


def _page_dims(builder: Builder, name: str) -> tuple[int, ...]:
    """The dims of every page of a table."""
    pages = pages_of(builder.context[name])
    dims = pages.dims if pages is not None else None
    if dims is None or not all(isinstance(dim, int) for dim in dims):
        raise UnsupportedError(f"value {name!r}: its pages have dims {dims}; give every dimension a number")
    found = tuple(dim for dim in dims if isinstance(dim, int))
    if not 1 <= found[-2] <= MAX_PAGE_TOKENS or not 1 <= found[-1] <= MAX_ROW:
        raise UnsupportedError(
            f"value {name!r}: pages of {found[-2]} tokens and rows of {found[-1]}; "
            f"expected 1 to {MAX_PAGE_TOKENS} tokens and rows of 1 to {MAX_ROW} elements"
        )
    return found


def paged_cache_update(builder: Builder, node: Any) -> bool:
    """Rows written straight into their pages, each in its page's own format."""
    label = builder.label(node)
    table = builder.value(node.input[0])
    if not table.owner.mutable or builder.aliases.source(node.output[0]) != node.input[0]:
        raise UnsupportedError(f"{label}: its pages {node.input[0]!r} are not the storage of a READ_WRITE graph input")
    dims = _page_dims(builder, node.input[0])
    values = builder.lazy(node.input[2])
    if isinstance(values, CastOf) and values.elem_type in (FLOAT16, BFLOAT16) and values.source.elem_type == FLOAT:
        values = values.source  # the kernel converts as it encodes
    else:
        values = builder.value(node.input[2])
    if values.elem_type not in (FLOAT, FLOAT16, BFLOAT16):
        raise UnsupportedError(f"{label}: values of element type {values.elem_type}; expected FLOAT, FLOAT16 or BFLOAT16")
    if values.strides[-1] != 1:
        values = builder.dense(values)
    page_id, position = builder.dense(builder.value(node.input[1])), builder.dense(builder.value(node.input[3]))
    rows, tokens, size = values.dims[-2], dims[-2], dims[-1]
    ints = (rows, tokens, math.prod(dims[:-1]), size)
    check = builder.check("check_paged_update", table, ints, label, page_id, position)
    updated = Value(node.output[0], INT64, table.dims, table.strides, table.owner, 0, table.version + 1, table)
    parallel = values.size * values.itemsize >= PARALLEL_BYTES
    builder.step(
        "paged_update",
        label,
        [table, page_id, values, position],
        [updated],
        ints=(tokens,),
        after=[check],
        parallel=parallel,
        reuse=(0,),
    )
    if builder.guards:
        raise UnsupportedError(
            f"{label}: stands in a branch, but missing pages are made before the run, whichever branch it takes; update the "
            "pages outside the If"
        )
    root = builder.aliases.root(node.output[0])
    builder.page_writes.append(PageWrite(label, root, node.input[1], node.input[3], rows, tokens))
    builder.define(node, updated)
    return True


def paged_attention(builder: Builder, node: Any) -> bool:
    """Attention that reads pages of mixed formats where they lie: tiles of queries for a prompt, chunks of pages for a step."""
    given, label = attributes(node), builder.label(node)
    q = builder.value(node.input[0])
    if q.strides[-1] != 1:
        q = builder.dense(q)
    k = builder.value(node.input[1])
    v = None if is_stacked(node) else builder.value(node.input[2])
    page_table, lengths = builder.value(node.input[3]), builder.value(node.input[4])
    dims = _page_dims(builder, node.input[1])
    value_dims = dims if v is None else _page_dims(builder, node.input[2])
    checks = []
    for name, table, shape in ((node.input[1], k, dims), (node.input[2], v, value_dims)):
        if table is not None:
            tokens, rows = shape[-2], math.prod(shape[:-1])
            wanted = (tokens, rows, shape[-1])
            checks.append(builder.check("check_page_table", table, wanted, f"{label}: {name}", page_table, lengths))
    tokens, kv_heads, value = dims[-2], dims[-3], value_dims[-1]
    ints = (int(given.get("is_causal", 0)), int(given.get("left_window", -1)), tokens, kv_heads, value)
    floats = (float(given.get("scale", 1.0 / math.sqrt(q.dims[3]) if q.dims[3] else 1.0)), float(given.get("softcap", 0.0)))
    operands: list[Value | None] = [q, k, page_table, lengths, v]
    result = result_for(builder, node)
    batch, heads, count = q.dims[:3]
    if count * (heads // kv_heads) <= FEW_QUERIES:
        chunk = tokens if tokens >= _CHUNK else _CHUNK // tokens * tokens
        capacity = page_table.dims[1] * tokens
        nbytes = 4 * batch * heads * count * -(-capacity // chunk) * (value + 2)
        workspace = builder.new(f"{node.output[0]}.partial", UINT8, (nbytes,), Storage.WORKSPACE)
        builder.step(
            "paged_attention_partial", label, operands, [workspace], ints=ints, floats=floats, parallel=True, after=checks
        )
        builder.step("paged_attention_combine", label, [workspace, lengths], [result], ints=(capacity, chunk), parallel=False)
    else:
        builder.step("paged_attention", label, operands, [result], ints=ints, floats=floats, parallel=True, after=checks)
    builder.define(node, result)
    return True


DOMAIN_RULES: dict[str, Callable[[Builder, Any], bool]] = {
    "PagedCacheUpdate": paged_cache_update,
    "PagedAttention": paged_attention,
}
