"""The tree of errors."""

from __future__ import annotations

import inspect

import pytest

import tenonnx
from tenonnx import errors

BINDING = ("ImmutableStorageError", "SharedStorageError", "ConcurrentUseError")
DIRECT = (
    "CheckError", "PayloadError", "ShapeError", "AliasError", "BindingError", "CapacityError", "PageError", "UnsupportedError",
    "OptionError",
)  # fmt: skip
FOUND = {name: found for name, found in vars(errors).items() if inspect.isclass(found)}


def test_the_tree_is_complete_and_flat_but_for_bindings():
    parents = {name: found.__mro__[1].__name__ for name, found in FOUND.items()}
    assert parents == {
        "TenonnxError": "Exception",
        **dict.fromkeys(DIRECT, "TenonnxError"),
        **dict.fromkeys(BINDING, "BindingError"),
    }


@pytest.mark.parametrize("name", FOUND)
def test_an_error_says_what_it_stands_for(name):
    found = FOUND[name]
    assert found.__doc__ and found.__doc__.partition("\n")[0].endswith(".")
    assert getattr(tenonnx, name) is found
    assert str(found("what to do next")) == "what to do next"


def test_a_wrong_option_is_a_value_error_too():
    """Callers who know nothing of this package catch it as what it is."""
    assert issubclass(errors.OptionError, ValueError)
