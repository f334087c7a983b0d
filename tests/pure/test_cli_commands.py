"""The command line: what goes to which stream, exit codes, and one line for every error. The model is a formula."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from tenonnx import cli, text
from tenonnx.errors import PayloadError
from tests.pure.text_fakes import model, writer

DRIVER = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start what runs beside them with Ctrl-C ignored
from tenonnx import cli, text
from tests.pure.text_fakes import model, writer
def slow(cached):
    time.sleep(0.01)
    return 20
text.load_model = lambda name, **options: model(slow) if name == "endless" else writer(" Paris 🎉", name)
cli.main()
"""


@pytest.fixture
def run(monkeypatch):
    """Runs a command on a model that continues its own name with " Paris 🎉"."""
    monkeypatch.setattr(text, "load_model", lambda name, **options: writer(" Paris 🎉", name))
    return lambda *arguments, stdin=None: CliRunner().invoke(cli.app, arguments, input=stdin)


def start(*arguments, encoding="utf-8", **options):
    """The command in a process of its own, its output buffered as for any user."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": encoding, "PYTHONUNBUFFERED": ""}
    return subprocess.Popen([sys.executable, "-c", DRIVER, *arguments], env=environment, text=True, **options)


def test_text_goes_to_standard_output_and_figures_to_standard_error(run):
    result = run("generate", "France", "France", "--temperature", "0")
    assert (result.exit_code, result.stdout) == (0, " Paris 🎉\n")
    assert result.stderr.count("\n") == 2
    for figure in ("prompt 7 tokens", "generated 11 tokens", "tokens/s", "cache 1,080 bytes", "extra cache 0 bytes"):
        assert figure in result.stderr


def test_json_is_one_object_and_nothing_else(run):
    result = run("generate", "France", "France", "-n", "4", "--temperature", "0", "--json")
    made = json.loads(result.stdout)
    assert result.stdout.count("\n") == 1 and result.stderr == ""
    assert made["text"] == " Par" and made["generated_tokens"] == len(made["token_ids"]) == 4


@pytest.mark.parametrize("prompt", ["France", "France\n"])
def test_a_prompt_may_come_from_a_file_or_standard_input(run, tmp_path, prompt):
    path = tmp_path / "prompt.txt"
    path.write_text(prompt)
    for given, stdin in ((("--file", str(path)), None), (("--file", "-"), prompt), (("-",), prompt)):
        result = run("generate", "France", *given, "--temperature", "0", stdin=stdin)
        assert result.stdout == " Paris 🎉\n"


def test_options_reach_the_loop(run):
    result = run("generate", "France", "France", "--temperature", "0", "--stop", "!", "--stop", "is", "--context", "40", "--json")
    made = json.loads(result.stdout)
    assert made["text"] == " Par" and made["finish_reason"] == "stop" and made["cache_bytes"] == 8 * 40


def test_a_full_context_is_told(run):
    result = run("generate", "France", "France", "--temperature", "0", "--context", "9")
    assert result.exit_code == 0 and result.stdout == " Pa\n" and "context is full" in result.stderr


@pytest.mark.parametrize(
    "arguments, code, found",
    [
        (["generate", "x"], 2, "error: give either a PROMPT or --file"),
        (["generate", "x", "y", "--file", "z"], 2, "error: give either"),
        (["generate", "x", "--file", "/nonexistent"], 1, "cannot be read: No such file"),
        (["generate", "x", "y", "--temperature", "-1"], 2, "error: Invalid value for '--temperature'"),
        (["generate", "x", "y", "--top-p", "0"], 2, "error: --top-p is 0"),
        (["generate", "x", "y", "--repeat-penalty", "0"], 2, "error: --repeat-penalty"),
        (["generate", "x", "y", "--stop", ""], 2, "error: a stop string is empty"),
        (["generate", "x", "y" * 3000], 1, "error: 3001 more tokens do not fit"),
        (["generate", "x", "y", "--context", "2049"], 1, "error: a context of 2049 tokens is over the 2048"),
        (["generate", "x", "yyyy", "--context", "3"], 1, "error: 5 more tokens do not fit"),
        (["pull", "nothing"], 2, "error: 'nothing' is no known model"),
        (["convert", "nothing", "out.onnx"], 1, "error: nothing: no such file"),
        (["check", "nothing"], 1, "error: nothing: no such file"),
        (["nonsense"], 2, "error: No such command 'nonsense'; see tenonnx --help"),
    ],
)
def test_errors_are_told_in_one_line_with_their_exit_code(run, arguments, code, found, monkeypatch):
    result = run(*arguments)
    assert result.exit_code == code and found in result.stderr and result.stdout == ""
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1


def test_an_error_of_several_lines_is_told_in_one(run, monkeypatch):
    def fail(name, **options):
        raise PayloadError("first\n  second")

    monkeypatch.setattr(text, "load_model", fail)
    result = run("generate", "x", "y")
    assert (result.exit_code, result.stderr) == (1, "error: first second\n")


def test_a_prompt_that_is_not_utf8_is_told(run, tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_bytes(b"ab\xff")
    result = run("generate", "x", "--file", str(path))
    assert result.exit_code == 1 and "not UTF-8 text" in result.stderr and "byte 2" in result.stderr


def test_ctrl_c_ends_with_the_figures():
    process = start("generate", "endless", "x", "-n", "1000", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    shown, told = process.communicate(timeout=60)
    assert process.returncode == 130 and "tokens/s" in told and "Traceback" not in told and shown.endswith("\n")


def test_a_reader_that_leaves_ends_it_quietly():
    process = start("generate", "endless", "x", "-n", "1000", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.read(1)
    process.stdout.close()
    assert process.wait(timeout=60) == 1 and process.stderr.read() == ""


def test_a_terminal_without_the_characters_shows_stand_ins():
    process = start("generate", "France", "France", "--temperature", "0", encoding="ascii", stdout=subprocess.PIPE)
    assert process.communicate(timeout=60)[0] == " Paris ?\n" and process.returncode == 0


def chatting(monkeypatch, following=lambda cached: 1 if len(cached) % 5 == 0 else 20, **options):
    tested = model(following, **options)
    monkeypatch.setattr(text, "load_model", lambda name, **_: tested)
    return tested


def test_a_conversation_reads_piped_lines_over_one_cache(monkeypatch):
    tested = chatting(monkeypatch)
    result = CliRunner().invoke(cli.app, ["chat", "x", "--temperature", "0"], input="hello\n\nagain\n")
    assert result.exit_code == 0 and result.stdout.count("\n") == 2 and "> " not in result.stdout
    fed = [token for feed in tested.session.feeds for token in feed]
    assert fed.count(0) == 1, "the second turn continues the first"


def test_reset_starts_anew_and_exit_ends(monkeypatch):
    tested = chatting(monkeypatch)
    result = CliRunner().invoke(cli.app, ["chat", "x", "--temperature", "0"], input="hello\n/reset\nagain\n/exit\nmore\n")
    assert result.exit_code == 0 and result.stdout.count("\n") == 2
    again = next(feed for feed in tested.session.feeds[1:] if len(feed) > 1)
    assert tested.tokenizer.decode(again).startswith("again")


def test_a_message_over_the_context_is_told_and_the_conversation_goes_on(monkeypatch):
    chatting(monkeypatch)
    result = CliRunner().invoke(cli.app, ["chat", "x", "--context", "80", "--temperature", "0"], input="long " * 30 + "\nhi\n")
    assert result.exit_code == 0 and "/reset" in result.stderr and result.stdout.count("\n") == 1


def test_a_model_without_a_template_cannot_chat(monkeypatch):
    tested = chatting(monkeypatch)
    tested.tokenizer._chat_template = ""
    result = CliRunner().invoke(cli.app, ["chat", "x"], input="hello\n")
    assert result.exit_code == 1 and result.stderr.startswith("error: the model has no chat template")


def test_ctrl_c_stops_the_answer_and_not_the_conversation():
    terminal, their_end = pty.openpty()
    process = start("chat", "endless", stdin=their_end, stdout=their_end, stderr=their_end, start_new_session=True)
    os.close(their_end)

    def wait_for(wanted):
        shown = b""
        while wanted not in shown:
            assert select.select([terminal], [], [], 30)[0], f"no {wanted!r} after {shown!r}"
            shown += os.read(terminal, 4096)

    wait_for(b"> ")
    for _ in range(2):
        os.write(terminal, b"hello\n")
        wait_for(b"111")  # what the fake model says
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        wait_for(b"> ")
    process.send_signal(signal.SIGINT)  # while nothing is being answered: another prompt
    wait_for(b"> ")
    os.write(terminal, b"/exit\n")
    assert process.wait(timeout=60) == 0
    os.close(terminal)


def test_help_imports_nothing_heavy():
    code = "import sys; from tenonnx import cli; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    loaded = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True).stdout
    assert not {"numpy", "onnx", "rich", "tokenizers", "jinja2", "onnxruntime"} & set(loaded.split())
