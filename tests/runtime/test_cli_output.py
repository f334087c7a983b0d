"""What every command prints: lines of 80 columns, examples that are right, no bars and no colours where nobody looks."""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from tenonnx import Session, cli
from tenonnx.cli import common, completion
from tests.gguf_files import write_llama
from tests.models import cache_model

GROUP = typer.main.get_command(cli.app)
COMMANDS = [(name,) for name in GROUP.commands if name != "packs"] + [
    ("packs", name) for name in GROUP.commands["packs"].commands
]
LONG = "a_name_that_is_longer_than_any_column_of_a_table_could_be.0.attention.query.weight"


def run(*arguments: object, stdin: str | None = None, **environment: str) -> str:
    done = CliRunner().invoke(
        cli.app, [str(argument) for argument in arguments], input=stdin, env={"COLUMNS": "80", **environment}
    )
    assert done.exit_code == 0, done.output
    return done.output


def command_of(words: tuple[str, ...]) -> typer.core.TyperCommand:
    return GROUP.commands["packs"].commands[words[1]] if words[0] == "packs" else GROUP.commands[words[0]]


def wide(text: str) -> list[str]:
    return [line for line in text.splitlines() if len(line) > 80]


# ---- Help


@pytest.mark.parametrize("words", [(), ("packs",), *COMMANDS], ids=" ".join)
def test_help_fits_and_ends_with_examples(words: tuple[str, ...]) -> None:
    text = run(*words, "--help")
    assert text.startswith(f"Usage: {' '.join(('tenonnx', *words))}") and not wide(text)
    assert "..." not in text.replace("COMMAND [ARGS]...", ""), "a first sentence is cut"
    assert words == ("packs",) or "Example" in text


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_examples_are_commands_that_parse(words: tuple[str, ...]) -> None:
    command = command_of(words)
    examples = [line.strip() for line in command.epilog.splitlines() if "tenonnx" in line]
    assert examples
    for example in examples:
        given = shlex.split(re.sub(r"^.*\| | < .*$", "", example))
        assert tuple(given[: 1 + len(words)]) == ("tenonnx", *words)
        context = command.make_context(words[-1], given[1 + len(words) :])
        assert context.command is command


def test_exit_codes_are_told_and_no_arguments_are_wrong_usage() -> None:
    assert "0 done, 1 failed, 2 wrong usage, 130 stopped by Ctrl-C" in run("--help")
    for words in ((), ("packs",)):
        done = CliRunner().invoke(cli.app, list(words))
        assert done.exit_code == 2 and done.stdout == "" and done.stderr.startswith("Usage: tenonnx")


def test_the_version_names_build_kernels_and_libraries() -> None:
    lines = run("--version").splitlines()
    assert re.fullmatch(r"tenonnx (\d+\.\d+\.\d+|not installed)", lines[0]) and lines[1].startswith("build: ")
    assert lines[2] in ("kernels: portable", "kernels: avx2", "kernels: avx512")
    assert f"numpy {np.__version__}" in lines[3] and "onnxruntime" in lines[3]


# ---- Lines


@pytest.fixture
def llama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    write_llama(tmp_path / "m.gguf", layers=3, vocabulary="bpe")
    run("convert", "m.gguf", "m.onnx", "--copy")
    return "m.onnx"


@pytest.mark.usefixtures("user_cache")
def test_what_commands_print_fits(llama: str) -> None:
    Path("text.txt").write_text("one two three " * 20)
    run("packs", "build", llama)
    Session(cache_model()).new_cache(context=4).save("c.cache")
    for arguments in (
        ["demo"], ["check", llama], ["plan", llama], ["plan", llama, "--all"], ["plan", "m.gguf"], ["inspect", llama],
        ["inspect", "Q4_K"], ["inspect", "c.cache"], ["convert", "m.gguf", "p.onnx", "--paged", "16", "--copy"],
        ["convert", "m.gguf", "f.onnx", "--portable", "float32"], ["quantize", llama, "q.onnx", "--weights", "*=Q8_0", "--copy"],
        ["generate", llama, "one", "-n", "4"], ["generate", "p.onnx", "one", "-n", "4", "--kv", "aged"],
        ["perplexity", "m.gguf", "--file", "text.txt", "-n", "40"],
        ["bench", "m.gguf", "--prompt", "16", "--depth", "8", "-n", "2", "--repeat", "1"],
        *(["packs", name, llama] for name in ("list", "explain", "verify", "prune")),
    ):  # fmt: skip
        assert not wide(run(*arguments)), arguments


def test_a_table_is_cut_where_a_name_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = list(common.table([(LONG, "q4m.1", "12 bytes"), ("up", "q8.1", "1,234,567 bytes")], numbers={2}))
    assert {len(line) for line in lines} == {60} and "…" in lines[0] and lines[0].startswith("a_name") and "weight " in lines[0]
    assert lines[1].startswith("up  ") and list(common.table([])) == []


def test_a_plan_tells_what_lengths_take(llama: str) -> None:
    lines = run("plan", llama).splitlines()
    rows = [line.split() for line in lines[lines.index("") + 1 :] if re.match(r" +\d", line)]
    assert [row[0] for row in rows] == ["16", "128"]
    assert any(line.startswith("fits: a context of 128") for line in lines)
    assert "max_length = 64" in run("plan", llama, "--context", "64")


def test_inspect_tells_what_a_context_takes(llama: str) -> None:
    text = run("inspect", llama)
    assert "a token" in text and "bytes of caches" in text and "these fit the" in text


# ---- Standard input


def test_a_text_comes_through_a_pipe(llama: str) -> None:
    assert "generated 1 tokens" in run("generate", llama, "-", "-n", "1", stdin="one two\n")
    assert "read " in run("perplexity", "m.gguf", "--file", "-", "-n", "20", stdin="one two three " * 20)


# ---- Bars and colours


SLOW = """
import sys, time
from tenonnx.cli import common
common._PATIENCE_S = 0
with common.progress_bar("m", *sys.argv[1:]) as progress:
    for part in range(1, 5):
        progress("read", part * 1000, 4000)
        time.sleep(0.06)
"""


def shown(*arguments: str, terminal: bool, **environment: str) -> str:
    """Standard error of a command that reports its progress."""
    reader, writer = pty.openpty() if terminal else os.pipe()
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm", "COLUMNS": "100", **environment}
    variables = {name: value for name, value in variables.items() if value or name != "NO_COLOR"}
    with subprocess.Popen([sys.executable, "-c", SLOW, *arguments], env=variables, stderr=writer):
        os.close(writer)
        found, end = b"", time.monotonic() + 60
        while time.monotonic() < end:
            try:
                part = os.read(reader, 4096)
            except OSError:  # the other end of a terminal is closed
                break
            if not part:
                break
            found += part
    os.close(reader)
    return found.decode()


def test_a_bar_has_a_rate_and_no_pipe_sees_it() -> None:
    assert shown(terminal=False) == ""
    drawn = shown(terminal=True, NO_COLOR="")
    assert "read m" in drawn and "B/s" in drawn and re.search(r"\x1b\[[0-9;]*3[0-9][;m]", drawn)
    counted = shown("tokens", terminal=True, NO_COLOR="1")
    assert "of 4,000 tokens" in counted and "tokens/s" in counted
    assert not re.search(r"\x1b\[[0-9;]*3[0-9][;m]", counted), "NO_COLOR"


def test_nothing_is_coloured_in_a_pipe(llama: str) -> None:
    assert "\x1b" not in run("inspect", "Q4_K") + run("plan", llama)


# ---- Completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_offered_commands_options_and_known_names(shell: str) -> None:
    def offered(*words: str) -> str:
        line = " ".join(("tenonnx", *words))
        variables = {
            "_TENONNX_COMPLETE": f"complete_{shell}",
            "_TYPER_COMPLETE_ARGS": line,
            "COMP_WORDS": line.replace(" ", "\n"),
        }
        variables |= {"COMP_CWORD": str(len(words)), "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
        return CliRunner().invoke(cli.app, [], env=variables).output

    assert "generate" in offered("gen") and "--temperature" in offered("generate", "--temp")
    assert "smollm2-135m" in offered("generate", "smol") and "smollm2-135m" in offered("pull", "s")
    assert "int8_page" in offered("generate", "x", "--kv", "int8") and "INT8_PAGE" in offered("generate", "x", "--kv", "I")


def test_completion_offers_model_files_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.gguf", "a.txt", "b.onnx", ".hidden.onnx"):
        Path(name).touch()
    Path("above").mkdir()
    Path("above/c.onnx").touch()
    assert completion.models("a") == ["a.gguf", "above/"] and completion.models("above/") == ["above/c.onnx"]
    assert set(completion.models("")) == {"smollm2-135m", "a.gguf", "b.onnx", "above/"}
    assert completion.models("nowhere/") == []
