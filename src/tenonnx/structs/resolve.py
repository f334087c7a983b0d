"""A format by its name: the catalogue's, or a user's own as ``module:format``."""

from __future__ import annotations

import os
import pkgutil
import runpy
import sys
from typing import Any

from tenonnx.errors import CheckError
from tenonnx.structs.catalogue import catalogue
from tenonnx.structs.formats import Format


def find_format(name: str | Format) -> Format:
    """The format of a name in the catalogue, in any case, or of ``module:format``, whose module is imported.

    A module is named as in an import statement, found in the working directory too, or by the path of its ``.py`` file. Its
    code runs, so name only your own. Raises ``UnsupportedError`` for a name that the catalogue does not have, and
    ``CheckError`` when the module cannot be imported or holds no such ``Format``.
    """
    if isinstance(name, Format):
        return name
    if ":" not in name:
        return catalogue[name]
    found = imported(name)
    if not isinstance(found, Format):
        raise CheckError(f"{name}: expected a Format, found {type(found).__name__}; name the variable that holds the format")
    return found


def imported(name: str) -> Any:
    """What ``module:object`` names; ``CheckError`` when it cannot be imported."""
    module, _, attribute = name.rpartition(":")
    sys.path.insert(0, os.getcwd())
    try:
        return runpy.run_path(module).get(attribute) if module.endswith(".py") else pkgutil.resolve_name(name)
    except Exception as error:  # whatever the user's module raises
        raise CheckError(f"{name}: cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(os.getcwd())
