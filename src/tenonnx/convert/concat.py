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
from tenonnx.convert.editing import DOMAIN, NESTED, Editor, declare_alias, make_node, make_writable, set_dims
from tenonnx.convert.formulas import Formulas
from tenonnx.convert.masks import Causal
from tenonnx.convert.report import Findings
from tenonnx.convert.symbolic import Linear
from tenonnx.errors import TenonnxError
from tenonnx.schema.graph import attributes
from tenonnx.schema.messages import TensorProto
from tenonnx.shapes import ShapesContext, SymTensor
from tenonnx.shapes.symbols import symbol_of

CAPACITY, POSITION = "max_length", "position"


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
        past = Linear.symbol("past")
        lengths = {dim for cache in grown if isinstance(dim := cache.length, str)}
        self.past = past
        self.formulas = Formulas(editor, types, dict.fromkeys(lengths, past))
        self.formulas.define(self.position, past)
        self.causal: dict[str, Causal | None] = {}
        self._ends: dict[Any, str] = {}
        self._lengths: dict[Any, str] = {}

    def end(self, cache: Grown) -> str:
        """INT64[1]: position + n, one value for all caches whose new rows are known to be as many."""
        key = self._rows(cache)
        if key not in self._ends:
            rows = self.editor.add("Shape", [cache.new], "new_length", start=cache.axis, end=cache.axis + 1)
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
        symbol = self.types.get(cache.new)
        dim = None if symbol is None or symbol.dims is None else symbol.dims[cache.axis]
        return cache.new if dim is None or str(dim).startswith("unk__") else dim


def rewrite(model: Any, findings: Findings) -> bool:
    """Rewrite every concat-style cache of a model in place; whether there was one."""
    if not _find(Editor(model), known_types(model), findings):
        return False
    opset.upgrade(model)
    editor, types = Editor(model), known_types(model)
    grown = _find(editor, types, findings)
    caches = Caches(editor, types, grown)
    for cache in grown:
        _update(caches, cache)
    attentions = readers.rewrite(caches, findings)
    if attentions:
        findings.note(f"{attentions} attentions read their caches where they lie, up to the valid length")
        opset.raise_to(model, opset.CACHED_ATTENTION)
    _declare(editor, grown)
    _release_masks(caches, findings)
    editor.finish()
    del model.graph.value_info[:]  # it describes tensors of the old lengths
    if not any(entry.domain == DOMAIN for entry in model.opset_import):
        model.opset_import.add(domain=DOMAIN, version=1)
    return True


def known_types(model: Any) -> dict[str, SymTensor]:
    """Types of the main graph's values as declared, with what shape inference adds."""
    graph = model.graph
    declared = {value.name: symbol_of(value.type) for part in (graph.value_info, graph.output, graph.input) for value in part}
    types = {name: symbol for name, symbol in declared.items() if isinstance(symbol, SymTensor)}
    types.update({tensor.name: SymTensor(tensor.data_type, tuple(tensor.dims)) for tensor in graph.initializer})
    try:
        context = ShapesContext(model)
    except TenonnxError:  # operators that onnx does not know: what is declared has to do
        return types
    for name in (name for node in graph.node for name in node.output):
        if name and name not in types and name in context:
            symbol = context[name]
            if isinstance(symbol, SymTensor):
                types[name] = symbol
    return types


def _find(editor: Editor, types: dict[str, SymTensor], findings: Findings) -> list[Grown]:
    """The caches that are rewritten; the reasons why the others are not go to ``findings``."""
    found: list[Grown] = []
    for output in editor.outputs:
        node = editor.maker(output, "Concat")
        past = next((name for name in node.input if name in editor.inputs), None) if node is not None else None
        if node is None or past is None or past in editor.initializers:
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
