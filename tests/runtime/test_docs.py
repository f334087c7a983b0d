"""What the documents show is what happens: their Python runs in order, their commands print what stands below them."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tenonnx import cli
from tenonnx.codecs import table
from tenonnx.layouts import generic
from tenonnx.plan import planner
from tenonnx.structs import catalogue

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(python|console)(?: (\S+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def run(document, folder, monkeypatch):
    """Run a document's blocks in ``folder``; the names that they leave. Formats that it adds are known while it runs alone."""
    monkeypatch.setattr(catalogue, "_added", dict(catalogue._added))
    monkeypatch.setattr(generic, "_MAPPINGS", dict(generic._MAPPINGS))
    monkeypatch.setattr(planner, "_RULES", dict(planner._RULES))
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("COLUMNS", "80")
    shutil.copy(ROOT / "tests" / "data" / "llama_sdpa_23.onnx", folder / "export.onnx")
    names, text = {}, document.read_text(encoding="utf-8")
    for block in FENCE.finditer(text):
        kind, file, body = block.groups()
        if file:
            (folder / file).write_text(body, encoding="utf-8")
        elif kind == "python":
            above = text.count("\n", 0, block.start(3))  # a traceback names the document's own line
            exec(compile("\n" * above + body, str(document), "exec"), names)
        else:
            for command, shown in re.findall(r"^\$ tenonnx (.*)\n((?:[^$].*\n|\n)*)", body, re.MULTILINE):
                assert agree(timeless(output(command)), timeless(shown)), command
    for made in folder.glob("*.svg"):
        assert made.read_text() == (document.parent / made.name).read_text(), f"put {made} beside {document}"
    return names


def output(command):
    import shlex

    result = CliRunner().invoke(cli.app, shlex.split(command))
    assert result.exit_code == 0, result.output
    return result.stdout


def agree(printed, shown):
    """Whether lines are those shown, where a line of … alone stands for any."""
    if not shown or shown[0] != "…":
        return printed == shown or (bool(printed and shown) and printed[0] == shown[0] and agree(printed[1:], shown[1:]))
    return any(agree(printed[skipped:], shown[1:]) for skipped in range(len(printed) + 1))


def timeless(text):
    """Lines without what differs from run to run and from machine to machine."""
    masked = re.sub(r"[\d.]+ s$|[\d.]+ % of the [\d.,]+ \w+ that .*$", "…", text.rstrip(), flags=re.MULTILINE)
    return [line.rstrip() for line in masked.splitlines()]


@pytest.mark.parametrize(
    "document", sorted(ROOT.glob("docs/**/*.md")), ids=lambda path: path.relative_to(ROOT / "docs").as_posix()
)
def test_a_document_runs(document, tmp_path, monkeypatch):
    known = set(sys.modules)
    try:
        run(document, tmp_path, monkeypatch)
    finally:
        for name in set(sys.modules) - known:
            if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
                del sys.modules[name]


def test_the_readme_example_writes_through_its_own_caches(tmp_path, monkeypatch, smollm2_gguf):
    readme = ROOT / "README.md"
    code = next(body for kind, _, body in FENCE.findall(readme.read_text(encoding="utf-8")) if kind == "python")
    assert sum(1 for line in code.splitlines() if line) <= 15
    names = run(readme, tmp_path, monkeypatch)
    assert names["tokenizer"].decode(names["new"][0]) and names["position"] == 5 + 7
    assert all(
        cache[:, :, : names["position"]].any() and not cache[:, :, names["position"] :].any()
        for cache in names["caches"].values()
    )


def test_the_table_of_formats_is_current():
    document = (ROOT / "docs" / "structured-types.md").read_text(encoding="utf-8")
    written = re.search(r"<!-- formats -->\n(.*?)<!-- end of formats -->", document, re.DOTALL)[1]
    assert written == f"{table.markdown()}\n", "put what python -m tenonnx.codecs.table prints between the marks"


def test_the_example_is_the_document_s():
    blocks = FENCE.findall((ROOT / "docs" / "structured-types.md").read_text(encoding="utf-8"))
    shown = {file: body for _, file, body in blocks if file}
    assert shown == {"three_bit.py": (ROOT / "examples" / "three_bit.py").read_text(encoding="utf-8")}


@pytest.fixture
def tree(tmp_path):
    """A copy of the sources, with what the tutorial for kernels changes in them."""
    for part in ("native", "proto", "src", "tests", "CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE"):
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, tmp_path / part, **({"ignore": shutil.ignore_patterns("*.so")} if copy is shutil.copytree else {}))
    text = (ROOT / "docs" / "tutorials" / "build.md").read_text(encoding="utf-8")
    changes = "".join(re.findall(r"^```diff\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    ran = subprocess.run(["git", "apply", "-v"], cwd=tmp_path, input=changes, capture_output=True, text=True)
    assert ran.returncode == 0, f"{ran.stderr}: the tutorial no longer fits the tree; make its diffs again"
    return tmp_path


def test_the_changes_of_the_tutorial_fit_the_tree(tree):
    assert "log_softmax" in (tree / "native" / "kernels" / "normalize.cpp").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_kernel_of_the_tutorial_builds_and_passes_its_tests(tree):
    site = tree / "site"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site, tree], check=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *sys.path])}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/native/test_normalize.py"]
    ran = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout
