"""What CONTRIBUTING.md names is there: files, folders, modules that commands run; and every folder is on its map."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`([^`\n]+)`", TEXT)
FOLDERS = ("src", "tests", "native", "docs", "benchmarks", ".ci", "examples", "proto")


@pytest.mark.parametrize("path", sorted({name.split()[0] for name in NAMED if name.split("/")[0].split()[0] in FOLDERS}))
def test_a_path_is_there(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("module", sorted(set(re.findall(r"python -m ([\w.]+)", TEXT))))
def test_a_module_that_a_command_runs_is_there(module: str) -> None:
    assert find_spec(module) is not None


@pytest.mark.parametrize("parent", ["src/tenonnx", "native", "tests"])
def test_every_folder_is_on_the_map(parent: str) -> None:
    folders = [path for path in (ROOT / parent).iterdir() if path.is_dir() and any(path.glob("*.[ptch]*"))]
    missing = {f"{parent}/{path.name}" for path in folders if path.name != "__pycache__"} - set(NAMED)
    assert not missing


def test_a_recipe_has_as_many_files_as_it_says() -> None:
    recipes = re.split(r"^### ", TEXT.partition("## Recipes")[2].partition("\n## ")[0], flags=re.MULTILINE)[1:]
    for recipe in recipes:
        counts = re.match(r".*: (\d) files(?:, (\d) if .*)?\n", recipe)
        assert counts is not None, recipe
        assert len(re.findall(r"^\d\. ", recipe, re.MULTILINE)) == int(counts[2] or counts[1])
