"""Decoders that would never end, reach outside, or crash an engine: refused before an engine sees them."""

from __future__ import annotations

import pytest

from tenonnx import codecs, structs
from tenonnx.check.structs import check_structs
from tenonnx.errors import CheckError
from tenonnx.schema.domains import FORMATS_DOMAIN
from tenonnx.schema.messages import AttributeProto, ModelProto, StructProto, TensorProto
from tenonnx.structs import TypeLimit, functions, to_proto, u8

CAST = "(values) => (decoded) { decoded = Cast<to = 1>(values) }"


def calling(*bodies):
    """A model whose decoder calls the first of local functions f0, f1, …, each a text of operators over ``x``, giving ``y``."""
    model = ModelProto(ir_version=11)
    declaration = model.struct_types.add()
    declaration.CopyFrom(to_proto(u8[2]))
    declaration.decoder.CopyFrom(functions.parse("decode", "(x) => (y) { y = tenonnx.formats.f0(x) }"))
    declaration.decoder.opset_import.add(domain=FORMATS_DOMAIN, version=1)
    for number, body in enumerate(bodies):
        function = model.functions.add()
        function.CopyFrom(functions.parse(f"f{number}", f"(x) => (y) {{ {body} }}"))
        function.opset_import.add(domain=FORMATS_DOMAIN, version=1)
    return model


def refused(model, error, message):
    found = [(finding.kind, finding.where) for finding in check_structs(model)]
    assert found and {where for _, where in found} == {"struct_types[0].decoder"}
    assert {kind for kind, _ in found} == {"limit" if error is TypeLimit else "invalid"}
    value = StructProto(name="w", type=0, raw_data=b"\1\2")
    with pytest.raises(error, match=message):
        codecs.decode(value, model)
    with pytest.raises(error, match=message):
        structs.decoded_type(model, 0)


def call(number, source="x", target="y"):
    return f"{target} = tenonnx.formats.f{number}({source})"


def test_functions_that_call_one_another_in_a_circle():
    refused(calling(call(0)), CheckError, "calls itself")
    refused(calling(call(1), call(0)), CheckError, "calls itself")


def test_functions_that_double_forty_times():
    bodies = [f"{call(number + 1, 'x', 'a')} {call(number + 1, 'a')}" for number in range(30)]
    refused(calling(*bodies, "y = Cast<to = 1>(x)"), TypeLimit, "inlines to more than")


def test_a_long_chain_of_functions():
    bodies = [call(number + 1) for number in range(2000)]
    refused(calling(*bodies, "y = Cast<to = 1>(x)"), TypeLimit, "levels of calls")


@pytest.mark.parametrize("place", ["constant", "default", "nested", "function"])
def test_a_tensor_in_another_file_is_never_opened(place):
    model = calling("y = Cast<to = 1>(x)")
    decoder = model.struct_types[0].decoder
    outside = TensorProto(data_type=1, dims=[1], data_location=TensorProto.EXTERNAL)
    outside.external_data.add(key="location", value="/etc/passwd")
    body = model.functions[0] if place == "function" else decoder
    if place == "default":
        body.attribute_proto.add(name="t", type=AttributeProto.TENSOR).t.CopyFrom(outside)
    elif place == "nested":
        body.node[0].attribute.add(name="g", type=AttributeProto.GRAPH).g.initializer.append(outside)
    else:
        body.node.add(op_type="Constant", output=["c"]).attribute.add(name="value", type=AttributeProto.TENSOR).t.CopyFrom(
            outside
        )
    refused(model, CheckError, "keeps a tensor in another file")


def test_four_billion_blocks_are_not_listed_one_by_one():
    model = ModelProto(ir_version=11)
    root = structs.declare(model, structs.catalogue["Q4_1"], (2**20, 2**17))
    function = model.functions[0]
    function.node.add(op_type="Neg", input=[function.output[0]], output=["negated"])
    function.output[0] = "negated"
    assert list(check_structs(model)) == []
    assert structs.logical_shape(model, root) == [2**20, 2**17]


def test_attributes_that_nothing_sets():
    model = calling("y = Cast<to = 1>(x)")
    model.struct_types[0].decoder.attribute.append("alpha")
    refused(model, CheckError, "attributes alpha, which nothing sets")
