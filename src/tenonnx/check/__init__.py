"""Checking a model: every finding of every rule in one pass. ``tenonnx.check(model)`` calls ``check``."""

from __future__ import annotations

import os
from typing import Any

from tenonnx.callables import make_callable
from tenonnx.check.alias import check_aliases
from tenonnx.check.diagnostics import Diagnostic
from tenonnx.check.paged import check_pages
from tenonnx.check.standard import check_standard
from tenonnx.check.structs import check_structs
from tenonnx.check.tensors import check_tensors
from tenonnx.errors import CheckError, TenonnxError
from tenonnx.schema.external import DataRoot
from tenonnx.schema.graph import ModelIndex
from tenonnx.schema.messages import as_model

__all__ = ["Diagnostic", "check", "raise_errors"]


def check(model: Any, data_root: str | os.PathLike[str] | None = None) -> list[Diagnostic]:
    """Every finding about a ModelProto, or about the file at a path; an empty list for a sound one.

    ``data_root`` is the folder of the external data; without it, and with a model in memory, payloads are compared with
    the lengths that the model states rather than with their files.
    """
    if isinstance(model, (str, os.PathLike)):
        from tenonnx.schema.files import data_folder, load

        loaded = load(model)
        return check(loaded, data_folder(loaded, model) if data_root is None else data_root)
    model = as_model(model)
    root = None if data_root is None else DataRoot(data_root)
    found = [*check_structs(model, root), *check_tensors(model, root), *check_pages(model)]
    try:
        index = ModelIndex(model)
    except TenonnxError as error:
        found.append(Diagnostic("error", "invalid", "graph-names", "graph", str(error)))
        return found
    for scope in index.scopes():
        found += check_aliases(scope)
    if not any(diagnostic.severity == "error" for diagnostic in found):
        found += check_standard(model, index)
    return found


def raise_errors(model: Any, data_root: str | os.PathLike[str] | None = None) -> None:
    """``CheckError`` with every error that the storage contract's rules find, when there is one."""
    found = [*check_structs(model, None if data_root is None else DataRoot(data_root)), *check_pages(model)]
    for scope in ModelIndex(model).scopes():
        found += check_aliases(scope)
    errors = [str(diagnostic) for diagnostic in found if diagnostic.severity == "error"]
    if errors:
        listed = "\n  ".join(errors)
        raise CheckError(errors[0] if len(errors) == 1 else f"the model breaks {len(errors)} rules:\n  {listed}")


make_callable(__name__, check)
