"""The changes that the tutorial for kernels shows fit the tree, build, and pass the tests that they bring."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("native", "proto", "src", "tests", "CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE")


pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git applies the changes")


@pytest.fixture
def tree(tmp_path):
    """A copy of the sources with the tutorial's changes in them."""
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, tmp_path / part, ignore=shutil.ignore_patterns("*.so", "*.binpb", "__pycache__"))
        else:
            shutil.copy(source, tmp_path / part)
    text = (ROOT / "docs" / "tutorials" / "build.md").read_text(encoding="utf-8")
    changes = "".join(re.findall(r"^```diff\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    ran = subprocess.run(["git", "apply", "-v"], cwd=tmp_path, input=changes, capture_output=True, text=True)
    assert ran.returncode == 0, f"{ran.stderr}: the tutorial no longer fits the tree; make its diffs again"
    return tmp_path


def test_the_changes_of_the_tutorial_fit_the_tree(tree):
    changed = ("native/kernels/normalize.cpp", "src/tenonnx/plan/elementwise.py", "tests/oracle/normalize.py")
    assert all("log_softmax" in (tree / file).read_text(encoding="utf-8") for file in changed)


@pytest.mark.slow
def test_the_kernel_of_the_tutorial_builds_and_passes_its_tests(tree):
    site = tree / "site"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site, tree], check=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *sys.path])}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/native/test_normalize.py"]
    ran = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0 and "passed" in ran.stdout + ran.stderr, ran.stdout
