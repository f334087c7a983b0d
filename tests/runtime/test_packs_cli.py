"""tenonnx packs: what each command prints, and its exit code."""

from __future__ import annotations

import json
import os

import pytest
import typer
from typer.testing import CliRunner

from tenonnx import cli
from tests import packs
from tests.gguf_files import write_llama

pytestmark = pytest.mark.usefixtures("user_cache")


@pytest.fixture
def model(tmp_path):
    return packs.write(tmp_path / "m.onnx")


def run(*arguments):
    return CliRunner().invoke(cli.app, ["packs", *map(str, arguments)])


def told(*arguments, code=0):
    result = run(*arguments, "--json")
    assert result.exit_code == code and result.stdout.count("\n") == 1
    return json.loads(result.stdout)


def test_build_says_what_it_wrote(model):
    result = run("build", model)
    assert (result.exit_code, result.stdout) == (0, "m.onnx.x86_64.packs: 0.02 MB, 6 packs written and 0 kept for x86_64\n")
    assert run("build", model).stdout == "m.onnx.x86_64.packs: all 6 packs for x86_64 are there\n"
    assert told("build", model, "--device", "aarch64")["architecture"] == "aarch64"


def test_list_explain_verify_and_prune_agree(model):
    assert told("list", model)["packs"] == [] and told("explain", model)["packed_at_load"] == sorted(packs.WEIGHTS)
    run("build", model)
    assert [row["layout"] for row in told("list", model)["packs"]] == ["q4m.1", "q8.1", "f16.1", "q4.1", "f32.1", "bf16.1"]
    explained = told("explain", model)
    assert [row["kind"] for row in explained["packs"]] == ["hit"] * 6 and explained["packed_at_load"] == []
    assert told("verify", model) == {"model": str(model), "packs": 6, "faults": []}
    assert told("prune", model) == {"verdicts": [], "kept": 6, "freed": 0}
    assert told("prune", model, "--all")["kept"] == 0
    assert "6 packs, " not in run("list", model).stdout


def test_verify_ends_with_1_when_anything_is_wrong(model):
    run("build", model)
    os.truncate(packs.side(model), 100)
    result = run("verify", model)
    assert result.exit_code == 1 and result.stdout.endswith("faults\n") and "truncated" in result.stdout
    assert len(told("verify", model, code=1)["faults"]) >= 6


def test_a_size_over_the_limit_is_asked_for(model):
    refused = run("build", model, "--limit", 0)
    assert refused.exit_code == 2 and "0.02 MB, over the limit of 0 MB" in refused.stderr and "--yes" in refused.stderr
    assert not list(model.parent.glob("*.packs"))
    assert run("build", model, "--limit", 0, "--yes").exit_code == 0


def test_a_question_answered_with_no_and_with_ctrl_c(model, monkeypatch):
    def no(*_, **__):
        raise typer.Abort

    def interrupted(*_, **__):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise typer.Abort from None

    for build, code, told in ((no, 1, "error: the question was answered with no; nothing was done\n"), (interrupted, 130, "")):
        monkeypatch.setattr("tenonnx.compiled.store.build", build)
        result = run("build", model)
        assert (result.exit_code, result.stderr, result.stdout) == (code, told, "")


def test_an_unknown_device_and_a_missing_file_are_one_line(model):
    for arguments, code in ((("build", model, "--device", "i8086"), 2), (("explain", model.with_name("no.onnx")), 1)):
        result = run(*arguments)
        assert result.exit_code == code and result.stderr.startswith("error: ") and result.stderr.count("\n") == 1


def test_a_gguf_holds_no_packs(tmp_path):
    gguf = write_llama(tmp_path / "m.gguf")
    assert run("list", gguf).stdout == "0 packs, 0 bytes\n"
    for command in ("build", "explain", "verify", "prune"):
        assert f"convert it first: tenonnx convert {gguf} model.onnx" in run(command, gguf).stderr
