"""An onnxruntime-genai folder: genai_config.json names the caches of a model, and what its text needs.

The attention operators of such a model write new rows at the length that ``seqlens_k`` tells, which its graph sums from an
attention mask as long as the text. Here the update position becomes an input of its own, ``position`` INT64[], so that no
input's shape changes from token to token; the node's metadata ``tenonnx.position`` names it. Another, ``logit_rows`` INT64[k],
picks the rows whose logits are computed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from tenonnx.convert import annotate, folder
from tenonnx.convert.editing import Editor, set_metadata
from tenonnx.convert.report import Findings
from tenonnx.errors import PayloadError, UnsupportedError
from tenonnx.schema import files
from tenonnx.schema.messages import TensorProto
from tenonnx.shapes.operators import POSITION_KEY

CONFIG = "genai_config.json"
POSITION, ROWS = "position", "logit_rows"
_LENGTHS, _TOTAL = 5, 6  # inputs of GroupQueryAttention
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
_KEPT = ("input_ids", "position_ids", "attention_mask")
_PRODUCTS = ("MatMul", "MatMulNBits")  # by which logits are made


def is_genai(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a folder that onnxruntime-genai would load."""
    return (Path(path) / CONFIG).is_file()


def model_file(path: str | os.PathLike[str]) -> Path:
    """The .onnx file of a folder; ``PayloadError`` when it would lie elsewhere, ``UnsupportedError`` for several."""
    path = Path(path)
    name = _config(path)[1].get("filename")
    if not isinstance(name, str) or "pipeline" in _config(path)[1]:
        raise UnsupportedError(f"{path / CONFIG}: describes no single decoder; this version converts model.decoder.filename")
    if Path(name).name != name:
        raise PayloadError(f"{path / CONFIG}: filename {name!r} lies outside the folder; expected a plain name")
    return path / name


def _config(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The configuration, and its part on the decoder."""
    config = folder.read_json(path / CONFIG)
    return config, folder.part(folder.part(config, "model"), "decoder")


def read(path: str | os.PathLike[str], findings: Findings) -> tuple[Any, Path]:
    """The annotated model of a folder, and the folder of its external data.

    Raises ``PayloadError`` for a configuration that cannot be read or names what the model does not have, and
    ``UnsupportedError`` for a model that is more than one decoder with key and value caches.
    """
    path = Path(path)
    config, decoder = _config(path)
    model = files.load(model_file(path))
    pairs = _pairs(model, decoder, path)
    _drop_types_of_constants(model)
    _say_head_size(model, {name for pair in pairs for name in pair}, decoder.get("head_size"))
    annotate.annotate(model, findings)
    for past, present in pairs:
        findings.left(past, present, "no operator of the graph can write it in place")
    _say_position(model, folder.part(decoder, "inputs").get("input_ids", "input_ids"), findings)
    _say_rows(model, folder.part(decoder, "inputs").get("input_ids", "input_ids"), _logits(decoder), findings)
    if not folder.part(config, "search").get("past_present_share_buffer", True):
        findings.note("genai_config.json does not ask for past_present_share_buffer; the caches are shared all the same")
    _describe(model, config, decoder, path)
    return model, path


def _pairs(model: Any, decoder: dict[str, Any], path: Path) -> list[tuple[str, str]]:
    inputs, outputs = folder.part(decoder, "inputs"), folder.part(decoder, "outputs")
    layers = decoder.get("num_hidden_layers", 0)
    known = {value.name for part in (model.graph.input, model.graph.output) for value in part}
    found = []
    for part in ("key", "value"):
        names = inputs.get(f"past_{part}_names"), outputs.get(f"present_{part}_names")
        if not all(isinstance(name, str) and name.count("%d") == 1 for name in names) or not isinstance(layers, int):
            raise UnsupportedError(f"{path / CONFIG}: names no past and present {part} caches; this version needs them")
        for layer in range(layers):
            past, present = (str(name).replace("%d", str(layer)) for name in names)
            for name in (past, present):
                if name not in known:
                    raise PayloadError(f"{path / CONFIG}: names {name!r}, which the model does not have; build it again")
            found.append((past, present))
    return found


def _drop_types_of_constants(model: Any) -> None:
    """Builders declare a rank of 0 for some lists; a constant's type is that of its content."""
    constants = {node.output[0] for node in model.graph.node if node.op_type == "Constant"}
    kept = [value for value in model.graph.value_info if value.name not in constants]
    del model.graph.value_info[:]
    model.graph.value_info.extend(kept)


def _say_head_size(model: Any, caches: set[str], size: Any) -> None:
    """Builders leave the last dimension of float caches to the configuration."""
    if not isinstance(size, int) or size < 1:
        return
    for value in (*model.graph.input, *model.graph.output):
        kind = value.type.tensor_type
        if value.name in caches and kind.elem_type in _FLOATS and len(kind.shape.dim) == 4 and kind.shape.dim[3].dim_param:
            kind.shape.dim[3].dim_value = size


def _say_position(model: Any, ids: str, findings: Findings) -> None:
    """Let the attentions that write caches take their lengths from a new input rather than from a mask's sum and shape."""
    editor = Editor(model)
    nodes = [node for node in editor.nodes if node.op_type == "GroupQueryAttention" and node.output_alias]
    masks = {_mask_of(editor, node) for node in nodes}
    mask = masks.pop() if len(masks) == 1 else None
    if mask is None or ids not in editor.inputs or POSITION in editor.inputs:
        findings.note("the attentions take their lengths from elsewhere than an attention mask; they stay as they are")
        return
    position = editor.add_input(POSITION, TensorProto.INT64, [])
    batch = editor.add("Shape", [ids], "batch_size", start=0, end=1)
    rows = editor.add("Shape", [ids], "new_length", start=1, end=2)
    end = editor.add("Add", [position, rows], "end_position")
    scalar = editor.add("Squeeze", [end], "end_position.scalar")
    last = editor.add("Sub", [end, editor.ints(1)], "last_position")
    lasts = editor.add("Expand", [last, batch], "last_positions")
    lengths = editor.add("Cast", [lasts], "seqlens_k", to=TensorProto.INT32)
    total = editor.add("Cast", [scalar], "total_sequence_length", to=TensorProto.INT32)
    for node in nodes:
        editor.redirect(node.input[_LENGTHS], lengths, [(node, _LENGTHS)])
        editor.redirect(node.input[_TOTAL], total, [(node, _TOTAL)])
        node.metadata_props.add(key=POSITION_KEY, value=position)
    for name in editor.finish():
        findings.note(f"input {name!r} became {position!r}: the caches' length; rows of a batch are all as long, without padding")


def _say_rows(model: Any, ids: str, logits: str, findings: Findings) -> None:
    """Let an input choose the rows whose logits are computed, where the model computes them for every token."""
    editor = Editor(model)
    head, value, tokens = editor.maker(logits), editor.outputs.get(logits), editor.inputs.get(ids)
    if head is None or head.op_type not in _PRODUCTS or value is None or tokens is None or ROWS in editor.inputs:
        return
    dims, token_dims = (part.type.tensor_type.shape.dim for part in (value, tokens))
    if len(dims) != 3 or len(token_dims) != 2 or not dims[1].dim_param or dims[1].dim_param != token_dims[1].dim_param:
        return
    rows = editor.add_input(ROWS, TensorProto.INT64, ["k"])
    picked = editor.add("Gather", [head.input[0], rows], f"{head.input[0]}.rows", axis=1)
    editor.redirect(head.input[0], picked, [(head, 0)])
    dims[1].dim_param = "k"
    editor.finish()
    findings.note(f"input {ROWS!r}: the rows of the tokens whose logits are computed")


def _logits(decoder: dict[str, Any]) -> str:
    return str(folder.part(decoder, "outputs").get("logits", "logits"))


def _mask_of(editor: Editor, node: Any) -> str | None:
    """The attention mask whose row sums less 1, and whose length, are the lengths that a GroupQueryAttention takes."""
    lengths, total = (_uncast(editor, node.input[slot]) for slot in (_LENGTHS, _TOTAL))
    sub, gather = editor.maker(lengths, "Sub"), editor.maker(total, "Gather")
    if sub is None or gather is None or not _is(editor, sub.input[1], 1) or not _is(editor, gather.input[1], 1):
        return None
    total_of, shape = editor.maker(sub.input[0], "ReduceSum"), editor.maker(gather.input[0], "Shape")
    if total_of is None or shape is None or total_of.input[0] != shape.input[0] or shape.attribute:
        return None
    mask = total_of.input[0]
    axis = len(total_of.input) > 1 and _is(editor, total_of.input[1], 1)
    return mask if axis and mask in editor.inputs else None


def _uncast(editor: Editor, name: str) -> str:
    cast = editor.maker(name, "Cast")
    return name if cast is None else str(cast.input[0])


def _is(editor: Editor, name: str, value: int) -> bool:
    array = editor.array(name)
    return array is not None and array.size == 1 and bool(np.all(array == value))


def _describe(model: Any, config: dict[str, Any], decoder: dict[str, Any], path: Path) -> None:
    """What a text interface needs, as metadata."""
    about = folder.part(config, "model")
    found = {value.name for value in model.graph.input}
    names = folder.part(decoder, "inputs")
    inputs = {role: str(names[role]) for role in _KEPT if names.get(role) in found}
    inputs |= {ROWS: ROWS} if ROWS in found else {}
    folder.describe(model, path, inputs=inputs, logits=_logits(decoder), special=about)
    length = about.get("context_length")
    if isinstance(length, int) and length > 0:
        set_metadata(model, "tenonnx.context_length", str(length))
    if isinstance(about.get("type"), str):
        set_metadata(model, "tenonnx.architecture", about["type"])
