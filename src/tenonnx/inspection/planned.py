"""A model planned for the sizes that a user names: which dimensions must be known, the plan, and what all of it takes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tenonnx import dtypes
from tenonnx.cache import PageSpec
from tenonnx.errors import OptionError, ShapeError
from tenonnx.plan import ExecutionPlan, Planner
from tenonnx.plan.inplace import OPERATORS
from tenonnx.shapes import SymTensor
from tenonnx.shapes.operators import update_axes, updates
from tenonnx.shapes.paged import paged_nodes
from tenonnx.shapes.symbols import pages_of
from tenonnx.structs.formats_pages import page_format
from tenonnx.structs.quantizations import Quantizations
from tenonnx.text.loading import Names

PROMPT = 512  # tokens of a prompt that one run takes
_LENGTH_AXIS = 2  # of the caches of operators that onnxruntime runs in place


@dataclass(frozen=True)
class Planned:
    """A plan, the dimensions that it is for, and the positions that its caches hold, None where it has none."""

    name: str
    plan: ExecutionPlan
    dims: dict[str, int]
    context: int | None
    page_bytes: int  # of all pages that hold the context, in the formats that new pages get
    longest: int | None = None  # positions that the model was trained for

    @property
    def cache_bytes(self) -> int:
        return self.plan.cache_bytes + self.page_bytes

    @property
    def total_bytes(self) -> int:
        """Everything that a session over this plan holds: weights, caches, and what a run allocates."""
        return self.plan.weight_bytes + self.cache_bytes + self.plan.peak_bytes + self.plan.output_bytes


def plan_for(
    name: str,
    planner: Planner,
    dims: Mapping[str, int],
    context: int | None = None,
    *,
    longest: int | None = None,
    names: Names = Names(),  # noqa: B008 -- never changed
    fusions: str | Collection[str] = "all",
) -> Planned:
    """Plan a model for the given dimensions of its inputs, and caches of ``context`` positions, or else of ``longest``.

    An unnamed dimension is called ``input[axis]``. The inputs of a decoder, by their ``names``, are those of one new token
    and one row of logits, unless ``dims`` says more. Raises ``OptionError`` for dimensions without a number, naming them, and
    for names that no input has; ``ShapeError`` for a context over the capacity that the model declares; and what
    ``Planner.plan`` raises.
    """
    inputs = {name: symbol for name, symbol in planner.inference.inputs.items() if isinstance(symbol, SymTensor)}
    wanted = list(dict.fromkeys(dim for name, symbol in inputs.items() for dim in _named(name, symbol) if isinstance(dim, str)))
    unknown = [dim for dim in dims if dim not in wanted]
    if unknown:
        raise OptionError(f"--dim {unknown[0]}: no input has this dimension; theirs are {', '.join(wanted) or 'all numbers'}")
    known, positions = dict(dims), context or longest
    pages = _pages(planner, positions)
    capacities = dict.fromkeys(_capacities(planner, inputs))
    for dim in capacities:
        if isinstance(dim, int) and context is not None and dim < context:
            raise ShapeError(
                f"a context of {context} positions: a cache is declared with a capacity of {dim}; ask for at most that"
            )
        if isinstance(dim, str) and positions is not None:
            known.setdefault(dim, positions)
    if pages.dim:
        known.setdefault(pages.dim, pages.count)
    _assume_decoder(known, inputs, names, positions)
    for dim in _page_ids(planner, inputs):
        new = known.get(token_dim(inputs, names), 1)
        known.setdefault(dim, -(-new // pages.tokens) if pages.tokens else 1)
    _require([dim for dim in wanted if dim not in known], {str(dim) for dim in capacities} | {pages.dim})
    shapes = {
        name: [known[dim] if isinstance(dim, str) else dim for dim in _named(name, symbol)]
        for name, symbol in inputs.items()
        if symbol.dims is not None
    }
    plan = planner.plan(known, shapes=shapes, tables=pages.tables, fusions=fusions)
    held = min((known[dim] if isinstance(dim, str) else dim for dim in capacities), default=positions if pages.tables else None)
    return Planned(name, plan, {dim: known[dim] for dim in wanted}, held, pages.nbytes, longest)


def _assume_decoder(known: dict[str, int], inputs: Mapping[str, SymTensor], names: Names, positions: int | None) -> None:
    """Give the dimensions of a decoder's inputs a number where they have none: 1, or of a mask one for each position."""
    for name in (names.input_ids, names.position_ids, names.logit_rows):
        for dim in _named(name, inputs[name]) if name in inputs else ():
            known.setdefault(str(dim), 1)
    if names.attention_mask in inputs and positions is not None:
        for dim in list(_named(names.attention_mask, inputs[names.attention_mask]))[-1:]:
            known.setdefault(str(dim), positions)


def token_dim(inputs: Mapping[str, Any], names: Names) -> str:
    """The dimension of a decoder's inputs that counts new tokens; "" where it has a fixed number, or none."""
    dims = list(_named(names.input_ids, inputs[names.input_ids])) if names.input_ids in inputs else []
    return dims[-1] if dims and isinstance(dims[-1], str) else ""


def _page_ids(planner: Planner, inputs: Mapping[str, SymTensor]) -> Iterator[str]:
    """The dimensions that count the pages which new rows go to."""
    scope = planner.index.main
    for name in {scope.nodes[position].input[1]: None for position in paged_nodes(scope, "PagedCacheUpdate")}:
        yield from (dim for dim in _named(name, inputs[name]) if isinstance(dim, str)) if name in inputs else ()


def _require(missing: list[str], capacities: set[str]) -> None:
    if missing:
        options = [f"--dim {dim}=N" if dim not in capacities else "--context N" for dim in missing]
        raise OptionError(f"dimensions without a number: {', '.join(missing)}; give {' '.join(dict.fromkeys(options))}")


def _named(name: str, symbol: SymTensor) -> Iterator[int | str]:
    """The dimensions of an input, those without a name called after their place."""
    for axis, dim in enumerate(symbol.dims or ()):
        yield f"{name}[{axis}]" if dim is None else dim


def _capacities(planner: Planner, inputs: Mapping[str, SymTensor]) -> Iterator[int | str]:
    """The dimension that each cache grows along."""
    scope, aliases = planner.index.main, planner.aliases
    for position in updates(scope):
        root = aliases.root(scope.nodes[position].input[0])
        if root in inputs and inputs[root].dims is not None:
            dims = list(_named(root, inputs[root]))
            yield dims[update_axes(scope.nodes[position], len(dims), scope.describe(position))[0]]
    for alias in aliases.aliases:
        node, root = scope.nodes[alias.node], aliases.root(alias.output)
        if (node.domain, node.op_type) in OPERATORS and root in inputs and len(inputs[root].dims or ()) > _LENGTH_AXIS:
            yield list(_named(root, inputs[root]))[_LENGTH_AXIS]


@dataclass(frozen=True)
class _Pages:
    """Tables of pages for a context: how many pages each takes, their bytes, and the symbol of their number."""

    tables: dict[str, int]
    count: int = 0
    nbytes: int = 0
    dim: str = ""
    tokens: int = 0  # of a page


def _pages(planner: Planner, context: int | None) -> _Pages:
    quantizations = Quantizations(planner.model)
    count, nbytes, tokens, tables = 0, 0, 0, {}
    for name, symbol in planner.inference.inputs.items():
        pages = pages_of(symbol)
        dims = tuple(dim for dim in (pages.dims or ()) if isinstance(dim, int)) if pages is not None else ()
        if pages is None or len(dims) < 2 or context is None:
            continue
        spec = PageSpec(pages.elem_type, dims)
        fresh = quantizations[pages.allowed[0]] if pages.allowed else page_format("F16", spec.size)
        tokens = spec.tokens
        count = tables[name] = -(-context // tokens)
        nbytes += count * spec.nbytes(fresh)
    scope = planner.index.main
    readers = [scope.nodes[position].input[3] for position in paged_nodes(scope, "PagedAttention")]
    symbol = planner.inference.inputs.get(readers[0]) if readers and tables else None
    dim = list(_named(readers[0], symbol))[-1] if isinstance(symbol, SymTensor) and symbol.dims else ""
    return _Pages(tables, count, nbytes, dim if isinstance(dim, str) else "", tokens)


def as_json(planned: Planned, available: int) -> dict[str, Any]:
    """The plan as plain data: sizes in bytes, ``available`` those that are free, steps and values as the plan's tables."""
    plan = planned.plan
    return {
        "peak_bytes": plan.peak_bytes,
        "arena_bytes": plan.arena_bytes,
        "workspace_bytes": plan.workspace_bytes,
        "cache_bytes": planned.cache_bytes,
        "extra_cache_bytes": plan.extra_cache_bytes,
        "steps": [
            {
                "kernel": step.kernel,
                "label": step.label,
                "inputs": list(step.inputs),
                "outputs": list(step.outputs),
                "guards": [[condition, expected] for condition, expected in step.guards],
                "parallel": step.parallel,
            }
            for step in plan.steps
        ],
        "values": [
            {
                "name": value.name,
                "elem_type": dtypes.BY_NUMBER[value.elem_type].name,
                "dims": list(value.dims),
                "storage": value.storage.value,
                "root": value.root,
                "offset": value.offset,
                "nbytes": value.nbytes,
            }
            for value in plan.values
        ],
        "weight_bytes": plan.weight_bytes,
        "output_bytes": plan.output_bytes,
        "total_bytes": planned.total_bytes,
        "available_bytes": available,
        "fits": planned.total_bytes <= available,
    }


def lengths(
    planner: Planner, planned: Planned, dims: Mapping[str, int], longest: int, names: Names
) -> Iterator[tuple[Planned, Planned]]:
    """Plans of one new token and of a prompt's run, for an eighth of the longest context and for all of it.

    Nothing for a model without caches, and for one whose inputs are those of no decoder.
    """
    dim = token_dim(planner.inference.inputs, names)
    if planned.context is None or not dim:
        return
    for context in dict.fromkeys((max(longest // 8, 1), longest)):
        one, many = (
            plan_for(planned.name, planner, {**dims, dim: count}, context, names=names) for count in (1, min(PROMPT, context))
        )
        yield one, many
