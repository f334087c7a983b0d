"""Small models over pages, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from tenonnx.schema.messages import AttributeProto, ModelProto, ValueAliasProto, ValueInfoProto

FLOAT, FLOAT16, INT64 = 1, 10, 7


def model() -> Any:
    made = ModelProto(ir_version=12)
    for domain, version in (("", 24), ("tenonnx", 1)):
        made.opset_import.add(domain=domain, version=version)
    made.graph.name = "pages"
    return made


def tensor(values, name, elem_type, dims):
    value = values.add(name=name)
    value.type.tensor_type.elem_type = elem_type
    value.type.tensor_type.shape.SetInParent()
    for dim in dims:
        value.type.tensor_type.shape.dim.add(**({"dim_value": dim} if isinstance(dim, int) else {"dim_param": dim}))
    return value


def pages(values, name, dims, elem_type=FLOAT16, allowed=()):
    value = values.add(name=name)
    kind = value.type.sequence_type.elem_type.quantized_tensor_type
    kind.elem_type = elem_type
    kind.allowed_quantized_type.extend(allowed)
    for dim in dims:
        kind.shape.dim.add(dim_value=dim)
    return value


def table_input(graph, name, dims, **options):
    value = pages(graph.input, name, dims, **options)
    value.access = ValueInfoProto.READ_WRITE


def update(graph, cache, values, page_id="page_id", position="position", output=None):
    output = output or f"{cache}.updated"
    node = graph.node.add(
        op_type="PagedCacheUpdate",
        domain="tenonnx",
        name=f"update {cache}",
        input=[cache, page_id, values, position],
        output=[output],
    )
    node.output_alias.add(output_index=0, input_index=0, kind=ValueAliasProto.MUST_ALIAS)
    return output


def updating(dims, rows="n", elem_type=FLOAT16, allowed=(), made=None):
    """``updated_cache = PagedCacheUpdate(cache, page_id, values, position)``, as the specification writes it."""
    made = made or model()
    graph = made.graph
    table_input(graph, "cache", dims, elem_type=elem_type, allowed=allowed)
    tensor(graph.input, "page_id", INT64, ["p"])
    tensor(graph.input, "values", elem_type, [*dims[:-2], rows, dims[-1]])
    tensor(graph.input, "position", INT64, [])
    update(graph, "cache", "values", output="updated_cache")
    pages(graph.output, "updated_cache", dims, elem_type=elem_type, allowed=allowed).alias_of = "cache"
    return made


def attending(heads, kv_heads, tokens, head, value=None, stacked=False, **attributes):
    """K and V of n new tokens through their pages, then attention of their queries over all of the sequence."""
    made = model()
    graph, value = made.graph, value or head
    tensor(graph.input, "q", FLOAT, [1, heads, "n", head])
    for name, dims in (("page_id", ["p"]), ("position", []), ("page_table", [1, "pages"]), ("lengths", [1])):
        tensor(graph.input, name, INT64, dims)
    if stacked:
        _stored(graph, "kv", [2, kv_heads, tokens, head])
        tables = ["kv.updated", ""]
        attributes["kv_stacked"] = 1
    else:
        _stored(graph, "k", [kv_heads, tokens, head])
        _stored(graph, "v", [kv_heads, tokens, value])
        tables = ["k.updated", "v.updated"]
    node = graph.node.add(
        op_type="PagedAttention", domain="tenonnx", name="attend", input=["q", *tables, "page_table", "lengths"], output=["y"]
    )
    for name, given in {"is_causal": 1, **attributes}.items():
        if isinstance(given, int):
            node.attribute.add(name=name, type=AttributeProto.INT, i=given)
        else:
            node.attribute.add(name=name, type=AttributeProto.FLOAT, f=given)
    tensor(graph.output, "y", FLOAT, [1, heads, "n", value])
    return made


def _stored(graph, name, dims):
    table_input(graph, name, dims)
    tensor(graph.input, f"{name}_rows", FLOAT16, [*dims[:-2], "n", dims[-1]])
    update(graph, name, f"{name}_rows")
    pages(graph.output, f"{name}.updated", dims).alias_of = name


def rows(rng, *dims):
    return rng.normal(size=dims).astype(np.float16)
