"""Exports that grow their caches: ``present = Concat(past, new)`` becomes an update of the past where it lies.

    before   present [batch, heads, past + n, head] = Concat(past [batch, heads, past, head], new [batch, heads, n, head])
    after    present = CacheUpdate(past, new, position), all three of the capacity ``max_length``, present an alias of past

A new input ``position`` INT64[] holds what was the length of the pasts. Whoever asked for their shape gets the valid length;
whoever read ``present`` reads it as far as it is valid (``readers``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tenonnx.convert import opset, readers
from tenonnx.convert.editing import NESTED, Editor, declare_alias, make_node, make_writable, set_dims
from tenonnx.convert.report import Findings
from tenonnx.convert.symbolic import Causal, Formulas, Linear
from tenonnx.convert.types import known_types
from tenonnx.schema.domains import DOMAIN, VERSION
from tenonnx.schema.graph import attributes
from tenonnx.schema.messages import TensorProto
from tenonnx.shapes import SymTensor

CAPACITY, POSITION = "max_length", "position"
_MASK_RANK = 2  # [batch, past + n]


@dataclass(frozen=True)
class Grown:
    """A cache that a Concat makes longer."""

    past: str
    present: str
    new: str
    axis: int
    symbol: SymTensor
    length: Any  # the declared length of the past: a symbol, or None

    @property
    def rank(self) -> int:
        return len(self.symbol.dims or ())


class Caches:
    """What all caches of one model share while they are rewritten."""

    def __init__(self, editor: Editor, types: dict[str, SymTensor], grown: list[Grown]) -> None:
        self.editor = editor
        self.types = types
        self.grown = {cache.present: cache for cache in grown}
        self.position = editor.add_input(POSITION, TensorProto.INT64, [])
        self.past = past = Linear.symbol("past")
        self.formulas = Formulas(editor, types, _lengths(editor, types, grown, past))
        self.formulas.define(self.position, past)
        self.causal: dict[str, Causal | None] = {}
        self._first: dict[Any, str] = {}  # the new rows that are made first: all later ones may depend on them
        for cache in grown:
            self._first.setdefault(self._rows(cache), cache.new)
        self._ends: dict[Any, str] = {}
        self._lengths: dict[Any, str] = {}

    def end(self, cache: Grown) -> str:
        """INT64[1]: position + n, one value for all caches whose new rows are known to be as many."""
        key = self._rows(cache)
        if key not in self._ends:
            rows = self.editor.add("Shape", [self._first[key]], "new_length", start=cache.axis, end=cache.axis + 1)
            self._ends[key] = self.editor.add("Add", [self.position, rows], "end_position")
        return self._ends[key]

    def valid_length(self, cache: Grown) -> str:
        """INT64[batch], as Attention takes it."""
        key = self._rows(cache)
        if key not in self._lengths:
            batch = self.editor.add("Shape", [cache.past], "batch_size", start=0, end=1)
            self._lengths[key] = self.editor.add("Expand", [self.end(cache), batch], "valid_length")
        return self._lengths[key]

    def _rows(self, cache: Grown) -> Any:
        """What tells n: the declared length of the present less the past, or else the new rows themselves."""
        dims = self.types[cache.present].dims if cache.present in self.types else None
        dim = None if dims is None else dims[cache.axis]
        return cache.new if dim is None else self.formulas.dim(dim, "")


def _lengths(editor: Editor, types: dict[str, SymTensor], grown: list[Grown], past: Linear) -> dict[str, Linear]:
    """What the names of declared dimensions mean in terms of the past and of n, the length of input_ids.

    A present, and a mask that is an input, are as long as both together, whatever their exporter calls that.
    """
    known = {cache.length: past for cache in grown if isinstance(cache.length, str)}
    ids = types.get("input_ids")
    rows = ids.dims[-1] if ids is not None and ids.dims else None
    if rows is None:
        return known
    total = past + (Linear(rows) if isinstance(rows, int) else Linear.symbol(rows))
    presents = [(types.get(cache.present), cache.axis) for cache in grown]
    masks = [(types[name], -1) for name in editor.inputs if "mask" in name and len(types[name].dims or ()) == _MASK_RANK]
    for symbol, axis in (*presents, *masks):
        dim = symbol.dims[axis] if symbol is not None and symbol.dims else None
        if isinstance(dim, str) and dim != rows:
            known.setdefault(dim, total)
    return known


def rewrite(model: Any, findings: Findings) -> bool:
    """Rewrite every concat-style cache of a model in place; whether there was one."""
    editor = Editor(model)
    declared = known_types(model)
    editor.shorten(declared)
    if not _find(editor, declared, findings):
        return False
    opset.upgrade(model)
    editor, types = Editor(model), {**known_types(model), **declared}
    editor.shorten(types)
    grown = _find(editor, types, findings)
    caches = Caches(editor, types, grown)
    for cache in grown:
        _update(caches, cache)
    attentions = readers.rewrite(caches, findings)
    if attentions:
        findings.note(f"attentions that read their caches where they lie, up to the valid length: {attentions}")
        opset.raise_to(model, opset.CACHED_ATTENTION)
    _declare(editor, grown)
    _release_masks(caches, findings)
    for name in editor.finish():
        findings.note(f"input {name!r} served the mask alone, and is gone")
    del model.graph.value_info[:]  # it describes tensors of the old lengths
    if not any(entry.domain == DOMAIN for entry in model.opset_import):
        model.opset_import.add(domain=DOMAIN, version=VERSION)
    return True


def _find(editor: Editor, types: dict[str, SymTensor], findings: Findings) -> list[Grown]:
    """The caches that are rewritten, in the order of their nodes; the reasons why the others are not go to ``findings``."""
    found: list[Grown] = []
    for node in editor.nodes:
        output = node.output[0] if node.op_type == "Concat" else ""
        past = next((name for name in node.input if name in editor.inputs), None)
        if output not in editor.outputs or past is None or past in editor.initializers:
            continue
        why = _refusal(editor, types, node, past, found)
        if why:
            findings.left(past, output, why)
            continue
        symbol = types[past]
        axis = attributes(node)["axis"] % len(symbol.dims or ())
        found.append(Grown(past, output, node.input[1], axis, symbol, (symbol.dims or ())[axis]))
    return found


def _refusal(editor: Editor, types: dict[str, SymTensor], node: Any, past: str, found: list[Grown]) -> str:
    """Why a Concat onto a graph input is no cache that grows; "" when it is."""
    symbol = types.get(past)
    if symbol is None or symbol.dims is None:
        return "its dimensions are not declared"
    axis = attributes(node)["axis"] % len(symbol.dims)
    if len(node.input) != 2 or node.input[0] != past:
        return f"node {node.name or 'Concat'} joins {list(node.input)}; expected the past and the new rows"
    if axis == 0:
        return "it grows along its first axis, which is the batch"
    if isinstance(symbol.dims[axis], int):
        return f"its length is fixed to {symbol.dims[axis]}"
    if found and found[0].length != symbol.dims[axis]:
        return f"its length {symbol.dims[axis]} is not that of {found[0].past}, {found[0].length}"
    others = [reader for reader, _ in editor.readers(past) if reader is not node and reader.op_type != "Shape"]
    if others:
        return f"node {others[0].name or others[0].op_type} reads the past as well"
    nested = [reader for reader, slot in editor.readers(node.output[0]) if slot == NESTED]
    if nested:
        return f"a body of node {nested[0].name or nested[0].op_type} reads the present; inline it"
    return ""


def _update(caches: Caches, cache: Grown) -> None:
    """Put the update in the Concat's place, and give who asks for shapes the lengths that they had."""
    editor = caches.editor
    old = editor.maker(cache.present)
    editor.remove(old)
    inputs = [cache.past, cache.new, caches.position]
    update = make_node("CacheUpdate", inputs, [cache.present], DOMAIN, axis=cache.axis - cache.rank)
    declare_alias(update, 0, 0)
    editor.insert(update)
    for name, length in ((cache.past, ""), (cache.present, "end")):
        for node, slot in editor.readers(name):
            if node.op_type == "Shape" and slot == 0:
                _reshaped(caches, cache, node, caches.end(cache) if length else "")


def _reshaped(caches: Caches, cache: Grown, node: Any, length: str) -> None:
    """Let a Shape of the past or present tell ``length`` (of the past: the position) in the cache's axis."""
    editor, given = caches.editor, attributes(node)
    begin, end, _ = slice(given.get("start", 0), given.get("end", cache.rank)).indices(cache.rank)
    if not begin <= cache.axis < end:
        editor.redirect(cache.present, cache.past, [(node, 0)])
        return
    name = node.output[0]
    length = length or editor.add("Reshape", [caches.position, editor.ints(1)], "past_length")
    parts = []
    if begin < cache.axis:
        parts.append(editor.add("Shape", [cache.past], f"{name}.before", start=begin, end=cache.axis))
    parts.append(length)
    if cache.axis + 1 < end:
        parts.append(editor.add("Shape", [cache.past], f"{name}.behind", start=cache.axis + 1, end=end))
    editor.remove(node)
    editor.insert(make_node("Concat", parts, [name], axis=0))


def _declare(editor: Editor, grown: list[Grown]) -> None:
    """The storage contract at the graph's boundary."""
    for cache in grown:
        dims = list(cache.symbol.dims or ())
        dims[cache.axis] = CAPACITY
        for value in (editor.inputs[cache.past], editor.outputs[cache.present]):
            set_dims(value, cache.symbol.elem_type, dims)
        make_writable(editor.inputs[cache.past])
        editor.outputs[cache.present].alias_of = cache.past


def _release_masks(caches: Caches, findings: Findings) -> None:
    """Say what became of the masks; a padding mask may be as long as the caller likes, if it covers the valid length."""
    editor = caches.editor
    for name, proof in caches.causal.items():
        if proof is None:
            findings.note(f"mask {name!r} is not proved to be causal and stays as it is")
        elif not proof.padding:
            findings.note(f"mask {name!r} is the causal mask; the attentions see to it themselves")
        else:
            findings.note(f"mask {name!r} is the causal mask and the padding in {proof.padding!r}; only the latter is left")
            value = editor.inputs[proof.padding]
            symbol = caches.types[proof.padding]
            set_dims(value, symbol.elem_type, [*(symbol.dims or ())[:-1], "mask_length"])
