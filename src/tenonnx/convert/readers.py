"""What becomes of those who read a grown cache: attention up to the valid length, or the valid range for whoever else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tenonnx.convert.editing import make_node
from tenonnx.convert.report import Findings
from tenonnx.convert.symbolic import Causal, Unproven, causal
from tenonnx.schema.graph import attributes
from tenonnx.schema.messages import TensorProto

if TYPE_CHECKING:
    from tenonnx.convert.concat import Caches, Grown

_HEADS_AXIS, _LENGTH_AXIS = 1, 2


@dataclass(frozen=True)
class Read:
    """An attention over a key and a value cache, however the graph spells it."""

    query: str  # FLOAT[batch, q_heads, n, head]
    key: Grown
    value: Grown
    mask: str  # "" for none
    scale: float
    softcap: float
    result: Any  # the node whose output is the attention's


def rewrite(caches: Caches, findings: Findings) -> int:
    """Rewrite every reader of every cache; the number of attentions."""
    found = 0
    for cache in list(caches.grown.values()):
        for read in _attentions(caches, cache):
            _attend(caches, read)
            found += 1
    for cache in caches.grown.values():
        _limit(caches, cache, findings)
    return found


def _attentions(caches: Caches, key: Grown) -> list[Read]:
    if key.rank != 4 or key.axis != _LENGTH_AXIS:
        return []
    found = []
    for name in (key.present, *_repeated(caches, key)):
        for node, slot in caches.editor.readers(name):
            read = _operator(caches, key, node, slot) or _spelled_out(caches, key, name, node, slot)
            if read is not None:
                found.append(read)
    return found


# ---- Heads repeated for their queries


def _repeated(caches: Caches, cache: Grown) -> list[str]:
    """Values [batch, heads * g, length, head] in which every head of a cache stands g times in a row."""
    editor = caches.editor
    found = []
    for first, slot in editor.readers(cache.present):
        if first.op_type != "Unsqueeze" or slot:
            continue
        for second, _ in editor.readers(first.output[0]):
            for third, _ in editor.readers(second.output[0]) if second.op_type == "Expand" else ():
                if third.op_type == "Reshape" and _repeats(caches, cache, first, second, third):
                    found.append(third.output[0])
    return found


def _repeats(caches: Caches, cache: Grown, unsqueeze: Any, expand: Any, reshape: Any) -> bool:
    heads, size = (cache.symbol.dims or ())[1], (cache.symbol.dims or ())[3]
    try:
        axes = attributes(unsqueeze).get("axes") or [axis.known for axis in caches.formulas[unsqueeze.input[1]].vector()]
        wide = [dim.known for dim in caches.formulas[expand.input[1]].vector()]
        flat = [dim.known for dim in caches.formulas[reshape.input[1]].vector()]
    except Unproven:
        return False
    if axes not in ([2], [-3]) or len(wide) != 5 or len(flat) != 4 or not isinstance(heads, int) or wide[2] is None:
        return False
    return flat[1] == heads * wide[2] and wide[1] in (1, heads) and flat[3] in (size, 0, -1) and wide[4] in (1, size)


def _source(caches: Caches, name: str) -> Grown | None:
    """The cache behind a value that may show its heads repeated."""
    if name in caches.grown:
        return caches.grown[name]
    reshape = caches.editor.maker(name, "Reshape")
    expand = caches.editor.maker(reshape.input[0], "Expand") if reshape is not None else None
    unsqueeze = caches.editor.maker(expand.input[0], "Unsqueeze") if expand is not None else None
    cache = caches.grown.get(unsqueeze.input[0]) if unsqueeze is not None else None
    return cache if cache is not None and name in _repeated(caches, cache) else None


def _is_value(caches: Caches, key: Grown, name: str) -> Grown | None:
    """The cache behind ``name``, when it can be the values to ``key``'s keys: as long, and as many heads."""
    value = _source(caches, name)
    if value is None or value.rank != 4 or value.axis != key.axis or value.length != key.length:
        return None
    same = (value.symbol.dims or ())[_HEADS_AXIS] == (key.symbol.dims or ())[_HEADS_AXIS]
    return value if same and value.symbol.elem_type == key.symbol.elem_type else None


# ---- The Attention operator


def _operator(caches: Caches, key: Grown, node: Any, slot: int) -> Read | None:
    if node.op_type != "Attention" or node.domain not in ("", "ai.onnx") or slot != 1:
        return None
    query, _, values, mask, *rest = [*node.input, *[""] * 7][:7]
    value = _is_value(caches, key, values)
    given = attributes(node)
    plain = not any(rest) and not given.get("is_causal", 0) and "q_num_heads" not in given
    if value is None or not plain or len([name for name in node.output if name]) != 1:
        return None
    head = (key.symbol.dims or ())[3]
    scale = given.get("scale", 1 / float(np.sqrt(head)) if isinstance(head, int) else 0.0)
    return Read(query, key, value, mask, scale, given.get("softcap", 0.0), node) if scale else None


# ---- MatMul, Softmax, MatMul


def _spelled_out(caches: Caches, key: Grown, name: str, node: Any, slot: int) -> Read | None:
    """Transpose → MatMul → scale and mask in any order → Softmax → MatMul with the values."""
    editor = caches.editor
    if node.op_type != "Transpose" or attributes(node).get("perm") != [0, 1, 3, 2]:
        return None
    step, scale = editor.sole_reader(node.output[0]), 1.0
    factor = _factor(caches, step)
    if step is not None and factor is not None:
        scale, step = factor, editor.sole_reader(step[0].output[0])
    if step is None or step[0].op_type != "MatMul" or step[1] != 1:
        return None
    query, mask = step[0].input[0], ""
    step = editor.sole_reader(step[0].output[0])
    while step is not None and step[0].op_type != "Softmax":
        factor = _factor(caches, step)
        if factor is not None and not mask:
            scale *= factor
        elif step[0].op_type == "Add" and not mask:
            mask = step[0].input[1 - step[1]]
        else:
            return None
        step = editor.sole_reader(step[0].output[0])
    if step is None or attributes(step[0]).get("axis", -1) not in (-1, 3):
        return None
    step = editor.sole_reader(step[0].output[0])
    if step is None or step[0].op_type != "MatMul" or step[1] != 0:
        return None
    value = _is_value(caches, key, step[0].input[1])
    return None if value is None else Read(query, key, value, mask, scale, 0.0, step[0])


def _factor(caches: Caches, step: tuple[Any, int] | None) -> float | None:
    """The number that a Mul or Div scales by, or None where it does something else."""
    if step is None or step[0].op_type not in ("Mul", "Div") or (step[0].op_type == "Div" and step[1] != 0):
        return None
    number = caches.editor.array(step[0].input[1 - step[1]])
    if number is None or number.size != 1 or number.dtype.kind != "f" or not float(number.reshape(-1)[0]):
        return None
    value = float(number.reshape(-1)[0])
    return value if step[0].op_type == "Mul" else 1 / value


# ---- What takes their place


def _attend(caches: Caches, read: Read) -> None:
    editor = caches.editor
    proof = _proof(caches, read.mask)
    mask = read.mask if proof is None else _padding(caches, proof.padding)
    inputs = [read.query, read.key.present, read.value.present, mask, "", "", caches.valid_length(read.key)]
    more: dict[str, Any] = {} if not read.softcap else {"softcap": read.softcap}
    if proof is not None:
        more["is_causal"] = 1
    name = read.result.output[0]
    editor.remove(read.result)
    editor.insert(make_node("Attention", inputs, [name], scale=read.scale, **more))


def _proof(caches: Caches, mask: str) -> Causal | None:
    if not mask:
        return None
    if mask not in caches.causal:
        caches.causal[mask] = causal(caches.formulas, mask, caches.past)
    return caches.causal[mask]


def _padding(caches: Caches, name: str) -> str:
    """BOOL[batch, 1, 1, length] of a padding mask [batch, length]; positions past its end do not count."""
    if not name:
        return ""
    editor, made = caches.editor, f"{name}.padding"
    if editor.maker(made) is None:
        flags = editor.add("Cast", [name], f"{name}.flags", to=TensorProto.BOOL)
        editor.add("Unsqueeze", [flags, editor.ints(1, 2)], made)
    return made


def _limit(caches: Caches, cache: Grown, findings: Findings) -> None:
    """Readers that nothing is known of get the valid range, as they did; the report says so."""
    editor = caches.editor
    needed = editor.needed()
    rest = [
        (node, slot)
        for node, slot in editor.readers(cache.present)
        if id(node) in needed and not (node.op_type == "Attention" and slot in (1, 2) and len(node.input) == 7)
    ]
    if not rest:
        return findings.converted(cache.past, cache.present, "CacheUpdate")
    end = caches.end(cache)
    inputs = [cache.present, editor.ints(0), end, editor.ints(cache.axis)]
    valid = editor.add("Slice", inputs, f"{cache.present}.valid")
    editor.redirect(cache.present, valid, rest)
    readers = ", ".join(node.name or node.op_type for node, _ in rest)
    findings.converted(cache.past, cache.present, f"CacheUpdate; {readers} read a copy of its valid range")
