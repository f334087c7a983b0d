"""Checking a model: every finding of every rule in one pass. ``tenonnx.check(model)`` calls ``check``."""

from __future__ import annotations

import os
from typing import Any

from tenonnx.callables import make_callable
from tenonnx.check.bodies import check_aliases
from tenonnx.check.compiled import check_compiled
from tenonnx.check.diagnostics import Diagnostic
from tenonnx.check.files import unreadable_files
from tenonnx.check.paged import check_pages
from tenonnx.check.rules import RULES
from tenonnx.check.standard import check_standard
from tenonnx.check.structs import check_structs
from tenonnx.check.tensors import check_tensors
from tenonnx.errors import CheckError, TenonnxError, UnsupportedError
from tenonnx.schema.external import DataRoot
from tenonnx.schema.flatten import flattened
from tenonnx.schema.graph import ModelIndex
from tenonnx.schema.messages import as_model

__all__ = ["RULES", "Diagnostic", "check", "raise_errors"]


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
    found = [] if root is None else list(unreadable_files(model, root))
    if found:
        root = None  # what lies in a file that cannot be read is one finding, not one a value
    found += [*check_structs(model, root), *check_tensors(model, root), *check_pages(model), *check_compiled(model, root)]
    try:
        index = ModelIndex(model)
        flat = flattened(index)
        found += check_aliases(index, flat)
    except TenonnxError as error:
        limit = isinstance(error, UnsupportedError)
        found.append(Diagnostic("error", "limit" if limit else "invalid", "graph-names", "graph", str(error)))
        return found
    if not any(diagnostic.severity == "error" for diagnostic in found):
        found += check_standard(flat)
    return found


def raise_errors(model: Any, data_root: str | os.PathLike[str] | None = None) -> ModelIndex:
    """``CheckError`` with every error that the rules on storage and on tensors find, else the model's flattened index.

    Only what the graph reaches is looked at: packs are passed over when they are loaded, and never make a model unfit to run.
    """
    root = None if data_root is None else DataRoot(data_root)
    found = [*check_structs(model, root, all_types=False), *check_tensors(model, root), *check_pages(model)]
    index = ModelIndex(model)
    flat = flattened(index)
    found += check_aliases(index, flat)
    errors = [str(diagnostic) for diagnostic in found if diagnostic.severity == "error"]
    if errors:
        listed = "\n  ".join(errors)
        raise CheckError(errors[0] if len(errors) == 1 else f"the model breaks {len(errors)} rules:\n  {listed}")
    return flat


make_callable(__name__, check)
