"""Each rule of the mutable-cache contract, met by a model that breaks it and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tenonnx
from tenonnx import CheckError, check
from tenonnx.check import raise_errors
from tenonnx.check.alias import LOCAL_RULES, STORAGE_RULES
from tenonnx.schema.messages import GraphProto, ValueAliasProto, ValueInfoProto, to_onnx
from tests.models import FLOAT, INT64, Graph, cache_model, declare, spec_example


def _port(model: Any) -> None:
    model.graph.node[1].output_alias.add(output_index=1, input_index=0, kind=ValueAliasProto.MUST_ALIAS)


def _missing_port(model: Any) -> None:
    model.graph.node[0].output_alias.add(output_index=0, input_index=2, kind=ValueAliasProto.MUST_ALIAS)


def _kind(model: Any) -> None:
    model.graph.node[0].output_alias.add(output_index=0, input_index=0)


def _twice(model: Any) -> None:
    model.graph.node[1].output_alias.add(output_index=0, input_index=0, kind=ValueAliasProto.MUST_ALIAS)


def _other_input(model: Any) -> None:
    model.graph.output[0].alias_of = "values"


def _unbacked(model: Any) -> None:
    model.graph.output[1].alias_of = "cache"


def _read_write_intermediate(model: Any) -> None:
    declare(info := model.graph.value_info.add(name="plain"), FLOAT, [1, 2, 8, 4])
    info.access = ValueInfoProto.READ_WRITE
    model.graph.node.add(op_type="Neg", input=["values"], output=["plain"])


def _read_write_initializer(model: Any) -> None:
    model.graph.input.add(name="w").access = ValueInfoProto.READ_WRITE
    declare(model.graph.input[-1], FLOAT, [1])
    model.graph.initializer.add(name="w", data_type=FLOAT, dims=[1], float_data=[0.0])


def _read_only_root(model: Any) -> None:
    model.graph.input[0].access = ValueInfoProto.READ_ONLY


def _initializer_root(model: Any) -> None:
    del model.graph.input[0]
    model.graph.initializer.add(name="cache", data_type=FLOAT, dims=[1, 2, 8, 4], raw_data=bytes(256))


def _intermediate_root(model: Any) -> None:
    model.graph.node.insert(0, type(model.graph.node[0])(op_type="Neg", input=["other"], output=["cache"]))
    model.graph.input[0].name = "other"


def _fork(model: Any) -> None:
    fork = model.graph.node.add()
    fork.CopyFrom(model.graph.node[1])
    fork.name = fork.output[0] = "second"


def _late_reader(model: Any) -> None:
    model.graph.node.add(op_type="Add", name="late", input=["cache", "new"], output=["sum"])


def _silent_output(model: Any) -> None:
    model.graph.output[0].ClearField("alias_of")


def _stale_output(model: Any) -> None:
    node = model.graph.node.add()
    node.CopyFrom(model.graph.node[1])
    node.name, node.input[0] = "second", "updated"
    node.output[0] = "updated.2"
    output = model.graph.output.add()
    output.CopyFrom(model.graph.output[0])
    output.name, output.alias_of = "updated.2", "cache"


def _no_alias(model: Any) -> None:
    del model.graph.node[1].output_alias[:]
    model.graph.output[0].ClearField("alias_of")


BREAKS: list[tuple[str, Callable[[Any], None], str]] = [
    ("alias-ports", _port, "names output 1; the node has outputs"),
    ("alias-ports", _missing_port, "names input 2; the node has inputs"),
    ("alias-kind", _kind, "set MUST_ALIAS"),
    ("one-alias-per-output", _twice, "aliased twice"),
    ("alias-of-agrees", _other_input, "alias_of names 'values'"),
    ("alias-of-backed", _unbacked, "no output_alias of the node that makes 'old' backs it"),
    ("read-write-inputs", _read_write_intermediate, "is READ_WRITE but no input"),
    ("read-write-inputs", _read_write_initializer, "has an initializer, which is never written"),
    ("alias-root", _read_only_root, "which is a READ_ONLY input"),
    ("alias-root", _initializer_root, "which is an initializer"),
    ("alias-root", _intermediate_root, "which is an intermediate value"),
    ("alias-fork", _fork, "all take over the storage of 'cache'"),
    ("alias-reader", _late_reader, "reads 'cache', the content before"),
    ("aliased-outputs", _silent_output, "has no alias_of"),
    ("stale-outputs", _stale_output, "return 'updated.2' instead"),
    ("cache-update-alias", _no_alias, "add output_alias"),
]


@pytest.mark.parametrize(("rule", "spoil", "text"), BREAKS, ids=[f"{rule}-{spoil.__name__}" for rule, spoil, _ in BREAKS])
def test_a_model_that_breaks_one_rule(rule: str, spoil: Callable[[Any], None], text: str) -> None:
    model = cache_model()
    assert check(model) == []
    spoil(model)
    found = check(model)
    assert {diagnostic.rule for diagnostic in found} == {rule}
    assert text in found[0].message and "graph" in found[0].where
    assert (found[0].severity, found[0].kind) == ("error", "invalid")
    with pytest.raises(CheckError, match=rf"\[{rule}\]"):
        raise_errors(model)
    with pytest.raises(CheckError):
        tenonnx.Session(model)


def test_an_alias_cycle_is_found_in_a_scope_that_has_one() -> None:
    from tenonnx.alias import AliasMap
    from tenonnx.alias.resolver import Alias
    from tenonnx.check.alias import alias_cycle
    from tenonnx.schema.graph import ModelIndex

    scope = ModelIndex(cache_model()).main
    aliases = AliasMap(scope)
    aliases.aliases = [Alias("cache", "updated", 1), Alias("updated", "cache", 1)]
    aliases._of = {alias.output: [alias] for alias in aliases.aliases}
    assert {diagnostic.rule for diagnostic in alias_cycle(scope, aliases)} == {"alias-cycle"}


def test_updates_in_the_body_of_another_operator_are_a_limit_not_a_fault() -> None:
    g = Graph()
    g.input("cache", FLOAT, [8, 4], mutable=True)
    g.body.input.add(name="many").type.sequence_type.elem_type.tensor_type.elem_type = FLOAT
    body = GraphProto(name="body")
    declare(body.input.add(name="one"), FLOAT, None)
    body.node.add(op_type="Identity", input=["cache"], output=["kept"]).output_alias.add(
        output_index=0, input_index=0, kind=ValueAliasProto.MUST_ALIAS
    )
    declare(body.output.add(name="kept"), FLOAT, [8, 4])
    node = g.body.node.add(op_type="SequenceMap", name="map", input=["many"], output=["y"])
    node.attribute.add(name="body", type=5).g.CopyFrom(body)
    g.output("y", FLOAT, [2, 8, 4])
    found = [diagnostic for diagnostic in check(g.model) if diagnostic.rule == "nested-aliases"]
    assert len(found) == 1 and found[0].kind == "limit" and "graph/map.body" in found[0].where


def test_every_rule_of_this_version_has_a_model_that_breaks_it() -> None:
    tested = {rule for rule, _, _ in BREAKS} | {"alias-cycle", "branch-roots"}
    named = {rule.__name__.replace("_", "-") for rule in (*LOCAL_RULES, *STORAGE_RULES)}
    # One function reports both faults of alias_of.
    assert named - {"read-write-inputs"} <= tested and "alias-of-backed" in tested


def test_the_example_of_the_specification_is_sound() -> None:
    assert check(spec_example()) == []


def test_stock_onnx_keeps_the_annotations() -> None:
    stock = to_onnx(spec_example())
    again = tenonnx.ModelProto.FromString(stock.SerializeToString())
    assert again == spec_example() and check(again) == []


def test_alias_of_may_name_any_ancestor() -> None:
    g = Graph()
    g.input("cache", FLOAT, [8, 4], mutable=True)
    g.input("values", FLOAT, [1, 4])
    g.input("position", INT64, [])
    g.update("cache", "values", "position", "one")
    g.update("one", "values", "position", "two")
    for ancestor in ("one", "cache"):
        del g.body.output[:]
        g.output("two", FLOAT, [8, 4], alias_of=ancestor)
        assert check(g.model) == []


def test_all_findings_come_at_once_and_each_says_where() -> None:
    model = cache_model()
    _kind(model)
    _silent_output(model)
    found = check(model)
    assert [diagnostic.rule for diagnostic in found] == ["alias-kind", "aliased-outputs"]
    assert str(found[0]) == "error: node old (Add) of graph: output_alias has kind UNDEFINED; set MUST_ALIAS [alias-kind]"
    with pytest.raises(CheckError, match=r"breaks 2 rules:\n  error: .*\n  error: "):
        raise_errors(model)


def test_names_out_of_order_are_one_finding() -> None:
    model = cache_model()
    model.graph.node[0].input[0] = "nowhere"
    assert [diagnostic.rule for diagnostic in check(model)] == ["graph-names"]


def test_types_that_cannot_share_storage() -> None:
    model = cache_model()
    model.graph.output[0].type.tensor_type.shape.dim[2].dim_value = 9
    assert [diagnostic.rule for diagnostic in check(model)] == ["shapes"]
