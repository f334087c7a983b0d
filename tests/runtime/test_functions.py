"""Local functions that touch a cache: each call is a part of the graph, with names and capacities of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tenonnx import CheckError, Session, ShapesContext, UnsupportedError, check, plan, writable
from tenonnx.schema.messages import FunctionProto, ModelProto, ValueInfoProto
from tests.models import DOMAIN, FLOAT, INT64, Graph
from tests.oracle.functional import evaluate, updated


def function(name: str, inputs: list[str], outputs: list[str], attributes: tuple[str, ...] = ()) -> tuple[Graph, Any]:
    """A graph to write the body in, and the function that it becomes part of by ``add``."""
    made = FunctionProto(name=name, domain="local", input=inputs, output=outputs, attribute=attributes)
    made.opset_import.add(domain="", version=24)
    made.opset_import.add(domain=DOMAIN, version=1)
    return Graph(), made


def add(g: Graph, body: Graph, made: Any) -> None:
    made.node.extend(body.body.node)
    g.model.functions.append(made)
    if not any(opset.domain == "local" for opset in g.model.opset_import):
        g.model.opset_import.add(domain="local", version=1)


def append_model(capacities: tuple[int, ...] = (8, 5)) -> Any:
    """Append(cache, values, position) → (updated, doubled), called once per cache, each of its own capacity."""
    g = Graph()
    body, append = function("Append", ["c", "v", "p"], ["u", "d"])
    body.node("Add", ["v", "v"], "vv")
    body.update("c", "vv", "p", "u")
    body.node("Add", ["u", "u"], "d")
    add(g, body, append)
    g.input("values", FLOAT, [2, "n", 3])
    g.input("position", INT64, [])
    for number, capacity in enumerate(capacities):
        g.input(f"cache{number}", FLOAT, [2, capacity, 3], mutable=True)
        g.node("Append", [f"cache{number}", "values", "position"], f"updated{number}", f"double{number}", domain="local")
        g.output(f"updated{number}", FLOAT, [2, capacity, 3], alias_of=f"cache{number}")
        g.output(f"double{number}", FLOAT, [2, capacity, 3])
    return g.model


def numbers(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(np.float32)


def check_run(model: Any, inputs: dict[str, np.ndarray], mutable: tuple[str, ...] = ("cache",), threads: int = 2) -> None:
    """A run gives what copying everything gives, in the caller's own arrays."""
    expected = evaluate(model, inputs)
    given = {name: writable(value.copy()) if name in mutable else value for name, value in inputs.items()}
    found = Session(model, threads=threads).run(given)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    for output in model.graph.output:
        if output.alias_of:
            assert any(found[output.name] is bound.array for name, bound in given.items() if name in mutable)


def test_one_function_on_two_capacities() -> None:
    model = append_model()
    assert check(model) == []
    shapes = ShapesContext(model, dims={"n": 2})
    assert [shapes[name].dims for name in ("double0", "double1", "updated1/vv")] == [(2, 8, 3), (2, 5, 3), (2, 2, 3)]
    assert shapes.alias_root("updated1") == "cache1" and shapes.alias_class("updated1") == ("cache1", "updated1")
    inputs = {"values": numbers(2, 2, 3), "position": np.array(3), "cache0": numbers(2, 8, 3), "cache1": numbers(2, 5, 3)}
    check_run(model, inputs, ("cache0", "cache1"))


def test_the_check_of_each_call_uses_its_own_capacity() -> None:
    session = Session(append_model(), threads=1)
    caches = {"cache0": numbers(2, 8, 3), "cache1": numbers(2, 5, 3)}
    before = {name: value.copy() for name, value in caches.items()}
    with pytest.raises(Exception, match=r"double1|updated1.*capacity of 5"):
        bound = {name: writable(value) for name, value in caches.items()}
        session.run({"values": numbers(2, 2, 3), "position": np.array(4), **bound})
    for name, value in caches.items():
        np.testing.assert_array_equal(value, before[name])


def test_functions_in_functions_with_attributes_and_default() -> None:
    g = Graph()
    inner_body, inner = function("Inner", ["c", "v", "p"], ["u"], ("where",))
    node = inner_body.body.node.add(op_type="CacheUpdate", domain=DOMAIN, input=["c", "v", "p"], output=["u"])
    node.output_alias.add(output_index=0, input_index=0, kind=1)
    node.attribute.add(name="axis", type=2, ref_attr_name="where")
    outer_body, outer = function("Outer", ["c", "v", "p"], ["u", "p"])
    outer.attribute_proto.add(name="axis", type=2, i=0)
    call = outer_body.body.node.add(op_type="Inner", domain="local", input=["c", "v", "p"], output=["u"])
    call.attribute.add(name="where", type=2, ref_attr_name="axis")
    outer.opset_import.add(domain="local", version=1)
    add(g, inner_body, inner)
    add(g, outer_body, outer)
    g.input("cache", FLOAT, [6, 6], mutable=True)
    g.input("rows", FLOAT, [2, 6])
    g.input("columns", FLOAT, [6, 2])
    g.input("position", INT64, [])
    g.node("Outer", ["cache", "rows", "position"], "one", "same", domain="local")
    g.node("Outer", ["one", "columns", "same"], "two", domain="local", axis=1)
    g.node("Neg", ["one"], "y")
    g.output("two", FLOAT, [6, 6], alias_of="cache")
    g.output("y", FLOAT, [6, 6])
    assert check(g.model) == []
    inputs = {"cache": numbers(6, 6), "rows": numbers(2, 6), "columns": numbers(6, 2), "position": np.array(4)}
    # The reference evaluator has no defaults, nor references from function to function.
    one = updated(inputs["cache"], inputs["rows"], inputs["position"], axis=0)
    two = updated(one, inputs["columns"], inputs["position"], axis=1)
    found = Session(g.model).run({**inputs, "cache": writable(inputs["cache"])})
    np.testing.assert_array_equal(found["two"], two)
    np.testing.assert_array_equal(found["y"], -one)


def test_a_function_that_only_reads_a_cache_runs_before_its_update() -> None:
    g = Graph()
    body, read = function("Read", ["c"], ["y"])
    body.node("Neg", ["c"], "y")
    add(g, body, read)
    g.input("cache", FLOAT, [4, 2], mutable=True)
    g.input("values", FLOAT, [1, 2])
    g.input("position", INT64, [])
    g.update("cache", "values", "position", "updated")
    g.node("Read", ["cache"], "old", domain="local")
    g.output("updated", FLOAT, [4, 2], alias_of="cache")
    g.output("old", FLOAT, [4, 2])
    assert all(step.kernel is not None for step in plan(g.model).steps)
    check_run(g.model, {"cache": numbers(4, 2), "values": numbers(1, 2), "position": np.array(2)})


def test_a_function_without_caches_stays_onnxruntimes() -> None:
    model = append_model()
    body, other = function("Other", ["x"], ["y"])
    body.node("Sign", ["x"], "y")
    other.node.extend(body.body.node)
    model.functions.append(other)
    model.graph.node.add(op_type="Other", domain="local", input=["values"], output=["sign"])
    model.graph.output.add(name="sign").type.tensor_type.elem_type = FLOAT
    assert [step.label for step in plan(model, {"n": 2}).steps if step.kernel is None] == ["sign (Other)"]
    inputs = {"values": numbers(2, 2, 3), "position": np.array(3), "cache0": numbers(2, 8, 3), "cache1": numbers(2, 5, 3)}
    check_run(model, inputs, ("cache0", "cache1"))


def spoiled(how: str) -> ModelProto:
    model = append_model((8,))
    call, append = model.graph.node[0], model.functions[0]
    if how == "call claims the values":
        call.output_alias.add(output_index=0, input_index=1, kind=1)
    elif how == "call claims the double":
        call.output_alias.add(output_index=1, input_index=0, kind=1)
    elif how == "formal bound to values":
        append.value_info.add(name="v").access = ValueInfoProto.READ_WRITE
    elif how == "READ_WRITE within":
        append.value_info.add(name="vv").access = ValueInfoProto.READ_WRITE
    elif how == "alias_of of another":
        append.value_info.add(name="u", alias_of="v")
        model.graph.output[0].alias_of = ""
        model.graph.output[0].name, model.graph.output[1].name = "double0", "values"
        model.graph.output[0].alias_of = ""
    elif how == "no alias inside":
        del append.node[1].output_alias[:]
    elif how == "READ_ONLY cache":
        model.graph.input[2].access = ValueInfoProto.READ_ONLY
    elif how == "forked":
        model.graph.node.add().CopyFrom(call)
        model.graph.node[1].output[:] = ["again", "double"]
    elif how == "recursive":
        append.node.add(op_type="Append", domain="local", input=["c", "v", "p"], output=["x", "y"])
    elif how == "too many inputs":
        call.input.append("values")
    return model


@pytest.mark.parametrize(
    ("how", "rule", "text"),
    [
        ("call claims the values", "body-alias", "shares the storage of 'values'"),
        ("call claims the double", "body-alias", "'double0' shares the storage of 'cache0'"),
        ("formal bound to values", "formal-inputs", "bound to 'values'"),
        ("READ_WRITE within", "formal-inputs", "no input of its body"),
        ("alias_of of another", "alias-of-agrees", "alias_of names 'values'"),
        ("no alias inside", "cache-update-alias", "add output_alias"),
        ("READ_ONLY cache", "alias-root", "a READ_ONLY input"),
        ("forked", "alias-fork", "all take over the storage of 'cache0'"),
        ("recursive", "graph-names", "calls itself"),
        ("too many inputs", "graph-names", "with 4 inputs"),
    ],
)
def test_bodies_that_break_a_rule(how: str, rule: str, text: str) -> None:
    found = check(spoiled(how))
    assert rule in {diagnostic.rule for diagnostic in found}
    assert any(text in diagnostic.message for diagnostic in found if diagnostic.rule == rule)
    with pytest.raises(CheckError):
        Session(spoiled(how))


def test_an_annotated_function_and_its_call_are_sound() -> None:
    model = append_model((8,))
    model.graph.node[0].output_alias.add(output_index=0, input_index=0, kind=1)
    model.functions[0].value_info.add(name="c").access = ValueInfoProto.READ_WRITE
    model.functions[0].value_info.add(name="u", alias_of="c")
    assert check(model) == []


def test_functions_of_another_opset() -> None:
    model = append_model()
    model.functions[0].opset_import[0].version = 21
    with pytest.raises(UnsupportedError, match="imports version 21 of domain ''"):
        Session(model)


def test_a_model_that_grows_past_every_limit() -> None:
    g = Graph()
    body, leaf = function("F0", ["c", "v", "p"], ["u"])
    body.update("c", "v", "p", "u")
    add(g, body, leaf)
    for depth in range(1, 40):
        body, made = function(f"F{depth}", ["c", "v", "p"], ["u"])
        body.node(f"F{depth - 1}", ["c", "v", "p"], "m", domain="local")
        body.node(f"F{depth - 1}", ["m", "v", "p"], "u", domain="local")
        add(g, body, made)
    g.input("cache", FLOAT, [4, 2], mutable=True)
    g.input("values", FLOAT, [1, 2])
    g.input("position", INT64, [])
    g.node("F39", ["cache", "values", "position"], "updated", domain="local")
    g.output("updated", FLOAT, [4, 2], alias_of="cache")
    with pytest.raises(UnsupportedError, match="nodes once functions"):
        Session(g.model)


def paged(how: str) -> Any:
    """PagedCacheUpdate in a function, or in a branch."""
    from tests.runtime.paged_models import updating

    model = updating((2, 3, 16, 64))
    (node,) = model.graph.node
    if how == "function":
        made = model.functions.add(name="F", domain="local", input=["t", "i", "v", "p"], output=["u"])
        made.opset_import.extend(model.opset_import)
        made.node.add().CopyFrom(node)
        made.node[0].input[:], made.node[0].output[:] = ["t", "i", "v", "p"], ["u"]
        model.opset_import.add(domain="local", version=1)
        model.graph.node[0].op_type, model.graph.node[0].domain = "F", "local"
    else:
        branches = []
        for result in ("u", "cache"):
            g = Graph()
            if result == "u":
                g.body.node.add().CopyFrom(node)
                g.body.node[0].output[:] = ["u"]
            g.body.output.add(name=result)
            branches.append(g)
        g = Graph()
        g.holding("If", ["flag"], "updated_cache", then_branch=branches[0], else_branch=branches[1])
        model.graph.node[0].CopyFrom(g.body.node[0])
        flag = model.graph.input.add(name="flag")
        flag.type.tensor_type.elem_type = 9
        flag.type.tensor_type.shape.SetInParent()
    return model


def test_pages_updated_in_a_function() -> None:
    from tenonnx.cache import PageSpec, PageTable

    table = PageTable(PageSpec(10, (2, 3, 16, 64)))
    table.create(0, "FP8_PAGE")
    address = table[0].address
    before = table[0].data.copy()
    values = np.ones((2, 3, 2, 64), np.float16)
    given = {"cache": writable(table), "page_id": np.array([0]), "position": np.array(3), "values": values}
    model = paged("function")
    assert check(model) == []
    found = Session(model).run(given)
    assert found["updated_cache"] is table and table[0].address == address
    assert (table[0].data != before).any()


def test_pages_updated_in_a_branch_are_refused() -> None:
    from tenonnx.cache import PageSpec, PageTable

    table = PageTable(PageSpec(10, (2, 3, 16, 64)))
    table.create(0, "FP8_PAGE")
    values = np.ones((2, 3, 2, 64), np.float16)
    given = {"cache": writable(table), "page_id": np.array([0]), "position": np.array(3), "values": values}
    with pytest.raises(UnsupportedError, match="stands in a branch"):
        Session(paged("branch")).run({**given, "flag": np.array(True)})
