"""Attention that a graph spells out: keys turned, MatMul, scale and mask, Softmax, MatMul with the values."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tenonnx.convert.editing import Editor
from tenonnx.convert.symbolic import Formulas, Unproven
from tenonnx.schema.graph import attributes

Step = tuple[Any, int] | None  # the one reader of a value: (node, slot)


class Spelled(NamedTuple):
    """Names of its operands, its scale, and the node whose output it gives."""

    query: str
    values: str
    mask: str  # "" for none
    scale: float
    result: Any


def spelled_out(editor: Editor, formulas: Formulas, node: Any, slot: int) -> Spelled | None:
    """The attention that begins where ``node`` reads keys [batch, heads, length, head], or None."""
    step = _turned(editor, formulas, node, slot)
    scale = 1.0
    factor = _factor(editor, step)
    if step is not None and factor is not None:
        scale, step = factor, editor.sole_reader(step[0].output[0])
    if step is None or step[0].op_type != "MatMul" or step[1] != 1:
        return None
    query, mask = step[0].input[0], ""
    step = editor.sole_reader(step[0].output[0])
    while step is not None and step[0].op_type != "Softmax":
        factor = _factor(editor, step)
        if factor is not None and not mask:
            scale *= factor
        elif step[0].op_type == "Add" and not mask:
            mask = step[0].input[1 - step[1]]
        else:
            return None
        step = editor.sole_reader(step[0].output[0])
    if step is None or attributes(step[0]).get("axis", -1) not in (-1, 3):
        return None
    step = _weighted(editor, step[0].output[0])
    if step is None or step[0].op_type != "MatMul" or step[1] != 0:
        return None
    return Spelled(query, step[0].input[1], mask, scale, step[0])


def _turned(editor: Editor, formulas: Formulas, node: Any, slot: int) -> Step:
    """Who reads the keys with their last two axes exchanged: by a Transpose, or by one of rank 3 between two Reshapes."""
    if node.op_type == "Transpose":
        return editor.sole_reader(node.output[0]) if attributes(node).get("perm") == [0, 1, 3, 2] else None
    turn = editor.sole_reader(node.output[0]) if node.op_type == "Reshape" and slot == 0 else None
    back = editor.sole_reader(turn[0].output[0]) if turn is not None and turn[0].op_type == "Transpose" else None
    if turn is None or back is None or attributes(turn[0]).get("perm") != [0, 2, 1] or back[0].op_type != "Reshape":
        return None
    try:
        batch, heads, length, size = formulas.dims(node.input[0])
        flat, whole = (formulas[reshape.input[1]].vector() for reshape in (node, back[0]))
    except (Unproven, ValueError):
        return None
    same = flat[1:] == [length, size] and whole == [batch, heads, size, length]
    return editor.sole_reader(back[0].output[0]) if same and len(flat) == 3 else None


def _weighted(editor: Editor, name: str) -> Step:
    """Who reads the softmax, be it through Where(IsNaN(softmax), 0, softmax), a guard for rows that see nothing."""
    readers = editor.readers(name)
    if len(readers) != 2 or name in editor.outputs:
        return editor.sole_reader(name)
    nodes = {node.op_type: node for node, _ in readers}
    test, guard = nodes.get("IsNaN"), nodes.get("Where")
    if test is None or guard is None or list(guard.input)[::2] != [test.output[0], name]:
        return None
    zero = editor.array(guard.input[1])
    return editor.sole_reader(guard.output[0]) if zero is not None and not zero.any() else None


def _factor(editor: Editor, step: Step) -> float | None:
    """The number that a Mul or Div scales by, or None where it does something else."""
    if step is None or step[0].op_type not in ("Mul", "Div") or (step[0].op_type == "Div" and step[1] != 0):
        return None
    number = editor.array(step[0].input[1 - step[1]])
    if number is None or number.size != 1 or number.dtype.kind != "f" or not np.all(number):
        return None
    value = float(number.reshape(-1)[0])
    return value if step[0].op_type == "Mul" else 1 / value
