"""Wrong uses, as people make them. Each ends in one line that says what to do, on the command line with the right exit code."""

from __future__ import annotations

import errno
import functools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tenonnx import Session, cli, convert, load, plan, save, text, writable
from tenonnx.cache import Aged, Budget
from tenonnx.errors import TenonnxError
from tests.gguf_files import write_llama
from tests.models import cache_model, spec_example


@pytest.fixture(scope="module", autouse=True)
def house() -> Iterator[Path]:
    """A folder with right things and wrong ones, which is where the commands run; every user may read it."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        os.chdir(name)
        furnish(Path(name))
        yield Path(name)
        os.chdir(before)


def furnish(folder: Path) -> None:
    write_llama(folder / "m.gguf", vocabulary="bpe")
    convert.convert("m.gguf", "m.onnx", copy=True)
    convert.convert("m.gguf", "paged.onnx", copy=True, paged=16)
    convert.convert("m.gguf", "alone.onnx")
    write_llama(folder / "uneven.gguf", vocabulary="bpe", value_head=8)
    convert.convert("uneven.gguf", "uneven.onnx", copy=True)
    save(spec_example(), "plain.onnx")
    for name in ("m.gguf", "m.onnx"):
        whole = (folder / name).read_bytes()
        (folder / f"cut-{name}").write_bytes(whole[: len(whole) // 2])
    (folder / "words.txt").write_text("words")
    (folder / "words.onnx").write_text("These words are no model.\n")
    (folder / "words.gguf").write_text("These words are no model.\n")
    (folder / "empty.onnx").touch()
    (folder / "latin.txt").write_bytes(b"caf\xe9")
    (folder / "folder").mkdir()
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "alone.onnx").write_bytes((folder / "alone.onnx").read_bytes())
    Session(cache_model()).new_cache(context=4).save("c.cache")


# ---- The command line: arguments, the exit code, and words of the one line

COMMANDS: dict[str, tuple[list[str], int, str]] = {
    "missing file": (["generate", "none.gguf", "x"], 1, "no such file, and no known model; known are: smollm2-135m"),
    "unknown name": (["generate", "smollm3", "x"], 1, "known are: smollm2-135m"),
    "unknown name to pull": (["pull", "llama"], 2, "known are: smollm2-135m"),
    "folder for a file": (["inspect", "folder"], 1, "name the .onnx or .gguf file in it"),
    "wrong suffix": (["check", "words.txt"], 1, "convert it to one of them first"),
    "cut GGUF": (["generate", "cut-m.gguf", "x"], 1, "fetch it again"),
    "cut .onnx": (["check", "cut-m.onnx"], 1, "truncated"),
    "text for .onnx": (["check", "words.onnx"], 1, "fetch or convert it again"),
    "text for .gguf": (["inspect", "words.gguf"], 1, "is no GGUF"),
    "empty .onnx": (["inspect", "empty.onnx"], 1, "empty"),
    "weights left behind": (["generate", "elsewhere/alone.onnx", "x"], 1, "put it beside the model"),
    "model without text": (["generate", "plain.onnx", "x"], 1, "tenonnx convert"),
    "model without pages for a policy": (["generate", "m.onnx", "x", "--kv", "aged"], 1, "convert it with --paged"),
    "perplexity without pages": (["perplexity", "m.onnx", "--file", "words.txt"], 1, "convert it with --paged"),
    "no prompt": (["generate", "m.gguf"], 2, "give either a PROMPT or --file"),
    "two prompts": (["generate", "m.gguf", "x", "--file", "words.txt"], 2, "give either"),
    "missing prompt file": (["generate", "m.gguf", "--file", "none.txt"], 1, "name a text file"),
    "folder for a prompt": (["generate", "m.gguf", "--file", "folder"], 1, "name a text file"),
    "prompt that is no text": (["generate", "m.gguf", "--file", "latin.txt"], 1, "not UTF-8"),
    "prompt over the context": (["generate", "m.gguf", "x " * 300], 1, "context"),
    "context over the model's": (["generate", "m.gguf", "x", "--context", "500"], 1, "128"),
    "negative n": (["generate", "m.gguf", "x", "-n", "-3"], 2, "greater than or equal to 0"),
    "n that is no number": (["generate", "m.gguf", "x", "-n", "many"], 2, "-n"),
    "negative temperature": (["generate", "m.gguf", "x", "--temperature", "-1"], 2, "--temperature"),
    "top-p of 0": (["generate", "m.gguf", "x", "--top-p", "0"], 2, "--top-p is 0"),
    "empty stop": (["generate", "m.gguf", "x", "--stop", ""], 2, "stop"),
    "unknown policy": (["generate", "m.gguf", "x", "--kv", "INT7_PAGE"], 2, "INT7_PAGE"),
    "policy of nothing": (["generate", "m.gguf", "x", "--kv", "nothing:here"], 2, "policy"),
    "budget of no size": (["generate", "m.gguf", "x", "--kv", "budget:lots"], 2, "such as budget:64MiB"),
    "budget too small": (["generate", "m.gguf", "x " * 40, "--kv", "budget:64"], 1, "larger budget"),
    "no threads": (["generate", "m.gguf", "x", "--threads", "0"], 2, "--threads"),
    "unknown option": (["generate", "m.gguf", "x", "--temprature", "1"], 2, "--temperature"),
    "unknown command": (["genrate", "m.gguf", "x"], 2, "generate"),
    "missing argument": (["convert", "m.gguf"], 2, "OUT"),
    "chat without a template": (["chat", "m.gguf"], 1, "template"),
    "weights not copied": (["convert", "m.gguf", "folder/out.onnx"], 1, "with --copy"),
    "folder to write": (["convert", "m.gguf", "folder"], 1, "name a file in it"),
    "no folder to write in": (["convert", "m.gguf", "none/out.onnx", "--copy"], 1, "name another place"),
    "over its own source": (["convert", "m.gguf", "m.gguf", "--copy"], 1, "name another file"),
    "unknown weights of a portable model": (
        ["convert", "m.gguf", "s.onnx", "--portable", "int3"],
        2,
        "--portable is 'int3'; expected one of float32, float16, nbits",
    ),
    "pages of an .onnx": (["convert", "m.onnx", "s.onnx", "--paged", "16"], 1, "leave out --paged"),
    "pages of a negative size": (["convert", "m.gguf", "s.onnx", "--copy", "--paged", "-1"], 2, "expected 1 to 256"),
    "alias of no input": (["convert", "plain.onnx", "s.onnx", "--alias", "a=b"], 1, "a"),
    "half an alias": (["convert", "plain.onnx", "s.onnx", "--alias", "a"], 2, "OUT=IN"),
    "unknown format": (["quantize", "m.onnx", "s.onnx", "--weights", "*=Q9"], 1, "Q9"),
    "format without a pattern": (["quantize", "m.onnx", "s.onnx", "--weights", "Q8_0"], 2, "PATTERN=FORMAT"),
    "pattern of no weight": (["quantize", "m.onnx", "s.onnx", "--weights", "none*=Q8_0"], 1, "none*"),
    "unknown type": (["inspect", "m.gguf", "--type", "Q9"], 1, "its types are"),
    "unknown weight": (["inspect", "m.gguf", "--values", "none[0]"], 1, "it has"),
    "element past the end": (["inspect", "Q4_K", "--values", "x"], 1, "x"),
    "drawing over a model": (["inspect", "Q4_K", "--svg", "m.onnx"], 2, "ends in .svg"),
    "drawing of rows": (["inspect", "c.cache", "--svg", "c.svg"], 2, "dense cache"),
    "cache for a model": (["generate", "c.cache", "x"], 1, "convert it"),
    "dimension without a number": (["plan", "m.gguf", "--dim", "n"], 2, "NAME=N"),
    "unknown dimension": (["plan", "m.gguf", "--dim", "rows=2"], 2, "theirs are batch, n"),
    "negative dimension": (["plan", "m.gguf", "--dim", "n=-1"], 2, "NAME=N"),
    "dimensions left out": (["plan", "plain.onnx"], 2, "give --dim batch=N"),
    "packs of a GGUF": (["packs", "build", "m.gguf"], 1, "tenonnx convert m.gguf model.onnx"),
    "packs for no machine": (["packs", "build", "m.onnx", "--device", "i8086"], 2, "i8086"),
    "text of one token": (["perplexity", "m.gguf", "--file", "empty.onnx"], 2, "at least 2 tokens"),
    "depth over the context": (["bench", "m.gguf", "--depth", "900", "--prompt", "16"], 1, "128"),
}


def told(*arguments: str) -> tuple[int, str]:
    """The exit code of a command, and what it says on standard error."""
    done = CliRunner().invoke(cli.app, list(arguments), input="")
    assert done.exit_code == 0 or (isinstance(done.exception, SystemExit) and done.stdout == ""), done.output
    return done.exit_code, done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_on_the_command_line(name: str) -> None:
    arguments, code, words = COMMANDS[name]
    found, line = told(*arguments)
    assert (found, line.count("\n")) == (code, 1) and line.startswith("error: ") and words in line, line
    assert "copy=" not in line and "dims=" not in line and "data_root" not in line, "the command line has options"


# ---- Python: a call that is wrong, the errors that it may end in, and words of the message


@functools.cache
def session(name: str = "m.onnx") -> Session:
    return Session(Path(name).resolve())


@functools.cache
def small() -> Session:
    return Session(cache_model())


def feeds(**changed: Any) -> dict[str, Any]:
    """What ``small`` takes, but for what is wrong."""
    right = {"cache": writable(np.zeros((1, 2, 8, 4), np.float32)), "values": np.ones((1, 2, 1, 4), np.float32), "position": 0}
    return right | changed


def swapped() -> dict[str, Any]:
    """Feeds of a model whose K and V differ in width, the caches of its first layer the wrong way round."""
    caches = {name: writable(np.zeros(spec.dims, np.float16)) for name, spec in session("uneven.onnx").cache_specs(8).items()}
    caches["key_cache.0"], caches["value_cache.0"] = caches["value_cache.0"], caches["key_cache.0"]
    return (
        caches | {name: np.array([[0]]) for name in ("input_ids", "position_ids")} | {"logit_rows": np.array([0]), "position": 0}
    )


def shared() -> dict[str, Any]:
    """Feeds of a model, one array for all its caches."""
    array = writable(np.zeros((1, 2, 8, 16), np.float16))
    return {name: np.array([[0]]) for name in ("input_ids", "position_ids")} | {
        **dict.fromkeys(session().cache_specs(8), array),
        "logit_rows": np.array([0]),
        "position": 0,
    }


PYTHON: dict[str, tuple[Callable[[], object], str]] = {
    "missing file": (lambda: Session("none.onnx"), "No such file"),
    "folder for a file": (lambda: load("folder"), "is a folder"),
    "number for a path": (lambda: Session(3), "path"),
    "number for a path to save": (lambda: small().new_cache(context=4).save(3), "pass text or a pathlib.Path"),
    "number for a path to load": (lambda: small().new_cache(context=4).load(3), "pass text or a pathlib.Path"),
    "number for a path of pages": (lambda: session("paged.onnx").new_cache(4).save(3), "pass text or a pathlib.Path"),
    "number for a model's path": (lambda: save(spec_example(), 3), "pass text or a pathlib.Path"),
    "number for a model": (lambda: save(3, "x.onnx"), "ModelProto"),
    "text for a model": (lambda: text.load_model("words.onnx"), "fetch or convert it again"),
    "array for a model": (lambda: Session(np.zeros(3)), "ModelProto"),
    "list for an array": (lambda: small().run(feeds(values=[[[[1.0] * 4]] * 2])), "NumPy array"),
    "wrong dtype": (lambda: small().run(feeds(values=np.ones((1, 2, 1, 4)))), "float64; convert it"),
    "wrong rank": (lambda: small().run(feeds(values=np.ones((2, 1, 4), np.float32))), "found shape [2, 1, 4]"),
    "wrong dimension": (lambda: small().run(feeds(values=np.ones((1, 3, 1, 4), np.float32))), "found shape [1, 3, 1, 4]"),
    "float position": (lambda: small().run(feeds(position=0.5)), "INT64"),
    "position past the end": (lambda: small().run(feeds(position=8)), "capacity"),
    "negative position": (lambda: small().run(feeds(position=-1)), "position"),
    "plain cache": (lambda: small().run(feeds(cache=np.zeros((1, 2, 8, 4), np.float32))), "pass writable(array), or a Cache"),
    "writable for a plain input": (
        lambda: small().run(feeds(values=writable(np.ones((1, 2, 1, 4), np.float32)))), "pass the array itself"
    ),
    "list for a cache": (lambda: writable([0.0]), "NumPy array"),
    "missing input": (lambda: small().run({"cache": feeds()["cache"]}), "values"),
    "unknown input": (lambda: small().run(feeds(tokens=np.zeros(1))), "tokens"),
    "no mapping": (lambda: small().run([1, 2]), "values by input name, found list"),
    "cache of another model": (
        lambda: session().run({"input_ids": np.array([[1]])}, cache=small().new_cache(4)), "this session's new_cache()"
    ),
    "file of another cache": (lambda: session().new_cache(context=4).load("c.cache"), "another"),
    "file that is no cache": (lambda: small().new_cache(context=4).load("m.onnx"), "no saved dense cache"),
    "missing file of a cache": (lambda: small().new_cache(context=4).load("none.cache"), "cannot be read"),
    "dictionary for a cache": (lambda: small().run({}, cache={}), "session.new_cache() gives, found dict"),
    "two caches swapped": (lambda: session("uneven.onnx").run(swapped()), "expected FLOAT16[batch, 2, max_length, 16], found"),
    "one cache for two": (lambda: session().run(shared()), "storage"),
    "no context": (lambda: small().new_cache(context=0), "context"),
    "negative context": (lambda: small().new_cache(context=-4), "context"),
    "float context": (lambda: small().new_cache(context=4.5), "context"),
    "context over the capacity": (lambda: small().new_cache(context=9), "capacity of 8"),
    "number for a policy": (lambda: session("paged.onnx").new_cache(context=4, policy=3), "is no policy"),
    "number for a policy of text": (lambda: text.generate("m.gguf", "x", kv=3), "is no policy"),
    "policy without pages": (lambda: session().new_cache(context=4, policy="aged"), "paged"),
    "unknown page format": (lambda: session("paged.onnx").new_cache(context=4, policy="INT7_PAGE"), "INT7_PAGE"),
    "steps that do not end": (lambda: Aged([("F16", 10)]), "None for the last step"),
    "budget of nothing": (lambda: Budget(0), "1 or more"),
    "unknown threads": (lambda: Session(cache_model(), threads=-1), "threads"),
    "unknown engine": (lambda: Session(cache_model(), engine="cuda"), "engine"),
    "truncate past the end": (lambda: small().new_cache(context=4).truncate(2), "expected 0 to 0"),
    "output of another dtype": (
        lambda: session().run({}, out={"logits": np.zeros(3)}, cache=session().new_cache(context=4)), "input"
    ),
    "number for a prompt": (lambda: text.generate("m.gguf", 3), "pass a str"),
    "negative tokens": (lambda: text.generate("m.gguf", "x", max_tokens=-1), "max_tokens"),
    "unknown option": (lambda: text.generate("m.gguf", "x", temprature=1), "temprature"),
    "dimension without a number": (lambda: plan(cache_model()), "give every dimension of the inputs a number"),
    "convert of nothing": (lambda: convert.convert("none.gguf", "x.onnx"), "No such file"),
    "convert without a copy": (lambda: convert.convert("m.gguf", "folder/x.onnx"), "the option copy"),
}  # fmt: skip


@pytest.mark.parametrize("name", PYTHON)
def test_in_python(name: str) -> None:
    call, words = PYTHON[name]
    with pytest.raises((TenonnxError, TypeError, ValueError)) as raised:
        call()
    message = str(raised.value)
    assert words in message and "\n" not in message, f"{type(raised.value).__name__}: {message}"


# ---- Places that cannot be written

WRITERS: dict[str, Callable[[Path], tuple[int, str]]] = {
    "convert": lambda folder: told("convert", "m.gguf", str(folder / "m.onnx"), "--copy"),
    "quantize": lambda folder: told("quantize", "m.onnx", str(folder / "m.onnx"), "--weights", "*=Q8_0", "--copy"),
    "plan": lambda folder: told("plan", "m.gguf", "--svg", str(folder / "m.svg")),
    "inspect": lambda folder: told("inspect", "Q4_K", "--svg", str(folder / "m.svg")),
    "cache": lambda folder: one_line(lambda: small().new_cache(context=4).save(folder / "m.cache")),
    "pages": lambda folder: one_line(lambda: session("paged.onnx").new_cache(context=4).save(folder / "m.cache")),
}


def one_line(call: Callable[[], object]) -> tuple[int, str]:
    """What a call raises, as a command would say it."""
    try:
        call()
    except TenonnxError as error:
        return 1, f"error: {error}\n"
    return 0, ""


@pytest.mark.parametrize("name", WRITERS)
def test_no_permission_to_write(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:  # one that other users reach
        Path(folder).chmod(0o555)
        root = os.geteuid() == 0  # who may write everywhere, and so takes another user's place meanwhile
        with tempfile.TemporaryDirectory() as another:
            assert WRITERS[name](Path(another))[0] == 0  # and all is imported, which another user may not read
        if root:
            os.seteuid(65534)
        try:
            code, line = WRITERS[name](Path(folder))
        finally:
            if root:
                os.seteuid(0)
        assert code == 1 and "cannot be written: Permission denied; " in line and line.count("\n") == 1, line
        assert not list(Path(folder).iterdir())


@pytest.mark.parametrize("name", [name for name in WRITERS if name not in ("plan", "inspect")])
def test_a_full_disk(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    assert WRITERS[name](tmp_path)[0] == 0
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(os, "fsync", full)
    code, line = WRITERS[name](tmp_path)
    assert code == 1 and "No space left on device; nothing was changed, name another place" in line and line.count("\n") == 1
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("paged", [False, True])
def test_a_cache_is_saved_where_a_link_leads(paged: bool, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "c").write_bytes(b"former")
    (tmp_path / "link").symlink_to("real/c")
    cache = (session("paged.onnx") if paged else small()).new_cache(context=4)
    cache.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real" / "c").read_bytes() != b"former"
    assert [path.name for path in (tmp_path / "real").iterdir()] == ["c"]
    cache.load(tmp_path / "link")
