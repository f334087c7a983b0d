"""Packages that are also functions: ``tenonnx.check(model)`` beside ``tenonnx.check.Diagnostic``."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any


def make_callable(module_name: str, function: Callable[..., Any]) -> None:
    """Let calling the imported module ``module_name`` call ``function``."""

    class CallableModule(types.ModuleType):
        __call__ = staticmethod(function)

    sys.modules[module_name].__class__ = CallableModule
