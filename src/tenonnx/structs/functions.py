"""The decoders of block formats, as ONNX functions: ``F(leaf_0 [N, …], leaf_1 [N, …], …) → [N, *block_shape]``, FLOAT.

Inputs are the leaves of one block type in declaration order, bound by position, with the number of blocks N as first axis;
a constant has no such axis. A component of a packing arrives in the smallest unsigned type that holds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tenonnx.errors import CheckError, UnsupportedError
from tenonnx.schema.domains import FORMATS_DOMAIN, VERSION
from tenonnx.schema.messages import AttributeProto, FunctionProto, from_onnx, to_onnx
from tenonnx.structs.layout import Leaf

OPSET = 24
STANDARD = ("", "ai.onnx")  # the two spellings of onnx's own domain


def parse(name: str, text: str) -> Any:
    """The FunctionProto of a text such as ``(d, q) => (y) { y = Mul(d, q) }``, in the domain of formats."""
    from onnx import parser

    try:
        return from_onnx(parser.parse_function(f'<opset_import: ["" : {OPSET}], domain: "{FORMATS_DOMAIN}">\n{name} {text}'))
    except parser.ParseError as error:
        raise CheckError(f"decoder of {name} is no ONNX text such as (d, q) => (y) {{ y = Mul(d, q) }}: {error}") from error


def adopted(name: str, function: Any) -> Any:
    """A FunctionProto, of stock onnx or of this package, or an object with ``to_function_proto``, under the name of a format."""
    if hasattr(function, "to_function_proto"):
        function = function.to_function_proto()
    own = FunctionProto.FromString(function.SerializeToString())
    own.domain, own.name, own.overload = FORMATS_DOMAIN, name, ""
    return own


def evaluated(function: Any) -> Callable[[Any], Any]:
    """F as a Python function of a view of N blocks, run by onnx's reference evaluator."""
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(to_onnx(function))

    def run(view: Any) -> Any:
        leaves = view.leaves() if hasattr(view, "leaves") else (view,)
        return evaluator.run(None, dict(zip(function.input, leaves, strict=True)), attributes={})[0]

    return run


def encoding(function: Any) -> Callable[[Any], list[Any]]:
    """E as a Python function from FLOAT[N, *block_shape] to the leaves in order, run by onnx's reference evaluator."""
    from onnx.reference import ReferenceEvaluator

    try:
        evaluator = ReferenceEvaluator(to_onnx(function))
    except Exception as error:  # the evaluator has no exceptions of its own
        raise UnsupportedError(f"encoder {function.name!r}: no engine runs it: {error}") from error

    def run(values: Any) -> list[Any]:
        try:
            return list(evaluator.run(None, {function.input[0]: values}, attributes={}))
        except Exception as error:
            raise UnsupportedError(f"encoder {function.name!r}: fails for FLOAT{list(values.shape)}: {error}") from error

    return run


def block_order(grid_rank: int, block_rank: int) -> list[int]:
    """The permutation of [*grid, *block] that puts each axis of a block behind the axis of the grid that it divides."""
    lead = grid_rank - block_rank
    return [*range(lead), *(axis for pair in range(block_rank) for axis in (lead + pair, grid_rank + pair))]


def root_decoder(name: str, inputs: Sequence[str], block_shape: Sequence[int], grid: Sequence[int], shape: Sequence[int]) -> Any:
    """The decoder of an array of blocks: a call of F, then a Reshape to ``shape``.

    Blocks over several dimensions are put in place by a Reshape to the grid of blocks and a Transpose before that.
    """
    decoder = FunctionProto(name="decode", domain=FORMATS_DOMAIN, input=inputs, output=["/value"])
    decoder.opset_import.add(domain="", version=OPSET)
    decoder.opset_import.add(domain=FORMATS_DOMAIN, version=VERSION)
    decoder.node.add(op_type=name, domain=FORMATS_DOMAIN, input=inputs, output=["/blocks"])
    blocks = "/blocks"
    if len(block_shape) > 1:
        _reshape(decoder, blocks, [*grid, *block_shape], "/grid")
        node = decoder.node.add(op_type="Transpose", input=["/grid"], output=["/ordered"])
        node.attribute.add(name="perm", type=AttributeProto.INTS, ints=block_order(len(grid), len(block_shape)))
        blocks = "/ordered"
    _reshape(decoder, blocks, shape, "/value")
    return decoder


def root_encoder(encoder: Any, block_shape: Sequence[int], grid: Sequence[int]) -> Any:
    """The encoder of an array of blocks: its value as [N, *block_shape], then a call of E."""
    root = FunctionProto(name="encode", domain=FORMATS_DOMAIN, input=["/value"], output=encoder.output)
    root.opset_import.add(domain="", version=OPSET)
    root.opset_import.add(domain=FORMATS_DOMAIN, version=VERSION)
    value = "/value"
    if len(block_shape) > 1:
        order = block_order(len(grid), len(block_shape))
        sizes = [*grid, *block_shape]
        _reshape(root, value, [sizes[axis] for axis in order], "/split")
        node = root.node.add(op_type="Transpose", input=["/split"], output=["/grid"])
        node.attribute.add(name="perm", type=AttributeProto.INTS, ints=sorted(range(len(order)), key=order.__getitem__))
        value = "/grid"
    _reshape(root, value, [math.prod(grid), *block_shape], "/blocks")
    root.node.add(op_type=encoder.name, domain=encoder.domain, input=["/blocks"], output=encoder.output)
    return root


def _reshape(decoder: Any, source: str, shape: Sequence[int], target: str) -> None:
    constant = decoder.node.add(op_type="Constant", output=[f"{target}.shape"])
    constant.attribute.add(name="value_ints", type=AttributeProto.INTS, ints=shape)
    node = decoder.node.add(op_type="Reshape", input=[source, f"{target}.shape"], output=[target])
    # Without it a dimension of 0 would stand for that of the source.
    node.attribute.add(name="allowzero", type=AttributeProto.INT, i=1)


def reshape_target(decoder: Any) -> tuple[int, ...] | None:
    """The shape that the last two nodes of a root's decoder, a Constant and a Reshape, give its value."""
    if len(decoder.node) < 3:
        return None
    constant, reshape = decoder.node[-2:]
    if constant.op_type != "Constant" or reshape.op_type != "Reshape" or len(constant.attribute) != 1:
        return None
    return tuple(constant.attribute[0].ints)


def index(model: Any) -> dict[tuple[str, str, str], Any]:
    """The local functions of a model by (domain, name, overload)."""
    return {(function.domain, function.name, function.overload): function for function in model.functions}


def signature_faults(decoder: Any, places: Sequence[Leaf]) -> Iterator[str]:
    """How the inputs and outputs of a decoder fail to fit the leaves that are bound to them by position."""
    if len(decoder.input) != len(places):
        listed = ", ".join(leaf.path or "values" for leaf in places) or "none"
        yield f"takes {len(decoder.input)} inputs; expected one for each of the {len(places)} leaves: {listed}"
    if len(decoder.output) != 1:
        yield f"gives {len(decoder.output)} outputs; expected the one logical value"
    if decoder.attribute:
        yield f"takes the attributes {', '.join(map(str, decoder.attribute))}, which nothing sets; give them defaults"


def encoder_faults(encoder: Any, places: Sequence[Leaf]) -> Iterator[str]:
    """How the input and outputs of an encoder fail to fit the value and the leaves without constants, by position."""
    expected = [leaf.path or "values" for leaf in places if leaf.constant is None]
    if (len(encoder.input), len(encoder.output)) != (1, len(expected)):
        yield (
            f"takes {len(encoder.input)} inputs and gives {len(encoder.output)} outputs; "
            f"expected 1 and one for each of the {len(expected)} leaves: {', '.join(expected)}"
        )
    if encoder.attribute:
        yield f"takes the attributes {', '.join(map(str, encoder.attribute))}, which nothing sets; give them defaults"


def normal_form(function: Any) -> tuple[Any, ...]:
    """What a function computes, as a value to compare: names of values are numbered, its own name and all remarks left out."""
    numbers: dict[str, int] = {"": 0}  # an empty name is an input that is not given

    def read(names: Iterable[str]) -> tuple[int, ...]:
        return tuple(numbers.setdefault(name, len(numbers)) for name in names)

    inputs = read(function.input)
    nodes = tuple(
        (
            "" if node.domain in STANDARD else node.domain,
            node.op_type,
            node.overload,
            read(node.input),
            tuple(sorted(_bytes_of(attribute) for attribute in node.attribute)),
            read(node.output),
        )
        for node in function.node
    )
    opset = [entry.version for entry in function.opset_import if entry.domain in STANDARD]
    defaults = tuple(_bytes_of(attribute) for attribute in function.attribute_proto)
    return inputs, nodes, read(function.output), tuple(opset), tuple(function.attribute), defaults


def _bytes_of(attribute: Any) -> bytes:
    bare = AttributeProto()
    bare.CopyFrom(attribute)
    bare.ClearField("doc_string")
    return bare.SerializeToString(deterministic=True)
