"""The pages of the API reference: each public name of a package, rendered by mkdocstrings from its docstring."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import tenonnx
from tenonnx.structs.scalars import SCALARS

PAGES = {
    "text": ("Text", ("text",)),
    "cache": ("Caches", ("cache",)),
    "convert": ("Convert and quantize", ("convert",)),
    "structs": ("Structured types", ("structs",)),
    "codecs": ("Codecs and layouts", ("codecs", "layouts")),
    "compiled": ("Compiled tensors", ("compiled",)),
    "check": ("Check, shapes and aliases", ("check", "shapes", "alias")),
    "plan": ("Plan", ("plan",)),
    "inspection": ("Inspection", ("inspection",)),
}
_VALUES = {
    "KNOWN": "the models that have a name, by it",
    "LAYOUTS": "the compute layouts, by name",
    "RULES": "the rules by contract; [Checking a model](../checking.md#the-rules) lists them",
    "catalogue": 'the formats known by name, as in `catalogue["Q4_K"]`; `catalogue.add(format)` adds one to this process',
}
_SESSION = """# Models and sessions

Names of `tenonnx` itself. Each loads what it needs when it is first used; importing the package does no work.

"""
_MESSAGES = """
The messages are onnx's own with the additions of `proto/`, as classes of this package; `from_onnx` and `to_onnx` bring them from
and to the stock ones.
"""


def session() -> str:
    """The page of the package's own names, and of what only it documents."""
    lines = "".join(f"- {line}\n" for line in _own_names())
    parts = ("runtime", "schema.files.load", "schema.files.save", "schema.messages.from_onnx", "schema.messages.to_onnx")
    return _SESSION + lines + _MESSAGES + "".join(map(_directive, parts))


def _own_names() -> Iterator[str]:
    homes = {name: tenonnx._HOMES.get(name, name).partition(".")[0] for name in tenonnx.__all__}
    groups = [("messages", ("schema",)), ("[errors](../errors.md)", ("errors",)), ("sessions", ("runtime",))]
    groups += [(f"[{title.lower()}]({page}.md)", packages) for page, (title, packages) in PAGES.items()]
    for group, packages in groups:
        names = [name for name, home in homes.items() if home in packages]
        if names:
            yield f"{group}: {_listed(names)}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def page(title: str, packages: tuple[str, ...]) -> str:
    """A page of whole packages: what mkdocstrings shows of them, then what it would pass over."""
    return f"# {title}\n" + "".join(_directive(package) + _rest(package) for package in packages)


def _rest(package: str) -> str:
    """Values, which have no docstring, and functions whose name is also that of a module."""
    module, hidden, values = import_module(f"tenonnx.{package}"), "", ""
    for name in module.__all__:
        value = getattr(module, name)
        if name in SCALARS:
            continue
        if not (inspect.isclass(value) or inspect.isroutine(value) or isinstance(value, ModuleType)):
            values += f"- `{name}`: {_VALUES[name]}\n"
        elif find_spec(f"{module.__name__}.{name}"):
            hidden += _directive(f"{value.__module__.removeprefix('tenonnx.')}.{name}", f"{package}.{name}")
    if "f32" in module.__all__:
        values += f"- element types: {_listed(SCALARS)}\n"
    return hidden + (f"\n### Values of tenonnx.{package}\n\n{values}" if values else "")


def _directive(path: str, heading: str = "") -> str:
    options = f"    options:\n      heading: tenonnx.{heading}\n      toc_label: {path.rpartition('.')[2]}\n" if heading else ""
    return f"\n::: tenonnx.{path}\n{options}"
