"""A model of two caches with a sound call of it, for the tests of what the runtime refuses."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from tenonnx import Session, writable
from tests.models import FLOAT, INT64, Graph
from tests.oracle.functional import updated


def two_cache_model() -> Any:
    """Caches a and b FLOAT[batch, 2, capacity, 4], updated with the same rows; ids are looked up in a small table."""
    g = Graph()
    for name in ("a", "b"):
        g.input(name, FLOAT, ["batch", 2, "capacity", 4], mutable=True)
    g.input("values", FLOAT, ["batch", 2, "n", 4])
    g.input("ids", INT64, ["k"])
    g.input("position", INT64, [])
    g.constant("table", np.arange(10, dtype=np.float32).reshape(5, 2))
    for name in ("a", "b"):
        g.update(name, "values", "position", f"{name}.updated")
        g.output(f"{name}.updated", FLOAT, ["batch", 2, "capacity", 4], alias_of=name)
    g.node("Gather", ["table", "ids"], "rows")
    g.output("rows", FLOAT, ["k", 2])
    return g.model


def filled(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def inputs(**more: Any) -> dict[str, Any]:
    """A good call: 3 new rows at 5 of 8."""
    good = {
        "a": filled(1, 2, 8, 4, seed=2),
        "b": filled(1, 2, 8, 4, seed=3),
        "values": filled(1, 2, 3, 4),
        "ids": np.array([4, 0, -1]),
        "position": np.array(5),
    }
    return good | more


def bound(given: dict[str, Any]) -> dict[str, Any]:
    return {
        name: writable(value) if name in ("a", "b") and isinstance(value, np.ndarray) else value for name, value in given.items()
    }


def digest(given: dict[str, Any]) -> str:
    arrays = [getattr(value, "array", value) for value in given.values()]
    return hashlib.sha256(b"".join(np.asarray(array).tobytes() for array in arrays)).hexdigest()


def check_good_run(session: Session) -> None:
    given = inputs()
    before = {name: given[name].copy() for name in ("a", "b")}
    found = session.run(bound(given))
    for name in ("a", "b"):
        assert found[f"{name}.updated"] is given[name]
        np.testing.assert_array_equal(given[name], updated(before[name], given["values"], given["position"]))
    np.testing.assert_array_equal(found["rows"], [[8, 9], [0, 1], [8, 9]])
