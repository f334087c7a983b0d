"""Slips of the hand that would lose a file or a cache's place: each is refused in one line, and nothing is lost."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tenonnx import CapacityError, Session, ShapeError, cli, convert, save, text
from tenonnx.cache import PagedCache, PagePool, PageSpec, PageTable, saved_note
from tenonnx.errors import CheckError, OptionError, PayloadError
from tenonnx.structs import array, bits, f16, tensor, u8
from tests.gguf_files import write_llama
from tests.models import BOOL, FLOAT, INT64, Graph, cache_model, spec_example


def command(*arguments: object) -> str:
    """Standard error of a command that ends in one line."""
    done = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
    assert done.exit_code in (1, 2) and isinstance(done.exception, SystemExit), done.output
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("error: ")
    return done.stderr


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save(spec_example(), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_no_file_takes_the_place_of_a_device_or_a_pipe(model: Path, pipe: Path) -> None:
    cache = Session(cache_model()).new_cache(context=4)
    for write in (lambda: cache.save(pipe), lambda: save(spec_example(), pipe)):
        with pytest.raises(PayloadError, match="is a device or a pipe, not a file"):
            write()
    assert "not a file" in command("convert", model, pipe)
    assert "not a file" in command("quantize", model, pipe, "--weights", "*=Q8_0")
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("out", [".", "", ".."])
def test_a_folder_is_named_where_a_file_has_to_be(model: Path, monkeypatch: pytest.MonkeyPatch, out: str) -> None:
    monkeypatch.chdir(model.parent)
    assert "is a folder; name a file in it" in command("convert", model, out)
    assert "is a folder; name a file in it" in command("quantize", model, out, "--weights", "*=Q8_0")


def test_a_drawing_never_replaces_a_model(model: Path) -> None:
    before = model.read_bytes()
    dims = [option for name in ("batch", "heads", "max_length", "head_size", "new_length") for option in ("--dim", f"{name}=2")]
    assert "ends in .html" in command("plan", model, *dims, "--html", model)
    assert "ends in .svg" in command("inspect", "Q4_0", "--svg", model)
    assert model.read_bytes() == before


@pytest.mark.parametrize("length", [1.5, True, np.array([1]), None, -1, 3, "1"], ids=repr)
def test_a_length_that_is_no_whole_number_of_valid_positions(length: object) -> None:
    dense = Session(cache_model()).new_cache(context=4)
    paged = PagedCache(PagePool({"k": PageTable(PageSpec(FLOAT, (1, 2, 4, 8)))}), None, 16)
    for cache in (dense, paged):
        with pytest.raises(CapacityError, match="expected 0 to 0, the valid length"):
            cache.truncate(length)
        cache.truncate(np.int64(0))
        assert type(cache.length) is int and cache.length == 0


def test_a_context_and_a_dimension_that_contradict_it() -> None:
    session = Session(spec_example())
    dims = {"batch": 1, "heads": 2, "head_size": 4}
    assert session.new_cache(context=8, dims=dims | {"max_length": 8}).capacity == 8
    with pytest.raises(ShapeError, match="context 8: max_length is given as 99; leave one of the two out"):
        session.new_cache(context=8, dims=dims | {"max_length": 99})
    with pytest.raises(ShapeError, match=r"\(heads\) is -1; expected 0 or more"):
        session.new_cache(context=8, dims=dims | {"heads": -1})


@pytest.mark.parametrize("context", [2**40, 2**62, 2**80])
def test_a_context_that_no_memory_holds(context: int) -> None:
    with pytest.raises(CapacityError, match="cannot be allocated; ask for a shorter context"):
        Session(spec_example()).new_cache(context=context, dims={"batch": 8, "heads": 8, "head_size": 64})


@pytest.mark.parametrize("policy", ["os:system", "os:sep", "tests.models:FLOAT"])
def test_a_policy_that_is_none(policy: str) -> None:
    from tenonnx.cache import parse_policy

    with pytest.raises(OptionError, match="name an object with new_format and formats"):
        parse_policy(policy)


@pytest.mark.parametrize("policy", [3, object(), ("F16", 3)], ids=str)
def test_a_policy_in_python_that_is_none(policy: object) -> None:
    pool = PagePool({"k": PageTable(PageSpec(FLOAT, (1, 2, 4, 8)))}, ("k",))
    with pytest.raises(OptionError, match="is no policy; name an object"):
        PagedCache(pool, policy)


def test_a_policy_by_its_name() -> None:
    pool = PagePool({"k": PageTable(PageSpec(FLOAT, (1, 2, 4, 8)))})
    assert [chosen.new_format() for chosen, _ in PagedCache(pool, "int8_page")._groups] == ["INT8_PAGE"]


@pytest.mark.parametrize("heads", [2**31, 2**62])
def test_a_page_that_no_memory_holds(heads: int) -> None:
    with pytest.raises(CapacityError, match="cannot be allocated; free pages, or choose a smaller format"):
        PageTable(PageSpec(FLOAT, (2**31, heads, 16, 64))).create(0, "F16")


@pytest.mark.parametrize(
    "declare, text",
    [
        (lambda: bits(x=2.5, y=5.5)[3], "width of component 'x' is 2.5"),
        (lambda: bits(q="5")[1], "width of component 'q' is '5'"),
        (lambda: bits(q=5)[8.5], "dimension is 8.5"),
        (lambda: f16[2, 2], r"dimension is \(2, 2\)"),
        (lambda: f16["a"], "dimension is 'a'"),
        (lambda: tensor(u8, 3.0), "dimension is 3.0"),
        (lambda: array(f16, None), "dimension is None"),
        (lambda: u8[True], "dimension is True"),
    ],
)
def test_widths_and_dimensions_of_types_are_whole_numbers(declare, text):
    with pytest.raises(CheckError, match=text):
        declare()
    assert bits(q=np.int64(4))[np.int32(2)].bits == 8


def test_a_gguf_whose_name_is_not_utf_8(tmp_path):
    path = os.fsencode(tmp_path) + b"/m\xfcll.gguf"
    write_llama(tmp_path / "m.gguf").rename(os.fsdecode(path))
    for name in ("inspect", "check", "plan"):
        told = command(name, os.fsdecode(path))
        assert "is not UTF-8" in told and "give it another name" in told


def test_no_onnx_model_is_written_under_the_name_of_a_gguf(tmp_path):
    write_llama(tmp_path / "m.gguf")
    assert "ends in .onnx" in command("convert", tmp_path / "m.gguf", tmp_path / "x.gguf")
    assert not (tmp_path / "x.gguf").exists()


def test_completion_offers_no_name_that_a_shell_evaluates_and_survives_odd_links(tmp_path, monkeypatch):
    from tenonnx.cli.completion import models

    monkeypatch.chdir(tmp_path)
    for name in ("m.onnx", "$(touch x).onnx", "`x`.onnx", "a\nb.onnx", "a\\b.onnx", "two words.onnx"):
        (tmp_path / name).touch()
    os.symlink("/" + "a" * 300, "link.onnx")
    assert {name for name in models("") if name.endswith(".onnx")} == {"m.onnx", "two words.onnx", "link.onnx"}


@pytest.mark.parametrize("path", ["a\0b", "\ud800"])
def test_names_that_no_file_has(path):
    with pytest.raises((PayloadError, OSError)):
        saved_note(path)


def test_a_pipe_is_no_saved_cache(pipe):
    with pytest.raises(PayloadError, match="is not a regular file"):
        saved_note(pipe)


@pytest.mark.parametrize("paged", [True, 1.5, "64", None])
def test_pages_are_counted_in_tokens(tmp_path, paged):
    with pytest.raises(OptionError, match="paged is"):
        convert.from_gguf(write_llama(tmp_path / "m.gguf"), paged)


@pytest.mark.parametrize("opening", [-1, 99, float("inf"), "1", None, 1.0])
def test_a_conversation_begins_within_its_messages(tmp_path, opening):
    model, _ = convert.from_gguf(write_llama(tmp_path / "m.gguf", vocabulary="bpe"))
    model.metadata_props.add(key="tenonnx.chat_template", value="{{ messages[0].content }}")
    save(model, tmp_path / "m.onnx")
    talk = text.Conversation(text.load_model(tmp_path / "m.onnx"), context=32)
    talk.context.save(tmp_path / "talk", {"messages": [], "opening": opening})
    with pytest.raises(PayloadError, match="no conversation"):
        talk.load(tmp_path / "talk")


def test_an_update_in_a_branch_counts_by_whether_it_ran_whatever_its_name():
    g, then, other = Graph(), Graph(), Graph()
    g.input("flag", BOOL, [])
    g.input("cache", FLOAT, [1, 1, "capacity", 4], mutable=True)
    g.input("values", FLOAT, [1, 1, 3, 4])
    g.input("position", INT64, [])
    then.update("cache", "values", "position", "new")
    then.body.node[0].name = "a + b"
    then.output("new", FLOAT, None)
    other.output("cache", FLOAT, None)
    g.holding("If", ["flag"], "updated", then_branch=then, else_branch=other)
    g.output("updated", FLOAT, [1, 1, "capacity", 4], alias_of="cache")
    session = Session(g.model)
    cache = session.new_cache(context=9)
    for flag, length in ((False, 0), (True, 3), (False, 3)):
        session.run({"flag": np.array(flag), "values": np.ones((1, 1, 3, 4), np.float32)}, cache=cache)
        assert cache.length == length
