"""Cache objects: what they feed, when their valid length moves, and which of them a session takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tenonnx import (
    BindingError,
    CapacityError,
    Session,
    ShapeError,
    SharedStorageError,
    UnsupportedError,
    writable,
)
from tests.contract import digest, filled, two_cache_model
from tests.models import FLOAT, INT64, Graph, cache_model


@pytest.fixture(scope="module")
def session() -> Session:
    return Session(two_cache_model(), threads=2)


def test_a_cache_feeds_position_and_moves_on_success_alone(session: Session) -> None:
    cache = session.new_cache(8)
    rows = {"values": filled(1, 2, 3, 4), "ids": np.array([1])}
    for length in (3, 6):
        session.run(rows, cache=cache)
        assert cache.length == length
    before = digest(cache.arrays)
    for more, error, text in (
        ({}, CapacityError, r"position 6 \+ 3 new rows"),
        ({"position": 0}, BindingError, "'position': the cache provides it.*leave it out"),
        ({"a": writable(filled(1, 2, 8, 4))}, BindingError, "'a': the cache provides it"),
        ({"ids": np.array([9])}, CapacityError, "new rows"),
        ({"ids": np.array([9]), "values": filled(1, 2, 1, 4)}, BindingError, "index 9"),
        ({"values": filled(1, 2, 1, 5)}, ShapeError, "'values'"),
    ):
        with pytest.raises(error, match=text):
            session.run(rows | more, cache=cache)
        assert cache.length == 6 and digest(cache.arrays) == before
    cache.truncate(4)
    session.run(rows, cache=cache)
    assert cache.length == 7
    np.testing.assert_array_equal(cache["a"][:, :, 4:7], rows["values"])
    np.testing.assert_array_equal(cache["b"][:, :, :3], rows["values"])
    for length in (-1, 8):
        with pytest.raises(CapacityError, match="expected 0 to 7"):
            cache.truncate(length)
    cache.reset()
    assert cache.length == 0 and cache.capacity == 8


def test_caches_that_do_not_fit(session: Session) -> None:
    rows = {"values": filled(1, 2, 3, 4), "ids": np.array([1])}
    with pytest.raises(BindingError, match="two Cache objects"):
        session.run(rows | {"a": session.new_cache(8)}, cache=session.new_cache(8))
    with pytest.raises(BindingError, match=r"no tensor that fits input 'a'.*new_cache"):
        session.run(rows, cache=Session(cache_model(("batch", 2, "capacity", 4))).new_cache(8))
    with pytest.raises(BindingError, match=r"expected what session.new_cache"):
        session.run(rows, cache={"a": 1})  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"'values'.*batch"):
        session.run(rows, cache=session.new_cache(8, dims={"batch": 2}))
    with pytest.raises(ShapeError, match=r"positive number"):
        session.new_cache(0)
    with pytest.raises(ShapeError, match="capacity of 8; ask for at most that"):
        Session(cache_model()).new_cache(9)
    with pytest.raises(CapacityError, match="cannot be allocated"):
        session.new_cache(1 << 55)
    with pytest.raises(UnsupportedError, match="no READ_WRITE input"):
        Session(plain()).new_cache(8)
    assert session.cache_bytes(8) == 2 * 2 * 8 * 4 * 4 == session.new_cache(8).nbytes


def plain() -> Any:
    g = Graph()
    g.input("x", FLOAT, ["n"])
    g.node("Neg", ["x"], "y")
    g.output("y", FLOAT, ["n"])
    return g.model


def test_the_old_content_as_an_output_is_a_copy_made_before_the_update() -> None:
    model = cache_model(rows=1)
    model.graph.output.add().CopyFrom(model.graph.input[0])
    model.graph.output[-1].ClearField("access")
    session = Session(model)
    cache = session.new_cache(8)
    cache["cache"][...] = old = filled(1, 2, 8, 4)
    found = session.run({"values": filled(1, 2, 1, 4, seed=7)}, cache=cache)
    np.testing.assert_array_equal(found["cache"], old)
    assert found["updated"] is cache["cache"] and not np.array_equal(cache["cache"], old)


def test_a_ragged_position_is_fed_for_the_batch_s_own_axis() -> None:
    g = Graph()
    g.input("cache", FLOAT, [2, "batch", "capacity", 4], mutable=True)
    g.input("values", FLOAT, [2, "batch", "n", 4])
    g.input("position", INT64, ["batch"])
    g.update("cache", "values", "position", "updated", batch_axis=1)
    g.output("updated", FLOAT, [2, "batch", "capacity", 4], alias_of="cache")
    session = Session(g.model)
    cache = session.new_cache(8, dims={"batch": 3})
    for _ in range(2):
        session.run({"values": filled(2, 3, 1, 4)}, cache=cache)
    assert cache.length == 2


def test_a_view_of_a_cache_is_no_input_beside_it(session: Session) -> None:
    cache = session.new_cache(8)
    with pytest.raises(SharedStorageError, match="'values' overlaps"):
        session.run({"values": cache["a"].reshape(-1)[:24].reshape(1, 2, 3, 4), "ids": np.array([1])}, cache=cache)
