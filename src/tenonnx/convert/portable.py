"""The other way: a model of ours in standard operators and types alone, which stock onnxruntime checks and runs whole.

Structured weights are decoded (FLOAT or FLOAT16), or stay packed as MatMulNBits where its arithmetic is the format's own;
an update becomes TensorScatter. Aliases stay: stock tools keep them as unknown fields, and this runtime obeys them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tenonnx.codecs.decode import Decoder
from tenonnx.convert import opset
from tenonnx.convert.editing import Editor, declare_alias, make_node
from tenonnx.convert.nbits import BITS, BLOCK, packed
from tenonnx.convert.types import known_types
from tenonnx.errors import OptionError, UnsupportedError
from tenonnx.schema.domains import DOMAIN, FORMATS_DOMAIN
from tenonnx.schema.external import DataRoot
from tenonnx.schema.graph import attributes
from tenonnx.schema.messages import TensorProto
from tenonnx.schema.payload import struct_payload, tensor_array
from tenonnx.shapes import SymTensor

WEIGHTS = ("float32", "float16", "nbits")
_ADDITIONS = ("struct_types", "quantizations", "compiled_tensors", "devices")
MICROSOFT = "com.microsoft"
Types = dict[str, SymTensor]
_MASK, _VALID_LENGTH = 3, 6  # inputs of Attention


def portable(model: Any, data_root: Path, weights: str = "float32") -> Any:
    """A copy of ``model`` without anything that stock onnxruntime does not know; all weights lie in it.

    weights: "float32"; "float16", which halves the file and rounds; or "nbits": MatMulNBits where that is exact, else FLOAT.
    Raises ``UnsupportedError`` naming an operator or type that has no portable form.
    """
    if weights not in WEIGHTS:
        raise OptionError(f"the option portable is {weights!r}; expected one of {', '.join(WEIGHTS)}")
    result = type(model)()
    result.CopyFrom(model)
    editor, types = Editor(result), known_types(model)
    _Weights(editor, model, DataRoot(data_root), weights).replace()
    for node in list(editor.nodes):
        if node.domain == DOMAIN:
            _scatter(editor, types, node)
        elif node.op_type == "Attention" and len(node.input) > _VALID_LENGTH and node.input[_MASK]:
            _widen_mask(editor, types, node)
    editor.finish()
    for function in [function for function in result.functions if function.domain == FORMATS_DOMAIN]:
        result.functions.remove(function)
    for field in _ADDITIONS:
        result.ClearField(field)
    for entry in [entry for entry in result.opset_import if entry.domain in (DOMAIN, FORMATS_DOMAIN)]:
        result.opset_import.remove(entry)
    opset.raise_to(result, opset.CACHED_ATTENTION)
    return result


class _Weights:
    """Structured initializers on their way to plain ones, each made once."""

    def __init__(self, editor: Editor, source: Any, root: DataRoot, weights: str) -> None:
        """``source``: the model as it was, for the types and decoders that the edited one loses."""
        self._editor, self._root, self._weights = editor, root, weights
        self._decode = Decoder(source, root)
        self._structs = {value.name: value for value in source.graph.struct_initializer}

    def replace(self) -> None:
        for node in list(self._editor.nodes):
            if node.domain != DOMAIN or node.op_type != "StructDecode":
                continue
            value = self._structs.get(node.input[0])
            if value is None:
                raise UnsupportedError(f"node {node.name}: decodes {node.input[0]!r}, which is no structured initializer")
            if self._weights == "nbits":
                self._products(node, value)
            self._decoded(node, value)
        for tensor in self._editor.graph.initializer:
            if tensor.external_data:
                array = tensor_array(tensor, self._root)
                tensor.ClearField("external_data")
                tensor.ClearField("data_location")
                tensor.raw_data = array.tobytes()

    def _decoded(self, node: Any, value: Any) -> None:
        name = node.output[0]
        if not self._editor.readers(name):
            self._editor.remove(node)
            return
        array = np.ascontiguousarray(self._decode(value), np.float32)
        self._editor.remove(node)
        if self._weights == "float16":
            half = self._editor.constant(f"{name}.half", array.astype(np.float16))
            self._editor.insert(make_node("Cast", [half], [name], to=TensorProto.FLOAT))
        else:
            self._editor.graph.initializer.add(name=name, data_type=TensorProto.FLOAT, dims=array.shape, raw_data=array.tobytes())

    def _products(self, node: Any, value: Any) -> None:
        """MatMulNBits for every product with the transposed weight."""
        known = self._decode.recognizer(value.type) if value.type >= 0 else None
        if known is None or known.format.name not in BITS or len(known.shape) != 2:
            return
        editor, name = self._editor, node.output[0]
        products = [
            (transpose, product)
            for transpose, _ in editor.readers(name)
            if transpose.op_type == "Transpose" and attributes(transpose).get("perm", [1, 0]) == [1, 0]
            for product, slot in editor.readers(transpose.output[0])
            if product.op_type == "MatMul" and slot == 1
        ]
        if not products:
            return
        rows, columns = known.shape
        codes, scales = packed(known.format.name, struct_payload(value, self._root), rows, columns)
        weight = [editor.constant(f"{name}.codes", codes), editor.constant(f"{name}.scales", scales)]
        given = {"K": columns, "N": rows, "bits": BITS[known.format.name], "block_size": BLOCK}
        for transpose, product in products:
            editor.remove(product)
            editor.insert(make_node("MatMulNBits", [product.input[0], *weight], list(product.output), MICROSOFT, **given))
            if not editor.readers(transpose.output[0]):
                editor.remove(transpose)
        if not any(entry.domain == MICROSOFT for entry in self._editor.model.opset_import):
            self._editor.model.opset_import.add(domain=MICROSOFT, version=1)


def _scatter(editor: Editor, types: Types, node: Any) -> None:
    """TensorScatter in the place of CacheUpdate, in place again where it can be."""
    if node.op_type != "CacheUpdate":
        raise UnsupportedError(f"node {node.name or node.op_type}: {node.op_type} has no portable form in standard operators")
    cache, values, position = node.input[:3]
    updated, given = node.output[0], attributes(node)
    axis, batch_axis = given.get("axis", -2), given.get("batch_axis", 0)
    rank = len(types[cache].dims or ())
    axis, batch_axis = axis % rank, batch_axis % rank
    editor.remove(node)
    per_row = len(types[position].dims or ()) == 1
    if batch_axis == 0 and axis != 0:
        start = position if per_row else _expanded(editor, position, cache)
        scatter = make_node("TensorScatter", [cache, values, start], [updated], axis=axis - rank)
        if node.output_alias:
            declare_alias(scatter, 0, 0)
        editor.insert(scatter)
        return
    if per_row:
        order = [batch_axis, *(place for place in range(rank) if place != batch_axis)]
        back = [order.index(place) for place in range(rank)]
        turned = [editor.add("Transpose", [name], f"{updated}.by_row", perm=order) for name in (cache, values)]
        written = editor.add("TensorScatter", [*turned, position], f"{updated}.written", axis=order.index(axis) - rank)
        editor.insert(make_node("Transpose", [written], [updated], perm=back))
    else:  # one row more in front makes one position of all rows
        front = editor.ints(0)
        opened = [editor.add("Unsqueeze", [name, front], f"{updated}.opened") for name in (cache, values)]
        start = editor.add("Reshape", [position, editor.ints(1)], f"{updated}.start")
        written = editor.add("TensorScatter", [*opened, start], f"{updated}.written", axis=axis - rank)
        editor.insert(make_node("Squeeze", [written, front], [updated]))
    for value in editor.graph.output:
        if value.name == updated:
            value.ClearField("alias_of")


def _widen_mask(editor: Editor, types: Types, node: Any) -> None:
    """The mask of an attention over caches as [.., n, capacity]: onnxruntime neither repeats it for queries nor pads it."""
    mask, to = node.input[_MASK], f"{node.output[0]}.mask"
    capacity = editor.add("Shape", [node.input[1]], f"{to}.capacity", start=2, end=3)
    length = editor.add("Shape", [mask], f"{to}.length", start=-1)
    missing = editor.add("Sub", [capacity, length], f"{to}.missing")
    pads = editor.add("Concat", [editor.ints(0), missing], f"{to}.pads", axis=0)
    boolean = types[mask].elem_type == TensorProto.BOOL
    nothing = np.array(False) if boolean else np.array(np.finfo(np.float32).min, np.float32)
    hidden = editor.constant(f"masked.{nothing.dtype}", nothing)
    padded = editor.add("Pad", [mask, pads, hidden, editor.ints(-1)], f"{to}.padded")
    rows = editor.add("Shape", [node.input[0]], f"{to}.rows", start=2, end=3)
    shape = editor.add("Concat", [rows, editor.ints(1)], f"{to}.shape", axis=0)
    wide = editor.add("Expand", [padded, shape], f"{to}.wide")
    editor.redirect(mask, wide, [(node, _MASK)])


def _expanded(editor: Editor, position: str, cache: str) -> str:
    """INT64[batch] of one position; caches of one batch size share it."""
    name = f"{position}.of.{cache}"
    batch = editor.add("Shape", [cache], f"{name}.batch", start=0, end=1)
    return editor.add("Expand", [position, batch], name)
