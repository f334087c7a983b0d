"""The examples in docstrings show what happens. Those of a module itself come first, and leave their names to all others."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import tenonnx

LEFT_OUT = {"tenonnx._native", "tenonnx.__main__"}  # native code, and a command
MODULES = sorted({found.name for found in pkgutil.walk_packages(tenonnx.__path__, "tenonnx.")} - LEFT_OUT)


def examples(name):
    """The docstrings of a module that have examples, its own first."""
    found = doctest.DocTestFinder().find(importlib.import_module(name))
    return sorted((test for test in found if test.examples), key=lambda test: test.name != name)


@pytest.mark.parametrize("name", [name for name in MODULES if examples(name)])
def test_examples_show_what_happens(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)  # a long message may be wrapped
    shared = {}
    for test in examples(name):
        test.globs.update(shared)
        runner.run(test, clear_globs=False)
        if test.name == name:
            shared = test.globs
    assert runner.failures == 0
