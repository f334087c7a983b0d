"""The site: what is made from the code is current, the navigation has every page, and the build knows no warning."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import make_docs
from make_docs import api, errors
from tenonnx import TenonnxError
from tests.pure.test_imports import ORDER

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.mark.parametrize("name", [*make_docs.WHOLE, *make_docs.PARTS])
def test_what_is_made_from_the_code_is_current(name):
    assert (DOCS / name).read_text(encoding="utf-8") == make_docs.made(name), "run python -m make_docs"


@pytest.mark.parametrize("error", errors.tree(), ids=lambda error: error.__name__)
def test_an_error_has_a_cause_a_way_out_and_an_example_that_raises_it(error):
    text, _, examples = (error.__doc__ or "").partition("Examples:\n")
    cause, _, way_out = text.partition("Way out: ")
    assert cause.strip().endswith(".") and way_out.strip().endswith(".")
    assert error is TenonnxError or f"{error.__module__}.{error.__name__}: " in examples


def test_the_navigation_has_every_page_once():
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


@pytest.mark.parametrize("name", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_the_order_of_imports_is_told_as_it_is(name):
    told = re.search(r"^    (errors, .*→.*)$", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)[1]
    assert told == " → ".join(map(", ".join, ORDER))


def test_every_picture_is_shown():
    shown = set(re.findall(r"\]\((\S+\.svg)\)", "".join(path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md"))))
    assert shown == {path.name for path in DOCS.rglob("*.svg")}


def public():
    """The classes and functions of the packages that the API reference has."""
    for _, packages in api.PAGES.values():
        for package in packages:
            module = importlib.import_module(f"tenonnx.{package}")
            yield from (
                name for name in module.__all__ if callable(value := getattr(module, name)) and hasattr(value, "__name__")
            )


def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="needs the docs extra")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "site").rglob("*.html")}
    assert {"index.html", "errors.html", "404.html"} <= set(pages)
    anchors = set(re.findall(r'id="tenonnx\.[\w.]*?(\w+)"', "".join(pages.values())))
    assert not [name for name in public() if name not in anchors], "public names without a docstring"
    loaded = [page for page, text in pages.items() if re.search(r'(?:src|<link[^>]* href)="(?:https?:)?//', text)]
    assert not loaded, "pages that load from other servers"
