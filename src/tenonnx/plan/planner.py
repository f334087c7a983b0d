"""The planner: a model prepared once, planned for any set of input shapes."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from typing import Any, Protocol

from tenonnx.collection import uncollected
from tenonnx.errors import BindingError, CheckError, UnsupportedError
from tenonnx.layouts import layout_for
from tenonnx.plan import contrib, decoder, elementwise, movement, nbits, paged
from tenonnx.plan.builder import Builder, Weight
from tenonnx.plan.constants import Constants, settle, unversioned
from tenonnx.plan.control import FLOW_RULES
from tenonnx.plan.draft import DraftStep, Value
from tenonnx.plan.engines import between, whole
from tenonnx.plan.freeze import freeze
from tenonnx.plan.fusion import chosen, fused
from tenonnx.plan.loops import finish
from tenonnx.plan.memory import place
from tenonnx.plan.preserve import detach
from tenonnx.plan.regions import leave, merged
from tenonnx.plan.schedule import live, ordered
from tenonnx.plan.types import ExecutionPlan, Storage
from tenonnx.plan.verify import verify
from tenonnx.plan.weights import FORMATS, products
from tenonnx.schema.domains import DOMAIN
from tenonnx.schema.flatten import FLOW, flattened
from tenonnx.schema.graph import ModelIndex
from tenonnx.schema.messages import as_model
from tenonnx.shapes import Inference, ShapesContext
from tenonnx.shapes.symbols import pages_of
from tenonnx.structs import Recognizer

_RULES = {**elementwise.RULES, **movement.RULES, **decoder.RULES}
_DOMAIN_RULES = {**decoder.DOMAIN_RULES, **paged.DOMAIN_RULES}

_OLDEST_OPSET = 13  # that the rules say the meaning of; before, Softmax had another default, and Add of opset 6 another broadcast


class Planner:
    """What planning needs of a model whatever its input shapes; safe to share between threads."""

    def __init__(self, model: Any, flat: ModelIndex | None = None) -> None:
        """``flat`` is the model's flattened index, where there is one already."""
        self.index = flat or flattened(ModelIndex(as_model(model)))
        self.model = model = self.index.model
        self.inference = Inference(model, self.index)
        self.aliases = self.inference.aliases
        self._opset = min((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
        self.formats: dict[str, str] = {}  # of initializers that may be packed, where the catalogue knows them
        self.blocks = nbits.products(self.index.main)  # of weights whose codes are one initializer, by its name
        self._contrib = contrib.rules(self.index.main, self.blocks)
        if not self._contrib:
            self.blocks = {}
        self.weights = self._weights()
        self._lock = threading.Lock()

    def _weights(self) -> dict[str, Weight]:
        found: dict[str, Weight] = {}
        recognizer = Recognizer(self.model)
        for name, value in self.index.main.structs.items():
            if value.type < 0:
                raise CheckError(
                    f"struct initializer {name!r}: an inline type cannot be decoded in a graph yet; declare it in struct_types"
                )
            known = recognizer(value.type)
            if known is None:
                found[name] = Weight(name, self.inference.decoded(name).shape or (), None)
            else:
                self.formats[name] = known.format.name
                found[name] = Weight(name, known.shape, layout_for(known.format.name, known.shape))
        if self._opset >= _OLDEST_OPSET:
            plain = products(self.index.main)
            self.formats |= {name: FORMATS[weight.elem_type] for name, weight in plain.items()}
            found |= plain
        for name, blocks in self.blocks.items():
            shape = blocks.rows, blocks.columns
            self.formats[name] = blocks.format
            found[name] = Weight(name, shape, layout_for(blocks.format, shape), apart=True)
        return found

    @cached_property
    def runnable(self) -> set[int]:
        """Positions of the nodes that ``engine="onnxruntime"`` leaves to it.

        ``UnsupportedError`` for an update that neither it nor a native kernel makes in place.
        """
        return whole(self.index.main, self.aliases)

    def packed(self) -> dict[str, Weight]:
        """The weights that some node reads packed: structured ones through StructDecode by a Gather, or a Transpose and a
        MatMul, and plain ones by a MatMul, Gemm or MatMulNBits.
        """
        scope = self.index.main
        found = {name: weight for name, weight in self.weights.items() if name in scope.initializers}
        for node in scope.nodes:
            if node.domain == DOMAIN and node.op_type == "StructDecode":
                readers = [scope.nodes[port.node].op_type for port in scope.readers.get(node.output[0], []) if port.slot == 0]
                weight = self.weights[node.input[0]]
                if weight.layout is not None and any(reader in ("Gather", "Transpose") for reader in readers):
                    found[weight.name] = weight
        return found

    def context(self, dims: Mapping[str, int] | None = None, shapes: Mapping[str, Sequence[int]] | None = None) -> ShapesContext:
        """Types of all values for the given symbols or input shapes."""
        with self._lock:
            return ShapesContext(self.model, dims, shapes=shapes, inference=self.inference)

    @uncollected()
    def plan(
        self,
        dims: Mapping[str, int] | None = None,
        *,
        shapes: Mapping[str, Sequence[int]] | None = None,
        tables: Mapping[str, int] | None = None,
        engine: str = "auto",
        fusions: str | Collection[str] = "all",
    ) -> ExecutionPlan:
        """The verified plan for the given symbols or input shapes, and for tables that describe as many pages.

        ``engine="onnxruntime"`` leaves to it all that it can run. ``fusions`` are the names of those to make, of
        ``plan.fusion.FUSIONS``. Raises ``ShapeError``, ``CapacityError``, ``AliasError`` or
        ``UnsupportedError`` naming the node.
        """
        context, scope = self.context(dims, shapes), self.index.main
        left = self.runnable if engine == "onnxruntime" else set[int]()
        builder, outputs, steps = self._draft(context, tables, left)
        foreign = {position for step in steps for position in step.nodes}
        more = between(scope, context, foreign) if foreign and not left else set()
        if more:
            builder, outputs, steps = self._draft(context, tables, more)
        results = list(outputs.values())
        steps, once = self._once(builder, steps, results)
        steps = fused(steps, results, chosen(fusions))
        steps = merged(ordered(steps, partial(detach, builder)), results)
        plan = freeze(steps, place(steps), builder.inputs, outputs, builder.writes, builder.page_writes, once)
        verify(plan)
        builder.close()
        return plan

    def _once(
        self, builder: Builder, steps: list[DraftStep], results: list[Value]
    ) -> tuple[list[DraftStep], ExecutionPlan | None]:
        """The steps of every run, and the plan of those over constants alone, whose results they find as initializers."""
        constants = Constants(steps, self.index.main.nodes)
        kept = constants.kept(steps, results)
        if not kept:
            return steps, None
        first = {id(step) for step in constants.steps}
        outputs = {constants.key(value).layout: value for value in kept.values()}  # of equal ones, one
        made = list(outputs.values())
        for step in constants.steps:
            step.guards, step.loop = (), None
        for value in made:
            value.owner.storage = Storage.OUTPUT
        before = live([step for step in steps if step.is_check or id(step) in first], made)
        before = merged(ordered(before, partial(detach, builder)), made)
        plan = freeze(before, place(before), {}, outputs, [], [])
        verify(plan)
        for value in kept.values():
            settle(value, constants.key(value))
        unversioned([*results, *(value for step in steps for value in step.reads)])
        return live(steps, results), plan

    def _draft(
        self, context: ShapesContext, tables: Mapping[str, int] | None, left: set[int]
    ) -> tuple[Builder, dict[str, Value], list[DraftStep]]:
        """The steps that the outputs and caches need, not yet in order; the nodes in ``left`` go to onnxruntime."""
        builder = Builder(self.index.main, self.aliases, context, self.weights, tables, self.blocks)
        for position, node in enumerate(self.index.main.nodes):
            with builder.under(builder.guards_of(position)):
                if position in left:
                    leave(builder, position, node)
                else:
                    self._lower(builder, position, node)
        finish(builder)
        outputs = _results(builder, list(self.index.main.outputs))
        return builder, outputs, live(builder.steps, list(outputs.values()))

    def _lower(self, builder: Builder, position: int, node: Any) -> None:
        if node.domain == FLOW:
            FLOW_RULES[node.op_type](builder, node)
            return
        standard = node.domain in ("", "ai.onnx") and self._opset >= _OLDEST_OPSET
        rules = _DOMAIN_RULES if node.domain == DOMAIN else _RULES if standard else {}
        rule = self._contrib.get((node.domain, node.op_type)) or rules.get(node.op_type)
        if rule is not None and standard and node.op_type in _RULES:
            self._check_ports(position, node)
        if rule is None or not rule(builder, node):
            leave(builder, position, node)
        for name in node.output:
            if name and name not in builder.env:
                raise UnsupportedError(f"{builder.label(node)}: its operator's rule has to define {name!r} (builder.define)")

    def _check_ports(self, position: int, node: Any) -> None:
        inputs, outputs = _needed_ports(node.op_type)
        for kind, names, needed in (("input", node.input, inputs), ("output", node.output, outputs)):
            if len(names) < needed or "" in names[:needed]:
                raise CheckError(
                    f"{self.index.main.describe(position)}: has {list(names)} as its {kind}s, but the operator needs the first "
                    f"{needed}; name them"
                )


@cache
def _needed_ports(op_type: str) -> tuple[int, int]:
    """How many inputs and outputs a standard operator cannot do without."""
    from onnx import defs

    schema = defs.get_schema(op_type)
    return schema.min_input, schema.min_output


def _results(builder: Builder, names: list[str]) -> dict[str, Value]:
    """The graph's outputs: written where the caller finds them, or the storage of a cache."""
    results: dict[str, Value] = {}
    taken: set[int] = set()
    for name in dict.fromkeys(names):
        value = builder.value(name)
        owner = value.owner
        if owner.pages and not (owner.mutable and builder.aliases.source(name) is not None):
            raise UnsupportedError(
                f"output {name!r}: is the table of pages {owner.name!r} as it was given; leave it out, or update it"
            )
        if builder.aliases.source(name) is not None and owner.mutable:
            results[name] = value
            continue
        own = owner.storage is Storage.ARENA and id(owner) not in taken
        if own and value.contiguous and value.offset == 0 and value.size * value.itemsize == owner.nbytes:
            owner.storage = Storage.OUTPUT
            owner.name = name
        else:
            source, value = value, builder.new(name, value.elem_type, value.dims, Storage.OUTPUT)
            builder.step("copy", f"output {name}", [source], [value])
        taken.add(id(value.owner))
        results[name] = value
    return results


class PagesHeld(Protocol):
    """What a plan asks of a table of pages: how many, and their bytes."""

    def __len__(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


def plan(
    model: Any,
    dims: Mapping[str, int] | None = None,
    *,
    threads: int | str = "auto",
    packs: str = "auto",
    device: str | None = None,
    tables: Mapping[str, PagesHeld] | None = None,
    fusions: str | Collection[str] = "all",
) -> ExecutionPlan:
    """Plan a model for the given symbolic dimensions: steps, storage and the peak, without running or allocating.

    The plan does not depend on ``threads``, ``packs`` or ``device``: every kernel has the same workspace everywhere.
    ``fusions`` are those to make, as of ``Session``. ``tables`` are the PageTables to be bound, by input name: ``cache_bytes``
    counts the pages that they hold now, and a table that is not given counts nothing. Raises ``BindingError`` for a name that is
    no READ_WRITE table.
    """
    planner, held = Planner(model), tables or {}
    for name in held:
        if name not in planner.aliases.mutable_inputs or pages_of(planner.inference.inputs[name]) is None:
            raise BindingError(f"tables: {name!r} is no READ_WRITE input of the model that is a table of pages")
    found = planner.plan(dims, tables={name: len(table) for name, table in held.items()}, fusions=fusions)
    return replace(found, cache_bytes=found.cache_bytes + sum(table.nbytes for table in held.values()))
