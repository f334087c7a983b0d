"""Plans: the order of steps, storage, the arena, and a verifier that refuses what is not sound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenonnx import AliasError, CapacityError, ExecutionPlan, ShapeError, UnsupportedError, plan
from tenonnx.plan.timeline import in_use, tenants
from tenonnx.plan.verify import verify
from tests.gguf_files import write_llama
from tests.graphs import Case, cached_graphs, graphs
from tests.models import FLOAT, INT64, Graph, cache_model, chain, spec_example

SETTINGS = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
DIMS = {"batch": 1, "heads": 2, "max_length": 8, "head_size": 4, "new_length": 2}


def kernels(found: ExecutionPlan) -> list[str | None]:
    return [step.kernel for step in found.steps]


def value(found: ExecutionPlan, name: str) -> Any:
    return next(row for row in found.values if row.name == name)


def storage(found: ExecutionPlan, name: str) -> str:
    outputs = dict(found.outputs)
    return str((found.values[outputs[name]] if name in outputs else value(found, name)).storage.value)


# ---- The mandatory alias


def test_the_example_plans_no_output_and_no_second_cache() -> None:
    found = plan(spec_example(), DIMS)
    assert kernels(found) == ["check_position", "cache_update"]
    assert (found.arena_bytes, found.workspace_bytes, found.peak_bytes, found.output_bytes) == (0, 0, 0, 0)
    assert found.cache_bytes == 2 * 2 * 8 * 4 * 2
    ((alias, root),) = found.aliases
    assert found.values[alias].name == "updated_cache" and found.values[root].name == "cache"
    assert found.values[alias].storage.value == "alias" and found.values[root].storage.value == "input"
    assert dict(found.outputs) == {"updated_cache": alias}
    assert [slot.name for slot in found.slots] == ["cache", "values", "position"]
    (write,) = found.writes
    assert (write.root, write.position, write.rows, write.capacity, write.axis) == ("cache", "position", 2, 8, 3)


def test_the_cost_of_an_update_does_not_depend_on_the_capacity() -> None:
    small, large = (plan(spec_example(), DIMS | {"max_length": capacity}) for capacity in (8, 1 << 20))
    assert large.peak_bytes == small.peak_bytes == 0 and kernels(large) == kernels(small)


def test_an_update_past_the_capacity_is_no_plan() -> None:
    with pytest.raises(CapacityError, match="9 new rows do not fit the cache's 8"):
        plan(spec_example(), DIMS | {"new_length": 9})


def test_symbols_without_a_number() -> None:
    with pytest.raises(ShapeError, match="give every dimension of the inputs a number"):
        plan(spec_example(), {"batch": 1})


# ---- Order


def test_readers_of_the_old_name_come_before_the_update() -> None:
    model = cache_model(rows=1)
    reader, update, new = model.graph.node
    for nodes in ([reader, update, new], [update, reader, new], [update, new, reader]):
        copy = type(model).FromString(model.SerializeToString())
        del copy.graph.node[:]
        copy.graph.node.extend(nodes)
        order = kernels(plan(copy))
        assert order.index("add") < order.index("cache_update") < order.index("neg")


def test_a_reader_of_the_old_name_that_needs_the_updated_value() -> None:
    model = cache_model(rows=1)
    model.graph.node.add(op_type="Add", name="late", input=["new", "cache"], output=["late"])
    model.graph.output.add(name="late").type.CopyFrom(model.graph.output[1].type)
    with pytest.raises(AliasError, match=r"late \(Add\) reads 'cache', the content of cache 'cache' before updated"):
        plan(model)


def test_a_part_of_the_old_content_that_is_needed_later_is_copied_first() -> None:
    g = Graph()
    g.input("cache", FLOAT, [8, 4], mutable=True)
    g.input("values", FLOAT, [1, 4])
    g.input("position", INT64, [])
    for name, bound in (("zero", 0), ("one", 1)):
        g.constant(name, np.array([bound], np.int64))
    g.node("Slice", ["cache", "zero", "one"], "row")
    g.update("cache", "values", "position", "updated")
    g.node("Add", ["updated", "row"], "sum")
    g.output("updated", FLOAT, [8, 4], alias_of="cache")
    g.output("sum", FLOAT, [8, 4])
    found = plan(g.model)
    assert kernels(found).index("copy") < kernels(found).index("cache_update") < kernels(found).index("add")
    assert found.arena_bytes == 64  # one row, not the cache


def test_rows_moved_within_a_cache_are_copied_first() -> None:
    g = Graph()
    g.input("cache", FLOAT, [8, 4], mutable=True)
    g.input("position", INT64, [])
    for name, bound in (("zero", 0), ("three", 3)):
        g.constant(name, np.array([bound], np.int64))
    g.node("Slice", ["cache", "zero", "three"], "rows")
    g.update("cache", "rows", "position", "updated")
    g.output("updated", FLOAT, [8, 4], alias_of="cache")
    assert kernels(plan(g.model)).index("copy") < kernels(plan(g.model)).index("cache_update")


def two_caches(position: str = "position") -> Graph:
    g = Graph()
    for name in ("a", "b"):
        g.input(name, FLOAT, [8, 4], mutable=True)
    g.input("values", FLOAT, [2, 4])
    g.input("position", INT64, [])
    g.input("indices", INT64, [2])
    g.update("a", "values", "position", "a.updated")
    g.node("Gather", ["a.updated", "indices"], "rows")
    g.update("b", "rows", position, "b.updated")
    for name in ("a", "b"):
        g.output(f"{name}.updated", FLOAT, [8, 4], alias_of=name)
    return g


def test_every_check_comes_before_the_first_write() -> None:
    order = kernels(plan(two_caches().model))
    last_check = max(index for index, kernel in enumerate(order) if kernel and kernel.startswith("check_"))
    assert last_check < order.index("cache_update") and {"check_position", "check_indices"} <= set(order)


def test_one_check_serves_all_caches_of_a_position() -> None:
    assert kernels(plan(two_caches().model)).count("check_position") == 1


def test_a_position_computed_from_an_updated_cache() -> None:
    g = two_caches("moved")
    update = g.body.node[-1]
    g.body.node.pop()
    g.node("ReduceMax", ["a.updated"], "most", keepdims=0)
    g.node("Cast", ["most"], "moved", to=INT64)
    g.body.node.append(update)
    with pytest.raises(UnsupportedError, match="computed from a cache that the same run updates"):
        plan(g.model)


def test_a_position_computed_from_old_content_is_fine() -> None:
    g = Graph()
    g.input("cache", FLOAT, [8, 4], mutable=True)
    g.input("values", FLOAT, [1, 4])
    g.node("ReduceMax", ["cache"], "most", keepdims=0)
    g.node("Cast", ["most"], "position", to=INT64)
    g.update("cache", "values", "position", "updated")
    g.output("updated", FLOAT, [8, 4], alias_of="cache")
    assert kernels(plan(g.model))[-2:] == ["check_position", "cache_update"]


# ---- An alias on any node


def in_place(op: str, *more: str, shape: tuple[int, ...] = (4, 4), **attributes: Any) -> Any:
    g = Graph()
    g.input("cache", FLOAT, list(shape), mutable=True)
    g.input("x", FLOAT, list(shape))
    g.input("indices", INT64, [shape[0]])
    g.node(op, ["cache", *more], "updated", alias=(0, 0), **attributes)
    g.output("updated", FLOAT, list(shape), alias_of="cache")
    return g.model


@pytest.mark.parametrize(("op", "more"), [("Neg", ()), ("Add", ("x",)), ("Mul", ("cache",)), ("Identity", ())])
def test_elementwise_operators_update_in_place(op: str, more: tuple[str, ...]) -> None:
    found = plan(in_place(op, *more))
    assert found.peak_bytes == 0 and found.output_bytes == 0


@pytest.mark.parametrize(
    ("op", "more", "attributes"),
    [("Transpose", (), {}), ("Gather", ("indices",), {}), ("Softmax", (), {}), ("Sign", (), {}), ("Cast", (), {"to": FLOAT})],
)
def test_what_cannot_be_in_place_is_refused_not_copied(op: str, more: tuple[str, ...], attributes: dict[str, int]) -> None:
    with pytest.raises(UnsupportedError, match="updated"):
        plan(in_place(op, *more, **attributes))


# ---- Storage


def test_views_cost_nothing() -> None:
    g = Graph()
    g.input("x", FLOAT, [4, 6])
    g.constant("shape", np.array([2, 12], np.int64))
    g.constant("cut", np.array([5, 7], np.int64))
    g.node("Transpose", ["x"], "t", perm=[1, 0])
    g.node("Reshape", ["x", "shape"], "r")
    g.node("Split", ["r", "cut"], "left", "right", axis=1)
    g.node("Neg", ["right"], "y")
    g.output("y", FLOAT, [2, 7])
    found = plan(g.model)
    assert kernels(found) == ["neg"] and found.arena_bytes == 0 and storage(found, "right") == "view"


def test_bytes_of_a_dying_input_are_reused() -> None:
    found = plan(chain(6))
    assert found.arena_bytes == 64 and [row.storage.value for row in found.values].count("inplace_reuse") == 4


def test_inputs_and_caches_are_never_reused() -> None:
    g = Graph()
    g.input("x", FLOAT, [64])
    g.input("cache", FLOAT, [64], mutable=True)
    g.node("Neg", ["x"], "a")
    g.node("Neg", ["cache"], "b")
    g.node("Add", ["a", "b"], "c")
    g.node("Exp", ["c"], "d")
    g.output("a", FLOAT, [64])
    g.output("d", FLOAT, [64])
    found = plan(g.model)
    for row in found.values:
        if row.storage.value == "inplace_reuse":
            assert found.values[row.root].storage.value == "arena"
    assert storage(found, "a") == "output"


def test_dead_nodes_fall_away_but_never_an_update() -> None:
    model = cache_model(rows=1)
    del model.graph.output[1:]
    model.graph.node.add(op_type="Exp", input=["values"], output=["unused"])
    del model.graph.output[:]
    assert kernels(plan(model)) == ["check_position", "cache_update"]


def test_outputs_of_every_origin() -> None:
    g = Graph()
    g.input("x", FLOAT, [2, 3])
    g.constant("k", np.arange(3, dtype=np.float32))
    g.node("Neg", ["x"], "y")
    g.node("Transpose", ["y"], "t", perm=[1, 0])
    g.node("Identity", ["y"], "same")
    g.node("Shape", ["x"], "dims")
    for name, kind, dims in (("x", FLOAT, [2, 3]), ("k", FLOAT, [3]), ("y", FLOAT, [2, 3]), ("same", FLOAT, [2, 3])):
        g.output(name, kind, dims)
    g.output("t", FLOAT, [3, 2])
    g.output("dims", INT64, [2])
    found = plan(g.model)
    assert [name for name, _ in found.outputs] == ["x", "k", "y", "same", "t", "dims"]
    assert {storage(found, name) for name, _ in found.outputs} == {"output"}
    assert len({found.values[index].slot for _, index in found.outputs}) == 6


def test_plans_are_equal_and_print() -> None:
    one, other = (plan(cache_model(rows=2)) for _ in range(2))
    assert one == other and one != plan(cache_model(rows=1))
    text = str(one)
    assert "updated (CacheUpdate): updated: FLOAT[1, 2, 8, 4] alias" in text
    assert text.startswith(f"{len(one.steps)} steps, arena ")
    assert len(text.splitlines()) == 1 + len(one.steps)


def test_a_tied_weight_is_read_in_one_layout(tmp_path: Path) -> None:
    from tenonnx import convert

    path = write_llama(tmp_path / "m.gguf", format="Q8_0", layers=1)
    model, _ = convert.from_gguf(path)
    found = plan(model, {"batch": 1, "n": 1, "k": 1, "max_length": 8})
    tied = {row.weight for row in found.values if row.weight and row.weight.name == "token_embd.weight"}
    assert len(tied) == 1


# ---- Limits of what a plan takes


@pytest.mark.parametrize("elem_type", [8, 14, 17, 21, 22])
def test_element_types_without_native_storage(elem_type: int) -> None:
    g = Graph()
    g.input("x", elem_type, [2])
    g.node("Identity", ["x"], "y")
    g.output("y", elem_type, [2])
    with pytest.raises(UnsupportedError):
        plan(g.model)


@pytest.mark.parametrize("dims", [[2**40, 2**40], [2**62, 4], [2**46]])
def test_sizes_past_any_memory(dims: list[int]) -> None:
    g = Graph()
    g.input("x", FLOAT, [1])
    g.constant("dims", np.array(dims, np.int64))
    g.node("Expand", ["x", "dims"], "wide")
    g.node("Sign", ["wide"], "y")
    g.output("y", FLOAT, None)
    with pytest.raises(ShapeError, match="more than an address space"):
        plan(g.model)


def test_an_output_named_twice_is_one_output() -> None:
    model = chain(2)
    model.graph.output.add().CopyFrom(model.graph.output[0])
    assert len(plan(model).outputs) == 1


def test_an_order_that_is_no_permutation_is_not_guessed() -> None:
    g = Graph()
    g.input("x", FLOAT, [2, 3])
    g.node("Transpose", ["x"], "y", perm=[0])
    g.output("y", FLOAT, None)
    assert kernels(plan(g.model)) == [None]  # onnxruntime says what is wrong


def test_deep_graphs_are_planned_without_recursion() -> None:
    assert len(plan(chain(5000)).steps) == 5000
    assert len(plan(chain(2000, "Sign")).steps) == 1


# ---- The verifier


@SETTINGS
@given(graphs())
def test_random_graphs_have_sound_plans(case: Case) -> None:
    check_arena(plan(case.graph.model, {name: size for array in _symbols(case) for name, size in array}))


@SETTINGS
@given(cached_graphs())
def test_random_graphs_with_caches_have_sound_plans(case: Case) -> None:
    found = plan(case.graph.model)
    check_arena(found)
    assert found.cache_bytes == sum(case.inputs[name].nbytes for name in case.mutable)
    assert {found.values[root].name for _, root in found.aliases} == {cache for cache, *_ in case.updates}


@pytest.mark.parametrize("rows", [1, 4, 5, 17, 100])
def test_the_arena_of_a_decoder_is_hardly_larger_than_the_most_that_lives_at_once(tmp_path: Path, rows: int) -> None:
    from tenonnx import convert

    model, _ = convert.from_gguf(write_llama(tmp_path / "llama.gguf", layers=3, hidden=256, ffn=512))
    found = plan(model, {"batch": 1, "n": rows, "k": 1, "max_length": 128})
    held = [tenant for tenant in tenants(found) if found.values[tenant.value].storage.value != "workspace"]
    assert 0 < max(in_use(held, len(found.steps))) <= found.arena_bytes <= 1.05 * max(in_use(held, len(found.steps)))


def _symbols(case: Case) -> list[list[tuple[str, int]]]:
    return [[(f"{name}_{axis}", size) for axis, size in enumerate(array.shape)] for name, array in case.inputs.items()]


def check_arena(found: ExecutionPlan) -> None:
    verify(found)
    assert found.peak_bytes == found.arena_bytes + found.workspace_bytes
    for row in found.values:
        if row.storage.value in ("arena", "workspace", "inplace_reuse"):
            assert 0 <= row.offset <= row.offset + row.nbytes <= found.peak_bytes and row.offset % 64 == 0


def sample() -> ExecutionPlan:
    """A plan with an arena, parallel steps, an update and readers on both sides of it."""
    g = Graph()
    g.input("cache", FLOAT, [64, 400], mutable=True)
    g.input("values", FLOAT, [8, 400])
    g.input("position", INT64, [])
    g.node("Softmax", ["cache"], "before")
    g.node("Softmax", ["before"], "twice")
    g.node("Softmax", ["values"], "rows")
    g.update("cache", "rows", "position", "updated")
    g.node("Softmax", ["updated"], "after")
    g.node("Add", ["after", "twice"], "sum")
    g.node("Softmax", ["sum"], "y")
    g.output("updated", FLOAT, [64, 400], alias_of="cache")
    g.output("y", FLOAT, [64, 400])
    return plan(g.model)


def test_the_sample_is_sound_and_parallel() -> None:
    found = sample()
    check_arena(found)
    assert sum(step.parallel for step in found.steps) >= 4 and sum(step.sync for step in found.steps) >= 3


def test_every_dropped_meeting_is_found() -> None:
    found = sample()
    for number, step in enumerate(found.steps):
        if step.sync:
            steps = (*found.steps[:number], replace(step, sync=False), *found.steps[number + 1 :])
            with pytest.raises(AliasError, match="does not wait"):
                verify(replace(found, steps=steps))


def test_every_two_live_values_at_one_place_are_found() -> None:
    found = sample()
    rows = [index for index, row in enumerate(found.values) if row.storage.value == "arena"]
    before, twice = (next(i for i in rows if found.values[i].name == name) for name in ("twice", "after"))
    values = list(found.values)
    values[twice] = replace(values[twice], offset=values[before].offset)
    with pytest.raises(AliasError):
        verify(replace(found, values=tuple(values)))


def _swap(found: ExecutionPlan, a: int, b: int) -> ExecutionPlan:
    steps = list(found.steps)
    steps[a], steps[b] = replace(steps[b], sync=True), replace(steps[a], sync=True)
    return replace(found, steps=tuple(steps))


def _at(found: ExecutionPlan, kernel: str) -> int:
    return kernels(found).index(kernel)


SPOILED: list[tuple[Callable[[ExecutionPlan], ExecutionPlan], str]] = [
    (lambda p: _swap(p, _at(p, "check_position"), _at(p, "cache_update")), "which no step checks|checks after"),
    (lambda p: _swap(p, 0, _at(p, "cache_update")), "version|reads|no step checks"),
    (lambda p: replace(p, steps=tuple(s for s in p.steps if s.kernel != "check_position")), "which no step checks"),
    (lambda p: replace(p, steps=p.steps[1:]), "reads"),
    (lambda p: replace(p, steps=(*p.steps, p.steps[_at(p, "cache_update")])), "version"),
    (lambda p: replace(p, arena_bytes=64, workspace_bytes=0), "outside the arena"),
    (lambda p: replace(p, aliases=((p.aliases[0][0], p.slots[1].value),)), "must share the storage"),
    (lambda p: replace(p, aliases=()), "does not declare READ_WRITE"),
    (lambda p: replace(p, outputs=(("updated", p.slots[0].value),)), "does not show the content"),
]


@pytest.mark.parametrize(("spoil", "text"), SPOILED, ids=[text for _, text in SPOILED])
def test_a_spoiled_plan_is_refused(spoil: Callable[[ExecutionPlan], ExecutionPlan], text: str) -> None:
    with pytest.raises(AliasError, match=text):
        verify(spoil(sample()))


@SETTINGS
@given(cached_graphs(engines=False), st.data())
def test_a_moved_or_dropped_step_is_found_or_harmless(case: Case, data: st.DataObject) -> None:
    found = plan(case.graph.model)
    dropped = data.draw(st.integers(0, len(found.steps) - 1))
    spoiled = replace(found, steps=(*found.steps[:dropped], *found.steps[dropped + 1 :]))
    step = found.steps[dropped]
    if all(found.values[index].nbytes == 0 for index in step.outputs) and not (step.kernel or "").startswith("check"):
        return
    if step.kernel == "check_indices":
        return
    with pytest.raises(AliasError):
        verify(spoiled)
