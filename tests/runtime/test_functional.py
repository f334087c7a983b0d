"""Functional truth: a native run gives what a copy-everything evaluation of the same graph gives, for any graph."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings

from tenonnx import Session, writable
from tests.graphs import Case, cached_graphs, flow_update, graphs
from tests.oracle.functional import evaluate

SETTINGS = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


def check(case: Case) -> None:
    expected = evaluate(case.graph.model, case.inputs)
    for threads in (1, 2):
        bound = {name: value.copy() for name, value in case.inputs.items()}
        kept = {name: value.tobytes() for name, value in bound.items() if name not in case.mutable}
        given = {name: writable(value) if name in case.mutable else value for name, value in bound.items()}
        found = Session(case.graph.model, threads=threads).run(given)
        assert list(found) == list(expected)
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name, strict=True)
        for name, data in kept.items():
            assert bound[name].tobytes() == data, f"read-only input {name} changed"


@SETTINGS
@given(graphs(engines=False))
def test_native_graphs(case: Case) -> None:
    check(case)


@SETTINGS
@given(graphs())
def test_mixed_graphs(case: Case) -> None:
    check(case)


@SETTINGS
@given(cached_graphs())
def test_cached_graphs(case: Case) -> None:
    check(case)


@SETTINGS
@given(cached_graphs(update=flow_update))
def test_branches_loops_and_functions(case: Case) -> None:
    check(case)
