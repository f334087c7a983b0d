"""The page of errors, from the docstrings of their classes: cause, way out, and an example that a test runs."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from textwrap import dedent

import tenonnx
from tenonnx import errors

_HEAD = """# Errors

Everything that Tenonnx refuses is one of these errors. Each message names the node or value, what was expected, what was found,
and what to do next; the command line prints it as one line, and exits with 2 for an `OptionError` and with 1 for the others.
A refused run has written nothing.

"""


def tree() -> list[type]:
    """Every error of the package, each behind its parent, as they are declared."""
    for found in pkgutil.walk_packages(tenonnx.__path__, "tenonnx."):
        if not found.name.endswith(".__main__"):  # which is a command
            importlib.import_module(found.name)  # so that all subclasses are known
    return [error for error, _ in _under(errors.TenonnxError)]


def _under(root: type, depth: int = 0) -> Iterator[tuple[type, int]]:
    yield root, depth
    for child in root.__subclasses__():
        if child.__module__.startswith("tenonnx."):
            yield from _under(child, depth + 1)


def page() -> str:
    """The page as Markdown."""
    found = tree()
    index = (f"{'    ' * depth}- {_link(error)}: {_code(_summary(error))}\n" for error, depth in _under(errors.TenonnxError))
    setup = _markdown((errors.__doc__ or "").partition("\n")[2])
    return _HEAD + "".join(index) + "\n" + setup + "".join(map(_section, found))


def _section(error: type) -> str:
    parents = " and ".join(map(_link, error.__bases__))
    kind = f"`{error.__module__}.{error.__name__}`, a kind of {parents}."
    return f"\n## {error.__name__}\n\n{kind}\n\n{_markdown(inspect.cleandoc(error.__doc__ or ''))}"


def _link(error: type) -> str:
    name = f"`{error.__name__}`"
    return f"[{name}](#{error.__name__.lower()})" if issubclass(error, errors.TenonnxError) else name


def _summary(error: type) -> str:
    return (error.__doc__ or "").partition("\n")[0]


def _markdown(docstring: str) -> str:
    """A docstring as Markdown, its examples in a fence."""
    text, _, examples = docstring.partition("Examples:\n")
    prose = _code(text).strip().replace("\nWay out:", "\n**Way out:**")
    return f"{prose}\n\n```pycon\n{dedent(examples).strip()}\n```\n"


def _code(text: str) -> str:
    return text.replace("``", "`")
