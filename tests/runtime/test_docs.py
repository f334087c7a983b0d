"""What the documents show is what happens: their Python runs in order, their commands print what stands below them."""

import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tenonnx import cli
from tenonnx.codecs import table
from tenonnx.layouts import generic
from tenonnx.structs import catalogue

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(python|console)(?: (\S+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def run(document, folder, monkeypatch):
    """Run a document's blocks in ``folder``; the names that they leave. Formats that it adds are known while it runs alone."""
    monkeypatch.setattr(catalogue, "_added", dict(catalogue._added))
    monkeypatch.setattr(generic, "_MAPPINGS", dict(generic._MAPPINGS))
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("COLUMNS", "80")
    names = {}
    for kind, file, body in FENCE.findall(document.read_text(encoding="utf-8")):
        if file:
            (folder / file).write_text(body, encoding="utf-8")
        elif kind == "python":
            exec(compile(body, str(document), "exec"), names)
        else:
            for command, shown in re.findall(r"^\$ tenonnx (.*)\n((?:[^$].*\n|\n)*)", body, re.MULTILINE):
                assert timeless(output(command)) == timeless(shown), command
    return names


def output(command):
    import shlex

    result = CliRunner().invoke(cli.app, shlex.split(command))
    assert result.exit_code == 0, result.output
    return result.stdout


def timeless(text):
    """Lines without what differs from run to run and from machine to machine."""
    masked = re.sub(r"[\d.]+ s$|[\d.]+ % of the [\d.,]+ \w+ that .*$", "…", text.rstrip(), flags=re.MULTILINE)
    return [line.rstrip() for line in masked.splitlines()]


@pytest.mark.parametrize("document", sorted(ROOT.glob("docs/*.md")), ids=lambda path: path.name)
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
