"""ShapesContext: types through aliases, the rules of this domain's operators, and agreement with onnx's own inference."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings

from tenonnx import AliasError, CapacityError, CheckError, ShapeError, ShapesContext, SymTensor
from tenonnx.schema.messages import FunctionProto, GraphProto, to_onnx
from tenonnx.shapes.symbols import dims_of
from tests.graphs import Case, graphs
from tests.models import BOOL, FLOAT, FLOAT16, INT64, Graph, cache_model, declare, spec_example


def test_the_updated_cache_has_type_and_shape_of_the_cache() -> None:
    context = ShapesContext(spec_example())
    assert context["updated_cache"] == context["cache"] == SymTensor(FLOAT16, (2, "batch", "heads", "max_length", "head_size"))
    assert context.alias_root("updated_cache") == context.alias_root("cache") == "cache"
    assert context.alias_class("updated_cache") == ("cache", "updated_cache")
    assert context.alias_root("values") == "values" and context.alias_class("values") == ("values",)


def test_symbols_are_replaced_by_numbers() -> None:
    context = ShapesContext(spec_example(), {"batch": 3, "max_length": 16, "unused": 1})
    assert context["updated_cache"].dims == (2, 3, "heads", 16, "head_size")
    assert context["updated_cache"].shape is None
    dims = {"batch": 3, "max_length": 16, "heads": 2, "head_size": 4, "new_length": 5}
    assert ShapesContext(spec_example(), dims)["updated_cache"].shape == (2, 3, 2, 16, 4)
    with pytest.raises(ShapeError, match="negative"):
        ShapesContext(spec_example(), {"batch": -1})


def test_what_is_learnt_for_either_name_is_visible_through_the_other_and_to_readers() -> None:
    g = Graph()
    g.input("cache", FLOAT, None, mutable=True)
    g.input("values", FLOAT, ["n", 4])
    g.input("position", INT64, [])
    g.update("cache", "values", "position", "updated")
    g.node("Transpose", ["cache"], "reader")
    g.output("updated", FLOAT, ["length", 4], alias_of="cache")
    g.output("reader", FLOAT, None)
    context = ShapesContext(g.model)
    assert context["cache"].dims == context["updated"].dims == ("length", 4)
    assert context["reader"].dims == (4, "length")
    g.body.output[0].type.tensor_type.shape.dim[0].dim_value = 7
    assert ShapesContext(g.model)["cache"].dims == (7, 4)


@pytest.mark.parametrize(
    ("dims", "elem_type", "text"),
    [([1, 2, 9, 4], FLOAT, "differ|9"), ([2, 8, 4], FLOAT, "rank|3"), ([1, 2, 8, 4], FLOAT16, "type")],
)
def test_aliased_names_of_two_types_are_refused(dims: list[int], elem_type: int, text: str) -> None:
    model = cache_model()
    model.graph.output[0].type.tensor_type.elem_type = elem_type
    declare(model.graph.output[0], elem_type, None)
    model.graph.output[0].type.tensor_type.shape.Clear()
    declare(model.graph.output[0], elem_type, dims)
    with pytest.raises((AliasError, ShapeError), match=text):
        ShapesContext(model)


def test_capacity_is_checked_where_it_is_known() -> None:
    model = cache_model(rows="n")
    ShapesContext(model)
    ShapesContext(model, {"n": 8})
    with pytest.raises(CapacityError, match=r"updated.*9 new rows do not fit the cache's 8"):
        ShapesContext(model, {"n": 9})


@pytest.mark.parametrize(("position", "rows", "fits"), [(0, 8, True), (5, 3, True), (6, 3, False), (-1, 1, False), (8, 0, True)])
def test_a_constant_position_is_part_of_the_check(position: int, rows: int, fits: bool) -> None:
    model = cache_model(rows=rows)
    del model.graph.input[2]
    model.graph.initializer.add(name="position", data_type=INT64, dims=[], int64_data=[position])
    if fits:
        ShapesContext(model)
        return
    with pytest.raises(CapacityError, match=f"position {position}"):
        ShapesContext(model)


def _with(model: Any, index: int, elem_type: int, dims: list[int | str]) -> Any:
    value = model.graph.input[index]
    value.type.Clear()
    declare(value, elem_type, dims)
    return model


@pytest.mark.parametrize(
    ("index", "elem_type", "dims", "text"),
    [
        (1, FLOAT16, [1, 2, 1, 4], "cast them to the cache's type"),
        (1, FLOAT, [2, 1, 4], "differ in rank"),
        (1, FLOAT, [1, 3, 1, 4], "differ in dimension 1"),
        (1, FLOAT, [1, 2, 1, 5], "differ in dimension 3"),
        (2, 6, [], "expected INT64"),
        (2, INT64, [1, 1], "expected INT64"),
        (2, INT64, [2], "another batch"),
    ],
)
def test_what_an_update_asks_of_its_inputs(index: int, elem_type: int, dims: list[int | str], text: str) -> None:
    with pytest.raises(ShapeError, match=text) as caught:
        ShapesContext(_with(cache_model(), index, elem_type, dims))
    assert "updated" in str(caught.value)


def test_axes_of_an_update() -> None:
    def model(**attributes: int) -> Any:
        g = Graph()
        g.input("cache", FLOAT, [4, 8], mutable=True)
        g.input("values", FLOAT, [4, 2])
        g.input("position", INT64, ["batch"])
        g.update("cache", "values", "position", "updated", **attributes)
        g.output("updated", FLOAT, [4, 8], alias_of="cache")
        return g.model

    ShapesContext(model(axis=1), {"batch": 4})
    for axis in (2, -3):
        with pytest.raises(ShapeError, match="outside a cache of rank 2"):
            ShapesContext(model(axis=axis))
    with pytest.raises(ShapeError, match="the update runs along it"):
        ShapesContext(model(axis=1, batch_axis=1), {"batch": 8})


def test_unknown_operators_of_this_domain_and_unknown_names() -> None:
    with pytest.raises(KeyError):
        ShapesContext(spec_example())["nowhere"]
    assert "nowhere" not in ShapesContext(spec_example())
    model = cache_model()
    model.graph.node[1].op_type = "Cacheupdate"
    with pytest.raises(CheckError, match="no operator 'Cacheupdate'"):
        ShapesContext(model)


def test_a_type_that_nobody_knows() -> None:
    g = Graph()
    g.model.opset_import.add(domain="custom", version=1)
    g.input("x", FLOAT, [1])
    g.node("Mystery", ["x"], "y", domain="custom")
    g.node("Relu", ["x"], "z")
    g.output("z", FLOAT, [1])
    context = ShapesContext(g.model)
    with pytest.raises(ShapeError, match=r"'y'.*declare it in value_info"):
        context["y"]


def test_one_local_function_called_on_two_capacities() -> None:
    function = FunctionProto(name="Twice", domain="local", input=["x"], output=["y"])
    function.opset_import.add(domain="", version=24)
    function.node.add(op_type="Concat", input=["x", "x"], output=["y"]).attribute.add(name="axis", type=2, i=0)
    g = Graph()
    g.model.opset_import.add(domain="local", version=1)
    g.model.functions.append(function)
    for name, capacity in (("a", 8), ("b", 16)):
        g.input(name, FLOAT, [capacity, 4], mutable=True)
        g.input(f"{name}.values", FLOAT, [1, 4])
        g.node("Twice", [name], f"{name}.twice", domain="local")
    g.input("position", INT64, [])
    for name, capacity in (("a", 8), ("b", 16)):
        g.update(name, f"{name}.values", "position", f"{name}.updated")
        g.output(f"{name}.updated", FLOAT, [capacity, 4], alias_of=name)
        g.output(f"{name}.twice", FLOAT, None)
    context = ShapesContext(g.model)
    assert [context[f"{name}.twice"].dims for name in "ab"] == [(16, 4), (32, 4)]
    assert [context[f"{name}.updated"].dims for name in "ab"] == [(8, 4), (16, 4)]


def test_through_if() -> None:
    body = GraphProto(name="body")
    body.node.add(op_type="Transpose", input=["x"], output=["t"])
    declare(body.output.add(name="t"), FLOAT, None)
    g = Graph()
    g.input("flag", BOOL, [])
    g.input("x", FLOAT, ["a", 3])
    node = g.body.node.add(op_type="If", input=["flag"], output=["y"])
    for name in ("then_branch", "else_branch"):
        node.attribute.add(name=name, type=5).g.CopyFrom(body)
    g.output("y", FLOAT, None)
    assert ShapesContext(g.model, {"a": 5})["y"].dims == (3, 5)


def test_an_output_that_is_an_input_keeps_the_input_s_type() -> None:
    g = Graph()
    g.input("x", FLOAT, [])
    g.node("Neg", ["x"], "y")
    g.output("x", FLOAT, None)
    g.output("y", FLOAT, None)
    context = ShapesContext(g.model)
    assert context["x"] == context["y"] == SymTensor(FLOAT, ())


def test_large_initializers_need_no_bytes() -> None:
    g = Graph()
    g.input("x", FLOAT, ["n", 3000])
    g.constant("w", np.zeros((3000, 2), np.float32))
    g.node("MatMul", ["x", "w"], "y")
    g.output("y", FLOAT, None)
    assert ShapesContext(g.model)["y"].dims == ("n", 2)


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs())
def test_as_onnx_infers(case: Case) -> None:
    model = case.graph.model
    inferred = onnx.shape_inference.infer_shapes(to_onnx(model), strict_mode=True, data_prop=True)
    context = ShapesContext(model)
    made = {name for node in model.graph.node for name in node.output}
    for value in (*inferred.graph.value_info, *inferred.graph.output):
        if value.name in made and value.type.tensor_type.HasField("shape"):
            # onnx numbers the symbols that it makes up; a twin with other nodes may count differently.
            assert unnamed(context[value.name].dims) == unnamed(dims_of(value.type.tensor_type.shape))


def unnamed(dims):
    return [None if isinstance(dim, str) and dim.startswith("unk__") else dim for dim in dims]
