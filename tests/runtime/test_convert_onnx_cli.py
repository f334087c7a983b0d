"""tenonnx convert on ONNX models: options, the report, and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from typer.testing import CliRunner, Result

from tenonnx import cli
from tenonnx.schema import files
from tests.exports import Export


def convert(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, ["convert", *map(str, arguments)])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    onnx.save(Export(mask="window").build(), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_the_report_lists_every_cache_and_what_stays(source: Path) -> None:
    result = convert(source, source.with_name("out.onnx"))
    assert result.exit_code == 0, result.output
    lines = [line.strip() for line in result.stdout.splitlines()]
    for name in ("0.key", "0.value", "1.key", "1.value"):
        assert f"past.{name} -> present.{name}: CacheUpdate" in lines
    assert any("is not proved to be causal and stays as it is" in line for line in lines)


def test_the_report_as_json(source: Path) -> None:
    found = json.loads(convert(source, source.with_name("out.onnx"), "--json").stdout)
    assert [cache["source"] for cache in found["caches"]] == ["past.0.key", "past.0.value", "past.1.key", "past.1.value"]
    assert {cache["how"] for cache in found["caches"]} == {"CacheUpdate"}
    assert found["notes"]


def test_aliases_by_hand(tmp_path: Path) -> None:
    text = '<ir_version: 10, opset_import: ["": 24]> g (float[n] a, float[n] b) => (float[n] c) { c = Add(a, b) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    assert convert(tmp_path / "m.onnx", tmp_path / "out.onnx", "--alias", "c=a").exit_code == 0
    assert files.load(tmp_path / "out.onnx").graph.output[0].alias_of == "a"
    for wrong, code in (("c", 2), ("=a", 2), ("c=", 2), ("c=z", 1), ("z=a", 1)):
        assert convert(tmp_path / "m.onnx", tmp_path / "no.onnx", "--alias", wrong).exit_code == code
    assert not (tmp_path / "no.onnx").exists()


def test_portable(source: Path) -> None:
    declared = source.with_name("declared.onnx")
    assert convert(source, declared).exit_code == 0
    out = source.with_name("portable.onnx")
    assert convert(declared, out, "--portable", "float32").exit_code == 0
    onnx.checker.check_model(onnx.load(out), full_check=True)
    assert convert(declared, out, "--portable", "int9").exit_code == 2


def test_the_source_is_not_replaced(source: Path) -> None:
    before = source.read_bytes()
    result = convert(source, source)
    assert result.exit_code == 1
    assert source.read_bytes() == before


def test_external_weights_elsewhere_need_copy(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    onnx.save(Export().build(), tmp_path / "in" / "m.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    result = convert(tmp_path / "in" / "m.onnx", tmp_path / "m.onnx")
    assert result.exit_code == 1
    assert "--copy" in result.stderr
    assert convert(tmp_path / "in" / "m.onnx", tmp_path / "m.onnx", "--copy").exit_code == 0
    assert convert(tmp_path / "in" / "m.onnx", tmp_path / "in" / "weights", "--copy").exit_code == 1
    assert convert(tmp_path / "in" / "m.onnx", tmp_path / "in" / "out.onnx").exit_code == 0
