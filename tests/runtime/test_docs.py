"""What the documents show is what happens: their Python runs in order, their commands print what stands below them and exit with
0, unless ``echo $?`` says otherwise, and pictures that they draw are those that they show.
"""

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from tenonnx import cli
from tenonnx.layouts import generic
from tenonnx.structs import catalogue

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted((ROOT / "docs").rglob("*.md"))
FENCE = re.compile(r'^```(python|console)(?: title="(\S+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
TRANSCRIPT = r"^\$ tenonnx (.*)\n((?:[^$].*\n|\n)*)(?:\$ echo \$\?\n(\d+)\n)?"
SHOWN_ONLY = {"text", "diff", "pycon"}  # changes and examples of docstrings have tests of their own


def run(document, folder, monkeypatch):
    """Run a document's blocks in ``folder``; the names that they leave. Formats that it adds are known while it runs alone."""
    monkeypatch.setattr(catalogue, "_added", dict(catalogue._added))
    monkeypatch.setattr(generic, "_MAPPINGS", dict(generic._MAPPINGS))
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("COLUMNS", "80")
    shutil.copy(ROOT / "tests" / "data" / "llama_sdpa_23.onnx", folder / "export.onnx")
    names = {}
    for kind, file, body in FENCE.findall(document.read_text(encoding="utf-8")):
        if file:
            (folder / file).write_text(body, encoding="utf-8")
        elif kind == "python":
            exec(compile(body, str(document), "exec"), names)
        else:
            for command, shown, code in re.findall(TRANSCRIPT, body, re.MULTILINE):
                result = CliRunner().invoke(cli.app, shlex.split(command))
                assert result.exit_code == int(code or 0), result.output
                assert agree(timeless(result.stdout), timeless(shown)), f"{command}\n{result.stdout}"
    for made in folder.glob("*.svg"):
        assert made.read_text() == (document.parent / made.name).read_text(), f"put {made} beside {document}"
    return names


def agree(printed, shown):
    """Whether lines are those shown, where a line of … alone stands for any."""
    if not shown or shown[0] != "…":
        return printed == shown or (bool(printed and shown) and printed[0] == shown[0] and agree(printed[1:], shown[1:]))
    return any(agree(printed[skipped:], shown[1:]) for skipped in range(len(printed) + 1))


def timeless(text):
    """Lines without what differs from run to run and from machine to machine."""
    masked = re.sub(r"[\d.]+ s$|[\d.]+ % of the [\d.,]+ \w+ that .*$", "…", text.rstrip(), flags=re.MULTILINE)
    return [line.rstrip() for line in masked.splitlines()]


def named(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
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


@pytest.mark.parametrize("document", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCUMENTS], ids=named)
def test_a_document_shows_nothing_that_no_test_runs(document):
    text = document.read_text(encoding="utf-8")
    opened = re.findall(r"^```(.*)$", text, re.MULTILINE)[::2]
    assert {kind.split(" ")[0] for kind in opened} <= {"python", "console", *SHOWN_ONLY}
    assert len(FENCE.findall(text)) == sum(kind.startswith(("python", "console")) for kind in opened), 'not title="FILE"'
    shown = re.findall(r"^\$ (.*)$", "".join(body for kind, _, body in FENCE.findall(text) if kind == "console"), re.MULTILINE)
    assert all(line.startswith("tenonnx ") or line == "echo $?" for line in shown)


@pytest.mark.parametrize("document", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCUMENTS], ids=named)
def test_commands_outside_of_fences_are_there(document):
    """Those that take long, or fetch something, are read and not run."""
    text = re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for line in re.findall(r"^    (?:.*&& )?tenonnx (.*)$", text, re.MULTILINE):
        command, words = found(shlex.split(line, comments=True))
        if not hasattr(command, "commands"):  # options of a group act where they are read
            command.make_context("tenonnx", words)
    for line in re.findall(r"`tenonnx ([^`]+)`", text):
        command, words = found(line.split())
        options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        assert {word for word in words if word.startswith("-")} <= {*options, "-h", "--help"}, line
    for script in re.findall(r"python ([\w/]+\.py)", text):
        assert (ROOT / script).is_file(), script


def found(words):
    """The command, or group of commands, that the first words name, and the words behind them."""
    command = get_command(cli.app)
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    assert not hasattr(command, "commands") or not words or words[0] == "COMMAND" or words[0].startswith("-"), words
    return command, words


def test_the_example_is_the_document_s():
    blocks = FENCE.findall((ROOT / "docs" / "structured-types.md").read_text(encoding="utf-8"))
    shown = {file: body for _, file, body in blocks if file}
    assert shown == {"three_bit.py": (ROOT / "examples" / "three_bit.py").read_text(encoding="utf-8")}
