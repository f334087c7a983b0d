"""What PagedCacheUpdate and PagedAttention ask of their inputs: one logical type and shape for all pages, nothing of storage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tenonnx.errors import CapacityError, ShapeError
from tenonnx.schema.domains import DOMAIN
from tenonnx.schema.graph import Scope, attributes
from tenonnx.shapes.operators import INT64, Lookup, dims_agree, known_integers
from tenonnx.shapes.symbols import SymQuantizedTensor, SymTensor, pages_of

FLOAT = 1


def paged_nodes(scope: Scope, op_type: str) -> Iterator[int]:
    """Positions of the nodes of one of the operators over pages."""
    for position, node in enumerate(scope.nodes):
        if node.domain == DOMAIN and node.op_type == op_type:
            yield position


def is_stacked(node: Any) -> bool:
    """Whether keys and values of a PagedAttention are the two halves of one table's pages."""
    return bool(attributes(node).get("kv_stacked", 0)) or not node.input[2]


def check_paged(scope: Scope, lookup: Lookup) -> None:
    """The rules of both operators over all their nodes; ``ShapeError`` or ``CapacityError`` naming the first that fails."""
    for position in paged_nodes(scope, "PagedCacheUpdate"):
        _check_update(scope, scope.nodes[position], lookup, scope.describe(position))
    for position in paged_nodes(scope, "PagedAttention"):
        _check_attention(scope.nodes[position], lookup, scope.describe(position))


def _tensor(name: str, lookup: Lookup, where: str) -> SymTensor:
    symbol = lookup(name)
    if not isinstance(symbol, SymTensor):
        raise ShapeError(f"{where}: {name!r} must be a tensor, found {symbol}")
    return symbol


def _pages(name: str, lookup: Lookup, where: str) -> SymQuantizedTensor:
    pages = pages_of(lookup(name))
    if pages is None:
        raise ShapeError(f"{where}: {name!r} must be a sequence or map of quantized tensors, found {lookup(name)}")
    if pages.dims is None or len(pages.dims) < 2:
        raise ShapeError(f"{where}: pages of {name!r} have no dims [..., tokens, size]; declare their shape")
    return pages


def _check_integers(symbol: SymTensor, name: str, ranks: tuple[int, ...], expected: str, where: str) -> None:
    if symbol.elem_type != INT64 or (symbol.dims is not None and len(symbol.dims) not in ranks):
        raise ShapeError(f"{where}: {name!r} is {symbol}; expected {expected}")


def _check_update(scope: Scope, node: Any, lookup: Lookup, where: str) -> None:
    pages = _pages(node.input[0], lookup, where)
    page_id, values, position = (_tensor(name, lookup, where) for name in node.input[1:4])
    _check_integers(page_id, node.input[1], (0, 1), "INT64[] or INT64[pages]", where)
    _check_integers(position, node.input[3], (0,), "INT64[]", where)
    if values.elem_type != pages.elem_type:
        raise ShapeError(
            f"{where}: values {node.input[2]!r} are {values}, the pages of element type {pages.elem_type}; cast them"
        )
    if values.dims is None or pages.dims is None:
        return
    if len(values.dims) != len(pages.dims):
        raise ShapeError(f"{where}: values {values} and pages of dims {list(pages.dims)} differ in rank; reshape the values")
    for axis, (have, want) in enumerate(zip(values.dims, pages.dims, strict=True)):
        if axis != len(pages.dims) - 2 and not dims_agree(have, want):
            raise ShapeError(f"{where}: values {values} and pages of dims {list(pages.dims)} differ in dimension {axis}")
    _check_room(scope, node, page_id, values.dims[-2], pages.dims[-2], where)


def _check_room(scope: Scope, node: Any, page_id: SymTensor, rows: Any, tokens: Any, where: str) -> None:
    """What is known before the run of position + rows against the pages named."""
    starts = known_integers(scope, node.input[3])
    named = 1 if page_id.dims == () else page_id.dims[0] if page_id.dims else None
    if starts and starts[0] < 0:
        raise CapacityError(f"{where}: position {starts[0]} is negative; expected a place in the first page")
    if isinstance(rows, int) and isinstance(tokens, int) and isinstance(named, int):
        start = starts[0] if starts else 0
        if start + rows > named * tokens:
            raise CapacityError(
                f"{where}: position {start} + {rows} new rows pass the {named} pages of {tokens} tokens that page_id names"
            )


def _check_attention(node: Any, lookup: Lookup, where: str) -> None:
    q = _tensor(node.input[0], lookup, where)
    stacked = is_stacked(node)
    if stacked == bool(node.input[2]):
        raise ShapeError(f"{where}: v_pages is absent where kv_stacked is 1, and only there")
    keys = _pages(node.input[1], lookup, where)
    values = keys if stacked else _pages(node.input[2], lookup, where)
    table, lengths = (_tensor(name, lookup, where) for name in node.input[3:5])
    _check_integers(table, node.input[3], (2,), "INT64[batch, pages]", where)
    _check_integers(lengths, node.input[4], (1,), "INT64[batch]", where)
    rank = 4 if stacked else 3
    for name, pages in ((node.input[1], keys), (node.input[2], values)):
        if pages.dims is not None and (len(pages.dims) != rank or (stacked and not dims_agree(pages.dims[0], 2))):
            expected = "[2, heads, tokens, size]" if stacked else "[heads, tokens, size]"
            raise ShapeError(f"{where}: pages of {name!r} have dims {list(pages.dims)}; expected {expected}")
    if q.dims is None or keys.dims is None or values.dims is None:
        return
    if q.elem_type != FLOAT or len(q.dims) != 4 or not dims_agree(q.dims[3], keys.dims[-1]):
        raise ShapeError(f"{where}: q is {q}; expected FLOAT[batch, heads, n, {keys.dims[-1]}]")
    if not all(dims_agree(a, b) for a, b in zip(keys.dims[-3:-1], values.dims[-3:-1], strict=True)):
        raise ShapeError(f"{where}: pages of K {list(keys.dims)} and of V {list(values.dims)} differ in heads or tokens")
    heads, kv_heads = q.dims[1], keys.dims[-3]
    if isinstance(heads, int) and isinstance(kv_heads, int) and (kv_heads < 1 or heads % kv_heads):
        raise ShapeError(f"{where}: {kv_heads} heads of K do not divide the {heads} of q")
