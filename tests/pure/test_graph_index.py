"""Who makes a value, who reads it, and what lies inside which node."""

from __future__ import annotations

import pytest

from tenonnx.errors import CheckError
from tenonnx.schema.graph import ModelIndex, Port, Scope, attributes
from tenonnx.schema.messages import GraphProto, ModelProto


def graph(*nodes, inputs=(), outputs=(), into=None):
    """A graph of nodes "op in,in -> out,out"."""
    made = GraphProto() if into is None else into
    for name in inputs:
        made.input.add(name=name)
    for name in outputs:
        made.output.add(name=name)
    for text in nodes:
        op, _, rest = text.partition(" ")
        read, _, written = rest.partition("->")
        made.node.add(op_type=op, input=names(read), output=names(written))
    return made


def names(text):
    return [name.strip() for name in text.split(",")] if text.strip() else []


def nest(node, key, *nodes, **ports):
    return graph(*nodes, **ports, into=node.attribute.add(name=key, type=5).g)


def test_producers_and_readers_by_node_and_slot():
    scope = Scope(graph("Split x -> a,,b", "Add a,b -> c", "Sum c,a,,a -> y", inputs=["x"], outputs=["y", "c"]))
    assert scope.producer == {"a": Port(0, 0), "b": Port(0, 2), "c": Port(1, 0), "y": Port(2, 0)}
    assert scope.readers["a"] == [Port(1, 0), Port(2, 1), Port(2, 3)]
    assert scope.readers["x"] == [Port(0, 0)] and "y" not in scope.readers
    assert (scope.inputs, scope.outputs, dict(scope.captured)) == (["x"], ["y", "c"], {})


def test_a_sole_reader_is_the_only_use():
    scope = Scope(graph("Neg x -> a", "Abs a -> b", "Add b,b -> c", "Neg c -> d", inputs=["x"], outputs=["c", "d"]))
    assert scope.sole_reader("a") == Port(1, 0)
    assert scope.sole_reader("b") is None, "read twice by one node"
    assert scope.sole_reader("c") is None, "read, and an output too"
    assert scope.sole_reader("d") is None, "an output only"


def test_constants_are_known_from_the_start():
    made = graph("Sum a,b,c -> y", outputs=["y"])
    made.initializer.add(name="a")
    made.struct_initializer.add(name="b")
    made.sparse_initializer.add().values.name = "c"
    scope = Scope(made)
    assert list(scope.initializers) == ["a"] and list(scope.structs) == ["b"]


def test_an_initializer_may_be_the_default_of_an_input():
    made = graph("Neg a -> y", inputs=["a"], outputs=["y"])
    made.initializer.add(name="a")
    assert Scope(made).inputs == ["a"]


def test_declared_types_come_from_inputs_outputs_and_values():
    made = graph("Neg x -> a", "Neg a -> y", inputs=["x"], outputs=["y"])
    made.value_info.add(name="a", alias_of="x")
    assert {name: info.alias_of for name, info in Scope(made).value_info.items()} == {"a": "x", "y": "", "x": ""}


# ---- Names that do not say which value is meant -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (graph("Neg x -> a", "Abs x -> a", inputs=["x"]), r"node #1 \(Abs\) of graph: output 'a' is defined twice"),
        (graph("Split x -> a,a", inputs=["x"]), r"node #0 \(Split\) of graph: output 'a' is defined twice"),
        (graph("Neg x -> x", inputs=["x"]), "output 'x' is defined twice"),
        (graph(inputs=["x", "x"]), "graph: input 'x' is defined twice"),
        (
            graph("Neg b -> a", "Neg x -> b", inputs=["x"]),
            r"node #0 \(Neg\) of graph: reads 'b', which no earlier node.*sort the nodes",
        ),
        (graph("Neg a -> a"), r"node #0 \(Neg\) of graph: reads 'a'"),
        (graph("Neg nothing -> a"), "reads 'nothing'"),
        (graph(outputs=["y"]), "output 'y' of graph: reads 'y'"),
    ],
)
def test_a_value_is_defined_once_and_before_its_readers(made, message):
    with pytest.raises(CheckError, match=message):
        Scope(made)


@pytest.mark.parametrize(("first", "second"), [("initializer", "initializer"), ("initializer", "struct_initializer")])
def test_an_initializer_is_defined_once(first, second):
    made = graph()
    getattr(made, first).add(name="w")
    getattr(made, second).add(name="w")
    with pytest.raises(CheckError, match="initializer 'w' is defined twice"):
        Scope(made)


def test_a_node_does_not_redefine_an_initializer():
    made = graph("Neg x -> w", inputs=["x"])
    made.struct_initializer.add(name="w")
    with pytest.raises(CheckError, match="output 'w' is defined twice"):
        Scope(made)


def test_a_node_that_reads_a_later_value_inside_a_branch():
    made = graph("If c ->", "Neg c -> late", inputs=["c"])
    nest(made.node[0], "then_branch", "Neg late -> y", outputs=["y"])
    with pytest.raises(CheckError, match=r"node #0 \(If\) of graph: reads 'late'"):
        Scope(made)


# ---- Scopes inside nodes ------------------------------------------------------------------------------------------------


def test_what_branches_read_counts_as_read_by_the_if():
    made = graph("Neg x -> a", "If c -> y", inputs=["x", "c"], outputs=["y"])
    made.node[1].name = "choice"
    nest(made.node[1], "then_branch", "Neg a -> t", outputs=["t"])
    nest(made.node[1], "else_branch", outputs=["x"])
    scope = Scope(made)
    assert scope.readers["a"] == [Port(1, -1)] and Port(1, -1) in scope.readers["x"]
    assert list(scope.children) == [1] and list(scope.children[1]) == ["then_branch", "else_branch"]
    then = scope.children[1]["then_branch"]
    assert list(then.captured) == ["a"] and then.parent is scope and then.path == "graph/choice.then_branch"
    assert list(scope.children[1]["else_branch"].captured) == ["x"]
    assert scope.sole_reader("a") == Port(1, -1)


def test_a_loop_body_reads_its_own_inputs_and_captures_the_rest():
    made = graph("Loop n,c,x -> y", inputs=["n", "c", "x", "w"], outputs=["y"])
    nest(made.node[0], "body", "Mul v,w -> v2", "Identity cond -> go", inputs=["i", "cond", "v"], outputs=["go", "v2"])
    scope = Scope(made)
    assert list(scope.children[0]["body"].captured) == ["w"]
    assert scope.readers["w"] == [Port(0, -1)]
    assert scope.readers["x"] == [Port(0, 2)]


def test_a_scan_body_that_captures_nothing():
    made = graph("Scan x -> y", inputs=["x"], outputs=["y"])
    nest(made.node[0], "body", "Neg row -> out", inputs=["row"], outputs=["out"])
    assert not Scope(made).children[0]["body"].captured


def test_a_capture_passes_through_every_scope_on_the_way():
    made = graph("If c -> y", inputs=["c", "x"], outputs=["y"])
    middle = nest(made.node[0], "then_branch", "If c -> m", outputs=["m"])
    nest(middle.node[0], "then_branch", "Neg x -> i", outputs=["i"])
    scope = Scope(made)
    assert scope.readers["x"] == [Port(0, -1)]
    assert list(scope.children[0]["then_branch"].captured) == ["c", "x"]
    assert [inner.path for inner in scope.walk()] == ["graph", "graph/If.then_branch", "graph/If.then_branch/If.then_branch"]


def test_a_name_of_its_own_hides_the_outer_one():
    made = graph("Neg x -> v", "If c -> y", inputs=["x", "c"], outputs=["y"])
    nest(made.node[1], "then_branch", "Neg c -> v", "Abs v -> t", outputs=["t"])
    scope = Scope(made)
    assert "v" not in scope.readers and list(scope.children[1]["then_branch"].captured) == ["c"]


def test_lists_of_graphs_are_scopes_too():
    made = graph("Custom x -> y", inputs=["x"], outputs=["y"])
    attribute = made.node[0].attribute.add(name="bodies", type=10)
    for _ in range(2):
        graph("Neg x -> t", into=attribute.graphs.add())
    assert list(Scope(made).children[0]) == ["bodies[0]", "bodies[1]"]


def nested(depth):
    model = ModelProto()
    place = graph("If c ->", inputs=["c", "x"], into=model.graph)
    for _ in range(depth - 1):
        place = nest(place.node[0], "then_branch", "If c ->")
    nest(place.node[0], "then_branch", "Neg x -> y")
    return model


def test_deep_nesting():
    index = ModelIndex(nested(100))
    assert len(list(index.scopes())) == 101
    assert index.main.readers["x"] == [Port(0, -1)]


@pytest.mark.parametrize("depth", [101, 500])
def test_nesting_past_the_limit(depth):
    with pytest.raises(CheckError, match="more than 100 deep"):
        ModelIndex(nested(depth))


# ---- Local functions ----------------------------------------------------------------------------------------------------


def function(model, name, *nodes, inputs=("x",), outputs=("y",), overload=""):
    made = model.functions.add(domain="d", name=name, input=inputs, output=outputs, overload=overload)
    made.node.extend(graph(*nodes).node)
    return made


def test_a_function_is_a_scope_with_bare_names():
    model = ModelProto()
    function(model, "F", "Neg x -> a", "Abs a -> y").value_info.add(name="a", alias_of="x")
    function(model, "F", "Abs x -> y", overload="other")
    index = ModelIndex(model)
    scope = index.functions["d", "F", ""]
    assert (scope.inputs, scope.outputs, scope.path) == (["x"], ["y"], "function d.F")
    assert scope.value_info["a"].alias_of == "x"
    assert [found.path for found in index.scopes()] == ["graph", "function d.F", "function d.F"]


def test_a_function_captures_nothing():
    model = ModelProto()
    graph(inputs=["w"], into=model.graph)
    function(model, "F", "Add x,w -> y")
    with pytest.raises(CheckError, match=r"of function d\.F: reads 'w'"):
        ModelIndex(model)


def test_a_scope_inside_a_function_captures_from_it():
    model = ModelProto()
    body = function(model, "F", "If c -> y", inputs=("c", "x"))
    nest(body.node[0], "then_branch", "Neg x -> t", outputs=["t"])
    assert ModelIndex(model).functions["d", "F", ""].readers["x"] == [Port(0, -1)]


def test_a_function_that_is_defined_twice():
    model = ModelProto()
    function(model, "F", "Neg x -> y")
    function(model, "F", "Abs x -> y")
    with pytest.raises(CheckError, match=r"function d\.F: overload '' is defined twice"):
        ModelIndex(model)


def test_attributes_are_python_values():
    node = graph("Op ->").node[0]
    node.attribute.add(name="axis", type=2, i=-2)
    node.attribute.add(name="names", type=8, strings=[b"a"])
    nest(node, "body", "Neg x -> y")
    found = attributes(node)
    assert found["axis"] == -2 and found["names"] == [b"a"] and found["body"].node[0].op_type == "Neg"
