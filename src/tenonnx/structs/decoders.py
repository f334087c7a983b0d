"""A root's declared decoder: its signature, the model that runs it, and the type of what it gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tenonnx.errors import CheckError, TenonnxError
from tenonnx.schema.messages import FunctionProto, ModelProto, TensorProto, from_onnx, to_onnx
from tenonnx.structs import functions
from tenonnx.structs.builder import tensor_type
from tenonnx.structs.layout import Leaf, leaves
from tenonnx.structs.physical import TypeLimit
from tenonnx.structs.recognize import Recognizer

Key = tuple[str, str, str]
Local = dict[Key, Any]  # local functions by (domain, name, overload)

MAX_NODES = 16_384  # of a decoder with all calls inlined
MAX_LEVELS = 32
_IR_VERSION = 10
_DOMAIN, _NAME = "tenonnx.decoders", "decode"  # what the decoder is called in a model of its own


def bodies(function: Any) -> Iterator[Any]:
    """A function and every graph nested in its nodes."""
    pending: list[Any] = [function]
    while pending:
        body = pending.pop()
        yield body
        for node in body.node:
            for attribute in node.attribute:
                pending.extend((*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs))


def tensors(function: Any) -> Iterator[Any]:
    """Every tensor that a function holds, those of nested graphs included."""
    for body in bodies(function):
        nested = body is not function
        yield from body.initializer if nested else ()
        sparse = list(body.sparse_initializer) if nested else []
        defaults = () if nested else function.attribute_proto
        for attribute in (*defaults, *(attribute for node in body.node for attribute in node.attribute)):
            yield from (attribute.t, *attribute.tensors)
            sparse += [attribute.sparse_tensor, *attribute.sparse_tensors]
        for tensor in sparse:
            yield from (tensor.values, tensor.indices)


def called(decoder: Any, local: Local) -> list[Any]:
    """The local functions of the model that a decoder reaches, each once.

    Raises ``CheckError`` where functions call one another in a circle, and ``TypeLimit`` where inlining them would give more
    nodes or levels than this version runs: engines inline without asking.
    """
    sizes: dict[Key, tuple[int, int]] = {}  # nodes and levels of a function with all calls inlined

    def measure(function: Any, path: tuple[Key, ...]) -> tuple[int, int]:
        nodes, levels = 0, 1
        for node in (node for body in bodies(function) for node in body.node):
            key = (node.domain, node.op_type, node.overload)
            nodes += 1
            if key in path:
                raise CheckError(f"function {key[0]}.{key[1]} calls itself; a decoder has to come to an end")
            if key in local:
                if key not in sizes:
                    sizes[key] = measure(local[key], (*path, key)) if len(path) < MAX_LEVELS else (0, MAX_LEVELS)
                nodes, levels = nodes + sizes[key][0], max(levels, 1 + sizes[key][1])
        if nodes > MAX_NODES or levels > MAX_LEVELS:
            raise TypeLimit(f"decoder {decoder.name!r} inlines to more than {MAX_NODES} nodes or {MAX_LEVELS} levels of calls")
        return nodes, levels

    measure(decoder, ())
    return [local[key] for key in sizes]


def decoder_model(decoder: Any, places: Sequence[Leaf], local: Local) -> Any:
    """A model of stock onnx with one call of ``decoder``: inputs ``leaf_0``, ``leaf_1``, …, output ``value``.

    Raises ``CheckError`` when the decoder does not fit the leaves, or keeps tensors in other files.
    """
    for fault in functions.signature_faults(decoder, places):
        raise CheckError(f"decoder {decoder.name!r} {fault}")
    inputs = {f"leaf_{place}": tensor_type(leaf.elem_type.number, leaf.shape) for place, leaf in enumerate(places)}
    return _model_of(decoder, inputs, ["value"], local)


def encoder_model(encoder: Any, elem_type: int, shape: Sequence[int], places: Sequence[Leaf], local: Local) -> Any:
    """A model of stock onnx with one call of ``encoder``: input ``value``, outputs ``leaf_0``, …, of which ``places`` has none
    that is a constant; raises as ``decoder_model``."""
    if (len(encoder.input), len(encoder.output)) != (1, len(places)):
        found = f"takes {len(encoder.input)} inputs and gives {len(encoder.output)} outputs"
        raise CheckError(f"encoder {encoder.name!r} {found}; expected 1 and {len(places)}")
    outputs = [f"leaf_{place}" for place in range(len(places))]
    return _model_of(encoder, {"value": tensor_type(elem_type, tuple(shape))}, outputs, local)


def _model_of(function: Any, inputs: dict[str, Any], outputs: Sequence[str], local: Local) -> Any:
    reached = called(function, local)
    for body in (function, *reached):
        for tensor in tensors(body):
            if tensor.external_data or tensor.data_location == TensorProto.EXTERNAL:
                raise CheckError(f"function {body.name!r} keeps a tensor in another file; a decoder holds all that it needs")
    model = ModelProto(ir_version=_IR_VERSION)
    own = FunctionProto()
    own.CopyFrom(function)
    own.domain, own.name, own.overload = _DOMAIN, _NAME, ""
    while (own.domain, own.name, "") in local:
        own.name += "_"
    model.functions.extend((*reached, own))  # callees first, as the reference evaluator needs them
    model.opset_import.extend(function.opset_import)
    model.opset_import.add(domain=_DOMAIN, version=1)
    model.graph.name = _NAME
    model.graph.node.add(op_type=own.name, domain=_DOMAIN, input=list(inputs), output=outputs)
    for name, declared in inputs.items():
        model.graph.input.add(name=name, type=declared)
    for name in outputs:
        model.graph.output.add(name=name)
    return to_onnx(model)


def decoded_type(model: Any, type_index: int, recognizer: Recognizer | None = None) -> Any:
    """The TypeProto of the decoded value of ``model.struct_types[type_index]``.

    It comes from the recognized format, or else from onnx's shape inference over the decoder, whose unknown dims stay unset.
    Raises ``CheckError`` for a root without a decoder, or with one that does not fit its leaves.
    """
    recognizer = recognizer or Recognizer(model)
    known = recognizer(type_index)
    if known is not None:
        return tensor_type(TensorProto.FLOAT, known.shape)
    root = recognizer.types.declarations[type_index]
    where = f"struct_types[{type_index}]"
    if not root.HasField("decoder"):
        raise CheckError(f"{where}: has no decoder, so it stands for no tensor; add one, or read its fields with a view")
    return inferred_type(root.decoder, leaves(recognizer.types.node(type_index)), functions.index(model), where)


def inferred_type(decoder: Any, places: Sequence[Leaf], local: Local, where: str) -> Any:
    """The TypeProto of what a decoder gives for leaves of these types; ``CheckError`` when they do not fit."""
    import onnx

    try:
        # Without data propagation: it would list every element of a leaf of rank 1.
        inferred = onnx.shape_inference.infer_shapes(decoder_model(decoder, places, local), strict_mode=True)
    except TenonnxError as error:
        raise type(error)(f"{where}: {error}") from error
    except Exception as error:  # onnx raises its own InferenceError, and others for malformed nodes
        raise CheckError(f"{where}: decoder {decoder.name!r} does not fit its leaves: {error}") from error
    found = inferred.graph.output[0].type
    if found.WhichOneof("value") != "tensor_type":
        raise CheckError(f"{where}: decoder {decoder.name!r} gives no tensor")
    return from_onnx(found)


def logical_shape(model: Any, type_index: int, recognizer: Recognizer | None = None) -> list[int]:
    """The dims of the decoded value; raises as ``decoded_type``, and ``CheckError`` where they are not known in advance."""
    dims = decoded_type(model, type_index, recognizer).tensor_type.shape.dim
    if not all(dim.HasField("dim_value") for dim in dims):
        raise CheckError(f"struct_types[{type_index}]: the shape of its decoded value is not known before it is decoded")
    return [dim.dim_value for dim in dims]
