"""The runtime contract, refusal by refusal: nothing is written, the binding is released, and the message says what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tenonnx import (
    AliasError,
    BindingError,
    CapacityError,
    ImmutableStorageError,
    Session,
    ShapeError,
    SharedStorageError,
    TenonnxError,
    writable,
)
from tenonnx.cache import Extent, extent, owned
from tests.contract import bound, check_good_run, digest, filled, inputs, two_cache_model
from tests.models import FLOAT, Graph, cache_model, spec_example
from tests.oracle.functional import updated

INT64_MAX, INT64_MIN = 2**63 - 1, -(2**63)


@pytest.fixture(scope="module")
def session() -> Session:
    return Session(two_cache_model(), threads=2)


def overlapping() -> dict[str, Any]:
    whole = filled(1, 2, 12, 4)
    flat = whole.reshape(-1)
    return inputs(a=flat[:64].reshape(1, 2, 8, 4), b=flat[32:].reshape(1, 2, 8, 4))


def values_in_cache() -> dict[str, Any]:
    cache = filled(1, 2, 8, 4)
    return inputs(a=cache, values=cache.reshape(-1)[:24].reshape(1, 2, 3, 4))


def same_array() -> dict[str, Any]:
    cache = filled(1, 2, 8, 4)
    return inputs(a=cache, b=cache)


def frozen_later() -> dict[str, Any]:
    given = bound(inputs())
    given["a"].array.flags.writeable = False
    return given


REFUSED: dict[str, tuple[Callable[[], dict[str, Any]], type[TenonnxError], str]] = {
    "read-only later": (frozen_later, ImmutableStorageError, "'a'.*bind a writable array"),
    "same array twice": (same_array, SharedStorageError, "'a' and 'b' are bound to the same array.*storage of its own"),
    "overlapping views": (overlapping, SharedStorageError, "'a' and 'b' are bound to overlapping arrays"),
    "values in the cache": (values_in_cache, SharedStorageError, "'values' overlaps the storage of 'a'.*pass a copy"),
    "one past the capacity": (lambda: inputs(position=6), CapacityError, r"position 6 \+ 3 new rows.*capacity of 8; allocate"),
    "position -1": (lambda: inputs(position=-1), CapacityError, "position -1 .*negative; expected 0..5"),
    "position at the capacity": (lambda: inputs(position=8), CapacityError, "position 8"),
    "position INT64_MAX": (lambda: inputs(position=np.array(INT64_MAX)), CapacityError, f"position {INT64_MAX}"),
    "position INT64_MIN": (lambda: inputs(position=np.array(INT64_MIN)), CapacityError, f"position {INT64_MIN}"),
    "position past INT64": (lambda: inputs(position=2**63), BindingError, "'position': 9223372036854775808"),
    "position FLOAT": (lambda: inputs(position=np.array(5.0, np.float32)), ShapeError, "'position'.*INT64.*convert"),
    "position a float": (lambda: inputs(position=5.0), ShapeError, "'position'.*INT64"),
    "position a vector": (lambda: inputs(position=np.array([5])), ShapeError, "'position'"),
    "position a list": (lambda: inputs(position=[5]), BindingError, "'position': expected a NumPy array.*found list"),
    "position missing": (
        lambda: {k: v for k, v in inputs().items() if k != "position"},
        BindingError,
        "missing inputs: position",
    ),
    "unknown input": (lambda: inputs(pos=1), BindingError, "no input 'pos'; its inputs are a, b"),
    "more rows than the capacity": (lambda: inputs(values=filled(1, 2, 9, 4), position=0), CapacityError, "9 new rows"),
    "id out of range": (lambda: inputs(ids=np.array([0, 5])), BindingError, "index 5 at element 1 is outside -5..4"),
    "id INT64_MIN": (lambda: inputs(ids=np.array([INT64_MIN])), BindingError, "index -9223372036854775808"),
    "dtype of a cache": (lambda: inputs(a=filled(1, 2, 8, 4).astype(np.float16)), ShapeError, "'a'.*found dtype float16"),
    "byte order of a cache": (lambda: inputs(a=filled(1, 2, 8, 4).astype(">f4")), ShapeError, "'a'.*dtype >f4"),
    "rank of a cache": (lambda: inputs(a=filled(2, 8, 4)), ShapeError, r"'a'.*found shape \[2, 8, 4\]"),
    "dims of a cache": (lambda: inputs(a=filled(1, 3, 8, 4)), ShapeError, r"'a'.*found shape \[1, 3, 8, 4\]"),
    "capacities that differ": (lambda: inputs(b=filled(1, 2, 9, 4)), ShapeError, "'b'.*'a' has capacity = 8"),
    "dims of the values": (lambda: inputs(values=filled(1, 2, 3, 5)), ShapeError, "'values'"),
    "batches that differ": (lambda: inputs(values=filled(2, 2, 3, 4)), ShapeError, "'values'.*batch = 1"),
    "a cache that is a list": (lambda: inputs(a=[[1.0]]), ImmutableStorageError, "'a'.*READ_WRITE.*plain list.*writable"),
    "writable values": (lambda: inputs(values=writable(filled(1, 2, 3, 4))), BindingError, "'values'.*READ_ONLY"),
    "values of objects": (lambda: inputs(values=np.array([None])), ShapeError, "found dtype object"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_write_nothing_and_release_the_binding(session: Session, case: str) -> None:
    make, error, text = REFUSED[case]
    given = bound(make())
    before = digest({name: value for name, value in given.items() if name in ("a", "b")})
    with pytest.raises(error, match=text) as caught:
        session.run(given)
    assert type(caught.value) is error
    assert digest({name: value for name, value in given.items() if name in ("a", "b")}) == before
    # The same storage can be bound again, so the refused call holds nothing.
    again = {name: getattr(given.get(name), "array", None) for name in ("a", "b")}
    if all(
        isinstance(array, np.ndarray) and array.shape == (1, 2, 8, 4) and array.dtype == np.float32 for array in again.values()
    ):
        for array in again.values():
            with owned([extent("again", array)], []):
                pass
    check_good_run(session)


def test_a_plain_array_is_never_written(session: Session) -> None:
    given = inputs()
    before = digest(given)
    with pytest.raises(ImmutableStorageError, match=r"'a'.*READ_WRITE.*plain ndarray: pass writable\(array\), or a Cache"):
        session.run(given)
    assert digest(given) == before


def test_what_writable_refuses() -> None:
    array = np.zeros((4, 4), np.float32)
    frozen = array.copy()
    frozen.flags.writeable = False
    odd = np.zeros(65, np.uint8)[1:].view(np.float32)
    for value, error, text in (
        (frozen, ImmutableStorageError, "read-only"),
        (np.broadcast_to(np.float32(1), (2, 2)), ImmutableStorageError, "read-only"),
        (array.T[:2], BindingError, "not contiguous"),
        (array[:, :2], BindingError, "not contiguous"),
        (odd, BindingError, "not aligned"),
        ([[1.0]], BindingError, "found list"),
        (b"bytes", BindingError, "found bytes"),
    ):
        with pytest.raises(error, match=text):
            writable(value)
    assert writable(array).array is array


def test_misaligned_read_only_inputs_are_read_right(session: Session) -> None:
    given = inputs()
    odd = np.zeros(given["values"].nbytes + 1, np.uint8)[1:].view(np.float32).reshape(1, 2, 3, 4)
    odd[...] = given["values"]
    session.run(bound(given | {"values": odd}))
    np.testing.assert_array_equal(given["a"][:, :, 5:], odd)


def test_strided_values_need_no_storage_of_the_cache(session: Session) -> None:
    wide = filled(1, 2, 3, 8)
    given = inputs(values=wide[..., ::2])
    session.run(bound(given))
    np.testing.assert_array_equal(given["a"][:, :, 5:], wide[..., ::2])


def test_initializers_are_never_written() -> None:
    session = Session(two_cache_model(), threads=1)
    session.run(bound(inputs()))
    (table,) = (array for array in session._weights._arrays.values() if array.shape == (5, 2))
    storage = Extent("a", table.__array_interface__["data"][0], table.__array_interface__["data"][0] + 8)
    assert session._weights.overlapping(storage) is not None
    with pytest.raises(ImmutableStorageError, match="initializer 'table', which is never written; allocate"):
        session._refuse_initializers([storage])


def test_out_is_not_for_caches_nor_over_them(session: Session) -> None:
    given = inputs()
    for out, error, text in (
        ({"a.updated": given["a"]}, AliasError, "has the storage of the cache"),
        ({"nowhere": np.zeros(1)}, BindingError, "no such output"),
        ({"rows": np.zeros((3, 3), np.float32)}, BindingError, r"expected float32\[3, 2\]"),
        ({"rows": np.zeros((3, 2))}, BindingError, "expected float32"),
        ({"rows": np.zeros((2, 3), np.float32).T}, ImmutableStorageError, "writable contiguous"),
        ({"rows": given["a"].reshape(-1)[:6].reshape(3, 2)}, SharedStorageError, "'a'"),
        ({"rows": given["values"].reshape(-1)[:6].reshape(3, 2)}, SharedStorageError, "'values'"),
    ):
        before = digest(given)
        with pytest.raises(error, match=text):
            session.run(bound(given), out=out)
        assert digest(given) == before
    out = np.empty((3, 2), np.float32)
    assert session.run(bound(given), out={"rows": out})["rows"] is out and out[0, 0] == 8
    check_good_run(session)


def test_inputs_must_be_a_mapping(session: Session) -> None:
    with pytest.raises(BindingError, match="by input name, found list"):
        session.run([np.zeros(1)])  # type: ignore[arg-type]


# ---- Address, and bytes outside the window


def test_the_output_is_the_input_s_storage_and_nothing_else_changes() -> None:
    session = Session(spec_example())
    cache = filled(2, 3, 2, 9, 5).astype(np.float16)
    values = filled(2, 3, 2, 2, 5, seed=2).astype(np.float16)
    where = cache.ctypes.data
    for position in (0, 3, 7):
        before = cache.copy()
        found = session.run({"cache": writable(cache), "values": values, "position": position})
        assert found["updated_cache"] is cache and cache.ctypes.data == where
        np.testing.assert_array_equal(cache, updated(before, values, np.array(position)))


def test_only_the_second_row_of_a_batch_is_bad() -> None:
    session = Session(cache_model(dims=(2, 1, 8, 4), rows=2, position=("batch",)))
    cache = filled(2, 1, 8, 4)
    values = filled(2, 1, 2, 4, seed=5)
    before = cache.copy()
    for bad in (7, -1, INT64_MAX, INT64_MIN):
        with pytest.raises(CapacityError, match="batch row 1"):
            session.run({"cache": writable(cache), "values": values, "position": np.array([0, bad])})
        np.testing.assert_array_equal(cache, before)
    session.run({"cache": writable(cache), "values": values, "position": np.array([6, 0])})
    np.testing.assert_array_equal(cache, updated(before, values, np.array([6, 0])))


def test_earlier_results_stay_as_they_were() -> None:
    session = Session(cache_model(rows=1))
    cache = np.zeros((1, 2, 8, 4), np.float32)
    results, kept = [], []
    for step in range(8):
        found = session.run({"cache": writable(cache), "values": np.full((1, 2, 1, 4), step + 1, np.float32), "position": step})
        results.append(found["new"])
        kept.append(found["new"].copy())
    for result, copy in zip(results, kept, strict=True):
        np.testing.assert_array_equal(result, copy)
    assert len({result.ctypes.data for result in results}) == 8
    del session, found
    np.testing.assert_array_equal(results[0], kept[0])


def test_missing_inputs_of_a_deep_model_are_named_in_few_words() -> None:
    g = Graph()
    for number in range(40):
        g.input(f"x{number}", FLOAT, [1])
        g.output(g.node("Neg", [f"x{number}"], f"y{number}"), FLOAT, [1])
    session = Session(g.model)
    with pytest.raises(BindingError) as missing:
        session.run({"x3": np.zeros(1, np.float32)})
    assert "missing inputs: x0, x1, x2, x4" in str(missing.value) and "39 in all" in str(missing.value)
    with pytest.raises(BindingError, match=r"no input 'z'; its inputs are x0, .* \(40 in all, listed by session.inputs\)"):
        session.run({"z": np.zeros(1, np.float32)})
    assert len(str(missing.value)) < 250
