"""The list of rules is that of the names under which the checker reports."""

from __future__ import annotations

import ast
from itertools import chain
from pathlib import Path

import pytest

import tenonnx
from tenonnx import ModelProto, SequenceProto, TensorProto, check
from tenonnx.check import RULES
from tenonnx.check.paged import page_findings
from tenonnx.structs import catalogue, declare
from tenonnx.structs.quantizations import Quantizations, declare_quantization
from tenonnx.structs.rules import PART_RULES, rule_name

PLACE = {"Finding": 0, "_error": 0, "Diagnostic": 2}  # of the rule among the arguments


def reported():
    """The names that stand in calls that make a finding, and those that are made from a rule's function."""
    for path in Path(tenonnx.__file__).parent.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in PLACE:
                rule = call.args[PLACE[call.func.id]]
                if isinstance(rule, ast.Constant):
                    yield rule.value
    yield from map(rule_name, chain(*PART_RULES.values()))


def test_every_rule_is_listed_once():
    listed = list(chain(*RULES.values()))
    assert len(listed) == len(set(listed))
    assert set(listed) == set(reported())


def test_a_rule_is_told_in_a_sentence():
    assert all(text.endswith(".") and " " in text for rules in RULES.values() for text in rules.values())


def test_every_rule_is_broken_by_a_test():
    written = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parents[1].rglob("test_*.py"))
    assert not [rule for rule in chain(*RULES.values()) if f'"{rule}"' not in written]


# ---- Rules on pages, codecs and operators, each broken once


def sound_model():
    """Pages FLOAT16[2, 32] in one of two formats at an input, a Q4_0 matrix [4, 32], and y = -x."""
    model = ModelProto(ir_version=12)
    model.opset_import.add(version=24)
    model.graph.name = "g"
    for name in ("Q4_0", "Q8_0"):
        declare_quantization(model, catalogue[name], TensorProto.FLOAT16)
    page = model.graph.input.add(name="pages").type.sequence_type.elem_type.quantized_tensor_type
    page.elem_type = TensorProto.FLOAT16
    for dim in (2, 32):
        page.shape.dim.add(dim_value=dim)
    page.allowed_quantized_type.extend([0, 1])
    model.graph.struct_initializer.add(name="w", type=declare(model, catalogue["Q4_0"], (4, 32)), raw_data=bytes(4 * 18))
    model.graph.node.add(op_type="Neg", input=["x"], output=["y"])
    for place, name in ((model.graph.input, "x"), (model.graph.output, "y")):
        declared = place.add(name=name).type.tensor_type
        declared.elem_type = TensorProto.FLOAT
        declared.shape.dim.add(dim_value=3)
    return model


def found(model):
    return {finding.rule for finding in check(model)}


def root(model):
    """The declaration of the matrix: the one that has a decoder of a shape."""
    return model.struct_types[model.graph.struct_initializer[0].type]


def page_type(model):
    return model.graph.input[0].type.sequence_type.elem_type.quantized_tensor_type


def keyed_by_text(model):
    held = page_type(model).SerializeToString()
    declared = model.graph.input[0].type.map_type
    declared.key_type = TensorProto.STRING
    declared.value_type.quantized_tensor_type.ParseFromString(held)


def external_constant(model):
    tensor = root(model).decoder.node.add(op_type="Constant", output=["k"]).attribute.add(name="value", type=4).t
    tensor.external_data.add(key="location", value="elsewhere")


def test_a_sound_model_breaks_no_rule():
    assert found(sound_model()) == set()


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("quantization-is-sound", lambda model: model.quantizations[0].ClearField("name")),
        ("page-type", lambda model: setattr(page_type(model), "elem_type", TensorProto.STRING)),
        ("page-keys", keyed_by_text),
        ("allowed-quantized-type", lambda model: page_type(model).allowed_quantized_type.append(2)),
        ("decoder-fits-its-leaves", lambda model: root(model).decoder.input.append("more")),
        ("encoder-fits-its-leaves", lambda model: root(model).encoder.input.extend(["x", "y"])),
        ("codec-is-self-contained", external_constant),
        ("operators", lambda model: model.graph.node.add(op_type="CacheRead", domain="tenonnx", input=["x"], output=["z"])),
        ("onnx-checker", lambda model: model.graph.node[0].input.append("x")),
    ],
)
def test_a_model_that_breaks_a_rule(rule, change):
    model = sound_model()
    change(model)
    assert rule in found(model)


def page_rules(change):
    """What is found in a container of two pages, sound before ``change`` had the container and its second page."""
    model, container = sound_model(), SequenceProto()
    container.value_type.CopyFrom(model.graph.input[0].type.sequence_type.elem_type)
    for _ in range(2):
        container.quantized_tensor_values.add(quantized_type=0, dims=[2, 32], raw_data=bytes(2 * 18))
    change(container, container.quantized_tensor_values[1])
    return {finding.rule for finding in page_findings(container, Quantizations(model), "pages")}


def test_sound_pages_break_no_rule():
    assert page_rules(lambda container, page: None) == set()


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("quantized-type", lambda container, page: setattr(page, "quantized_type", 7)),
        (
            "allowed-quantized-type",
            lambda container, page: container.value_type.quantized_tensor_type.allowed_quantized_type.pop(0),
        ),
        ("inline-quantization", lambda container, page: setattr(page.quantization, "elem_type", TensorProto.FLOAT)),
        ("page-elem-type", lambda container, page: setattr(container.value_type.quantized_tensor_type, "elem_type", 1)),
        ("page-shape", lambda container, page: page.dims.__setitem__(0, 1)),
        ("page-payload", lambda container, page: setattr(page, "raw_data", bytes(35))),
    ],
)
def test_a_page_that_breaks_a_rule(rule, change):
    assert rule in page_rules(change)
