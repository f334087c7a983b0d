"""Each sentence of the specification's "Required alias", "ShapesContext", "Model example", "Runtime contract", "Memory planning"
and "Implementation order", of dense caches; those of pages are in test_paged_specification.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tenonnx
from tenonnx import (
    AliasError,
    CapacityError,
    ConcurrentUseError,
    ImmutableStorageError,
    Session,
    ShapesContext,
    SharedStorageError,
    SymTensor,
    check,
    ledger,
    load,
    plan,
    save,
    writable,
)
from tenonnx.cache import Extent, extent, owned
from tenonnx.plan import Storage
from tenonnx.schema.messages import ModelProto, NodeProto, ValueAliasProto, ValueInfoProto
from tests.models import BOOL, FLOAT, FLOAT16, INT64, Graph, cache_model, spec_example
from tests.oracle.functional import updated
from tests.runtime.test_ledger import decoder

DIMS = {"batch": 1, "heads": 3, "max_length": 16, "head_size": 8, "new_length": 2}
SHAPE, ROWS = (2, 1, 3, 16, 8), (2, 1, 3, 2, 8)


def halves(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float16)


def feeds(cache: Any, position: int = 0, seed: int = 1) -> dict[str, Any]:
    return {"cache": cache, "values": halves(*ROWS, seed=seed), "position": np.array(position)}


@pytest.fixture(scope="module")
def session() -> Session:
    return Session(spec_example(), threads=2)


def value(found: Any, name: str) -> Any:
    return next(row for row in found.values if row.name == name)


# ---- Required alias: "alias_of means"


def test_no_output_allocation_is_planned() -> None:
    found = plan(spec_example(), DIMS)
    assert found.output_bytes == 0 and found.peak_bytes == 0 and not any(slot.is_output for slot in found.slots)


def test_the_kernel_receives_a_writable_view_of_the_input_storage(session: Session) -> None:
    found = plan(spec_example(), DIMS)
    (step,) = (step for step in found.steps if step.kernel == "cache_update")
    source, result = (found.values[index] for index in (step.inputs[0], step.outputs[0]))
    assert result.storage is Storage.ALIAS and found.values[result.root] is source and result.slot == source.slot


def test_pointer_identity_is_checked_by_the_runtime(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = halves(*SHAPE)
    session.run(feeds(writable(cache)))
    (executable,) = session._executables.values()
    monkeypatch.setattr(executable, "_offsets", executable._offsets + 2)
    with pytest.raises(AliasError, match="output 'updated_cache' is not at the address of 'cache'"):
        session.run(feeds(writable(cache)))


def test_execution_fails_if_the_caller_supplied_immutable_or_shared_storage(session: Session) -> None:
    cache = halves(*SHAPE)
    bound = writable(cache)
    cache.flags.writeable = False
    with pytest.raises(ImmutableStorageError):
        session.run(feeds(bound))
    cache.flags.writeable = True
    with pytest.raises(SharedStorageError):
        session.run({**feeds(writable(cache)), "values": cache.reshape(-1)[: np.prod(ROWS)].reshape(ROWS)})


def test_there_is_no_silent_copy_fallback(session: Session) -> None:
    """What would need a copy is an error: storage that is not contiguous, not aligned, or of another type."""
    wide = np.zeros((*SHAPE[:-1], 16), np.float16)
    odd = np.zeros(np.prod(SHAPE) * 2 + 1, np.uint8)[1:].view(np.float16).reshape(SHAPE)
    for make in (lambda: writable(wide[..., :8]), lambda: writable(odd), lambda: writable(np.zeros(SHAPE, np.float32))):
        with pytest.raises(tenonnx.TenonnxError):
            session.run(feeds(make()))


def test_the_last_use_rule_does_not_apply_and_the_cache_remains_live_after_the_node() -> None:
    """Nobody reads the cache after its update, yet no later value takes over its bytes."""
    found = plan(decoder(64), {"n": 3})
    cache = next(slot.value for slot in found.slots if slot.is_cache)
    reused = [row for row in found.values if row.storage is Storage.INPLACE_REUSE]
    assert all(row.root != cache for row in reused)
    assert all(row.storage is Storage.ALIAS for row in found.values if row.root == cache and row.version > 0)


# ---- ShapesContext


def test_the_cache_stays_an_ordinary_tensor_and_there_is_no_sym_cache() -> None:
    context = ShapesContext(spec_example())
    assert type(context["cache"]) is SymTensor and context["updated_cache"] == context["cache"]
    assert not any(name.startswith("Sym") and "cache" in name.lower() for name in vars(tenonnx.shapes.symbols))


def test_1_resolves_the_node_port_indices_to_input_and_output_names() -> None:
    model = spec_example()
    node = model.graph.node[0]
    node.output_alias[0].input_index = 5
    assert "alias-ports" in {finding.rule for finding in check(model)}
    node.output_alias[0].input_index = 0
    assert ShapesContext(model).alias_root("updated_cache") == "cache"


def test_2_verifies_that_alias_of_names_the_same_input() -> None:
    model = spec_example()
    model.graph.output[0].alias_of = "values"
    assert "alias-of-agrees" in {finding.rule for finding in check(model)}


def test_3_merges_the_input_and_output_type_and_shape_constraints() -> None:
    model = spec_example()
    model.graph.input[0].type.tensor_type.shape.dim[3].dim_value = 16
    context = ShapesContext(model)
    assert context["cache"].dims == context["updated_cache"].dims == (2, "batch", "heads", 16, "head_size")
    model.graph.output[0].type.tensor_type.shape.dim[4].dim_value = 8
    assert ShapesContext(model)["cache"].dims == (2, "batch", "heads", 16, 8)


def test_4_rejects_incompatible_element_types_ranks_dimensions_or_alias_cycles() -> None:
    def spoil(change: Callable[[Any], Any]) -> Any:
        model = spec_example()
        model.graph.input[0].type.tensor_type.shape.dim[3].dim_value = 16
        change(model.graph.output[0].type.tensor_type)
        return model

    for change in (
        lambda kind: setattr(kind, "elem_type", FLOAT),
        lambda kind: kind.shape.dim.add(dim_value=1),
        lambda kind: setattr(kind.shape.dim[3], "dim_value", 17),
    ):
        with pytest.raises(tenonnx.TenonnxError):
            ShapesContext(spoil(change))
    model = spec_example()
    model.graph.node[0].input[0] = "updated_cache"
    assert any(finding.severity == "error" for finding in check(model))


def test_5_records_the_common_alias_root_for_memory_planning() -> None:
    g = Graph()
    g.input("cache", FLOAT, [8, 4], mutable=True)
    g.input("values", FLOAT, [1, 4])
    g.input("position", INT64, [])
    g.update("cache", "values", "position", "one")
    g.update("one", "values", "position", "two")
    g.output("two", FLOAT, [8, 4], alias_of="cache")
    context, found = ShapesContext(g.model), plan(g.model)
    assert [context.alias_root(name) for name in ("cache", "one", "two")] == ["cache"] * 3
    assert context.alias_class("one") == ("cache", "one", "two")
    assert {found.values[root].name for _, root in found.aliases} == {"cache"} and found.cache_bytes == 8 * 4 * 4


def test_control_flow_branches_may_merge_an_aliased_output_only_when_they_resolve_it_to_the_same_root() -> None:
    def model(other: str) -> Any:
        g = Graph()
        for name in ("cache", "second"):
            g.input(name, FLOAT, [8, 4], mutable=True)
        g.input("values", FLOAT, [1, 4])
        g.input("position", INT64, [])
        g.input("flag", BOOL, [])
        then, els = Graph(), Graph()
        then.update("cache", "values", "position", "in_then")
        then.output("in_then", FLOAT, None)
        els.output(other, FLOAT, None)
        g.holding("If", ["flag"], "updated", then_branch=then, else_branch=els)
        g.output("updated", FLOAT, [8, 4], alias_of="cache")
        return g.model

    assert check(model("cache")) == []
    assert "branch-roots" in {finding.rule for finding in check(model("second"))}


def test_shapes_context_stores_names_and_constraints_only() -> None:
    context = ShapesContext(spec_example(), DIMS)
    held = [item for part in vars(context).values() for item in (part.values() if isinstance(part, dict) else [part])]
    assert not any(isinstance(item, (np.ndarray, memoryview)) for item in held)


# ---- Model example


def test_the_model_exposes_the_cache_as_a_mutable_input_and_returns_another_name_backed_by_the_same_storage(
    session: Session,
) -> None:
    model = spec_example()
    assert model.graph.input[0].access == ValueInfoProto.READ_WRITE and model.graph.output[0].alias_of == "cache"
    (alias,) = model.graph.node[0].output_alias
    assert (alias.output_index, alias.input_index, alias.kind) == (0, 0, ValueAliasProto.MUST_ALIAS)
    cache = halves(*SHAPE)
    assert session.run(feeds(writable(cache)))["updated_cache"] is cache


def test_the_caller_allocates_the_cache_for_max_length_and_binds_it_as_writable_storage(session: Session) -> None:
    for length in (2, 5, 1000):
        cache = np.zeros((2, 1, 3, length, 8), np.float16)
        session.run(feeds(writable(cache), length - 2))
        assert cache[:, :, :, length - 2 :].any()


def test_the_runtime_binds_the_updated_cache_to_the_same_address(session: Session) -> None:
    cache = halves(*SHAPE)
    where = cache.ctypes.data
    assert session.run(feeds(writable(cache)))["updated_cache"].ctypes.data == where == cache.ctypes.data


@pytest.mark.parametrize("position", [0, 7, 14])
def test_cache_update_writes_only_the_range_starting_at_position(session: Session, position: int) -> None:
    cache = halves(*SHAPE)
    before, given = cache.copy(), feeds(writable(cache), position)
    session.run(given)
    np.testing.assert_array_equal(cache, updated(before, given["values"], given["position"]))
    rest = [row for row in range(16) if not position <= row < position + 2]
    np.testing.assert_array_equal(cache[:, :, :, rest], before[:, :, :, rest])


def test_on_the_next_invocation_that_same_storage_is_bound_again_as_cache(session: Session) -> None:
    cache, expected = np.zeros(SHAPE, np.float16), np.zeros(SHAPE, np.float16)
    bound = cache
    for step in range(8):
        given = feeds(writable(bound), 2 * step, seed=step)
        bound = session.run(given)["updated_cache"]
        expected = updated(expected, given["values"], given["position"])
    assert bound is cache
    np.testing.assert_array_equal(cache, expected)


def test_position_plus_new_length_is_checked_against_max_length(session: Session) -> None:
    cache = halves(*SHAPE)
    before = cache.tobytes()
    for position in (15, 16, 2**62, -1):
        with pytest.raises(CapacityError):
            session.run(feeds(writable(cache), position))
    assert cache.tobytes() == before
    session.run(feeds(writable(cache), 14))


def test_the_execution_plan_allocates_only_ordinary_outputs_and_kernel_workspace() -> None:
    found = plan(decoder(1 << 20), {"n": 3})
    assert found.peak_bytes == found.arena_bytes + found.workspace_bytes < 10_000 and found.output_bytes == 3 * 64 * 4
    assert found.extra_cache_bytes == 0 and found.cache_bytes == (1 << 20) * 64 * 4


# ---- Runtime contract


def test_the_caller_opts_into_mutation_when_binding_the_cache(session: Session) -> None:
    cache = halves(*SHAPE)
    before = cache.tobytes()
    with pytest.raises(ImmutableStorageError, match=r"pass writable\(array\), or a Cache"):
        session.run(feeds(cache))
    assert cache.tobytes() == before
    session.run(feeds(writable(cache)))
    with pytest.raises(ImmutableStorageError):  # the opting in was for that call alone
        session.run(feeds(cache))


def test_one_writable_cache_binding_cannot_be_used_concurrently_by_multiple_sessions(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, cache = Session(spec_example(), threads=1), halves(*SHAPE)
    entered, leave = threading.Event(), threading.Event()
    run = tenonnx.runtime.executable.Executable.run

    def slow(self: Any, slots: list[int]) -> int:
        if threading.current_thread() is not threading.main_thread():
            entered.set()
            assert leave.wait(30)
        return run(self, slots)

    monkeypatch.setattr(tenonnx.runtime.executable.Executable, "run", slow)
    first = threading.Thread(target=session.run, args=(feeds(writable(cache)),))
    first.start()
    assert entered.wait(30)
    before = cache.tobytes()
    for user in (session, other):
        with pytest.raises(ConcurrentUseError):
            user.run(feeds(writable(cache)))
    assert cache.tobytes() == before
    leave.set()
    first.join()
    other.run(feeds(writable(cache)))


def test_read_only_model_initializers_are_never_accepted_as_mutable_caches() -> None:
    g = Graph()
    g.constant("cache", np.zeros((8, 4), np.float32))
    g.input("values", FLOAT, [1, 4])
    g.input("position", INT64, [])
    g.update("cache", "values", "position", "updated")
    g.output("updated", FLOAT, [8, 4], alias_of="cache")
    assert "alias-root" in {finding.rule for finding in check(g.model)}
    g.input("cache", FLOAT, [8, 4], mutable=True)  # nor as the default of an input
    assert "read-write-inputs" in {finding.rule for finding in check(g.model)}


def test_the_storage_of_an_initializer_is_refused_when_a_caller_binds_it() -> None:
    g = Graph()
    g.constant("table", np.ones((64, 4), np.float32))
    g.input("cache", FLOAT, [64, 4], mutable=True)
    g.input("values", FLOAT, [1, 4])
    g.input("position", INT64, [])
    g.update("cache", "values", "position", "updated")
    g.node("Add", ["updated", "table"], "sum")
    g.output("updated", FLOAT, [64, 4], alias_of="cache")
    g.output("sum", FLOAT, [64, 4])
    session, cache = Session(g.model), np.zeros((64, 4), np.float32)
    given = {"values": np.ones((1, 4), np.float32), "position": np.array(0)}
    session.run({"cache": writable(cache), **given})
    (table,) = (array for array in session._weights._arrays.values() if array.shape == (64, 4))
    begin = table.__array_interface__["data"][0]
    with pytest.raises(ImmutableStorageError, match="initializer 'table', which is never written"):
        session._refuse_initializers([Extent("cache", begin, begin + table.nbytes)])


def test_the_kernel_writes_only_inside_the_declared_capacity(session: Session) -> None:
    """Bytes on both sides of the cache stay as they are, whatever the position."""
    around = np.full(np.prod(SHAPE) + 64, 7, np.float16)
    cache = around[32:-32].reshape(SHAPE)
    for position in (-1, 0, 14, 15, 2**62):
        try:
            session.run(feeds(writable(cache), position))
        except CapacityError:
            assert position not in (0, 14)
        assert (around[:32] == 7).all() and (around[-32:] == 7).all()


def test_an_overflow_is_an_error_and_the_runtime_does_not_grow_the_cache() -> None:
    session = Session(cache_model(dims=("batch", 2, "capacity", 4)))
    cache = session.new_cache(context=4)
    storage, held = cache["cache"], ledger()["cache"]["total"]
    session.run({"values": np.ones((1, 2, 4, 4), np.float32)}, cache=cache)
    with pytest.raises(CapacityError, match="allocate a longer cache, or truncate it"):
        session.run({"values": np.ones((1, 2, 1, 4), np.float32)}, cache=cache)
    assert cache["cache"] is storage and cache.length == cache.capacity == 4
    assert ledger()["cache"]["total"] == held


# ---- Memory planning


def test_peak_memory_analysis_counts_an_in_place_cache_update_as_zero_additional_cache_bytes() -> None:
    small, large = (plan(decoder(capacity), {"n": 3}) for capacity in (64, 1 << 20))
    assert small.peak_bytes == large.peak_bytes and large.extra_cache_bytes == 0


def test_it_includes_only_temporary_kernel_workspace_and_arena_values() -> None:
    session = Session(decoder(64), threads=1)
    cache = session.new_cache(context=64)
    before = ledger()
    session.run({"x": np.ones((1, 3, 64), np.float32)}, cache=cache)
    grown = {name: account["total"] - before[name]["total"] for name, account in ledger().items()}
    found = plan(decoder(64), {"n": 3})
    assert grown == {**dict.fromkeys(grown, 0), "arena": found.peak_bytes, "output": found.output_bytes}


def test_the_execution_plan_keeps_the_cache_alive_across_graph_invocations() -> None:
    session = Session(decoder(64), threads=1)
    cache = session.new_cache(context=64)
    where, kept = cache.addresses.copy(), []
    for step in range(5):
        session.run({"x": np.full((1, 1, 64), step, np.float32)}, cache=cache)
        kept.append(cache["cache"][0, : step + 1].copy())
        gc.collect()
    assert cache.addresses == where and cache.length == 5
    for step, rows in enumerate(kept):
        np.testing.assert_array_equal(cache["cache"][0, : step + 1], rows)


def test_a_cache_is_excluded_from_ordinary_release_and_reuse_candidates() -> None:
    """An elementwise step that reads the cache last does not take over its bytes, though it could any other value's."""
    g = Graph()
    g.input("cache", FLOAT, [64, 4], mutable=True)
    g.input("values", FLOAT, [1, 4])
    g.input("position", INT64, [])
    g.update("cache", "values", "position", "updated")
    g.node("Neg", ["updated"], "first")
    g.node("Abs", ["first"], "second")
    g.node("Neg", ["second"], "third")
    g.output("updated", FLOAT, [64, 4], alias_of="cache")
    g.output("third", FLOAT, [64, 4])
    found = plan(g.model)
    assert value(found, "first").storage is Storage.ARENA
    assert value(found, "second").storage is Storage.INPLACE_REUSE and found.values[value(found, "second").root].name == "first"


# ---- Implementation order


def test_step_1_annotations_and_execution_plan_alias_metadata(tmp_path: Any) -> None:
    assert {field.name for field in NodeProto.DESCRIPTOR.fields} >= {"output_alias"}
    assert {field.name for field in ValueInfoProto.DESCRIPTOR.fields} >= {"access", "alias_of"}
    save(spec_example(), tmp_path / "model.onnx")
    model = load(tmp_path / "model.onnx")
    assert model == ModelProto.FromString(spec_example().SerializeToString())
    found = plan(model, DIMS)
    assert [(found.values[alias].name, found.values[root].name) for alias, root in found.aliases] == [("updated_cache", "cache")]


def test_step_2_mutable_caller_bindings_and_writable_kernel_views(session: Session) -> None:
    whole = np.zeros(np.prod(SHAPE) * 3, np.float16)  # the caller's own storage, of which the cache is a part
    part = whole[np.prod(SHAPE) : 2 * np.prod(SHAPE)].reshape(SHAPE)
    session.run(feeds(writable(part)))
    assert part.any() and not whole[: np.prod(SHAPE)].any() and not whole[2 * np.prod(SHAPE) :].any()


def test_step_3_shape_inference_with_alias_propagation_and_cache_capacity_checks() -> None:
    model = spec_example()
    model.graph.node.add(op_type="Shape", input=["updated_cache"], output=["shape"])
    assert ShapesContext(model, DIMS)["updated_cache"].dims == SHAPE
    with pytest.raises(CapacityError, match="17 new rows do not fit the cache's 16"):
        ShapesContext(model, DIMS | {"new_length": 17})


def test_step_4_dense_and_heterogeneous_quantized_paged_cache_updates(session: Session) -> None:
    """Each by its operator; test_paged_specification holds the sentences on pages."""
    from tests.runtime.test_paged_specification import THREE, cache_of, new_rows, updating
    from tests.runtime.test_paged_specification import feeds as paged_feeds

    cache, table = halves(*SHAPE), cache_of(*THREE)
    assert session.run(feeds(writable(cache)))["updated_cache"] is cache
    where = [page.address for page in table]
    assert Session(updating((2, 3, 16, 64))).run(paged_feeds(table, [0, 1, 2], 3, new_rows(40)))["updated_cache"] is table
    assert [page.address for page in table] == where and table.formats() == list(THREE)


def test_step_5_pointer_identity_capacity_errors_concurrency_rejection_and_peak_memory(session: Session) -> None:
    cache = halves(*SHAPE)
    before = ledger()
    assert session.run(feeds(writable(cache)))["updated_cache"].ctypes.data == cache.ctypes.data
    with pytest.raises(CapacityError):
        session.run(feeds(writable(cache), 15))
    with owned([extent("another call's", cache)], []), pytest.raises(ConcurrentUseError):
        session.run(feeds(writable(cache)))
    assert all(account["total"] - before[name]["total"] < cache.nbytes for name, account in ledger().items())
    assert ledger()["cache"] == before["cache"] and plan(spec_example(), DIMS).values[0].elem_type == FLOAT16
