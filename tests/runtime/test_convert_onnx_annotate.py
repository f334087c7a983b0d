"""Caches that operators can update in place are declared, those that cannot are named with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from tenonnx import Session, convert, writable
from tenonnx.check import check
from tenonnx.errors import AliasError, CheckError
from tenonnx.schema import files
from tenonnx.schema.messages import ValueInfoProto, from_onnx

SCATTER = """<ir_version: 10, opset_import: ["": 24]>
g (float[batch, 2, capacity, 4] cache, float[batch, 2, n, 4] rows, int64[batch] at)
    => (float[batch, 2, capacity, 4] new_cache%s)
{ %s }"""


def convert_text(folder: Path, text: str, **aliases: str) -> tuple[Any, list[str]]:
    onnx.save(parser.parse_model(text), folder / "m.onnx")
    model, _, findings = convert.from_onnx(folder / "m.onnx", aliases)
    return model, [str(cache) for cache in findings.caches]


def access(model: Any) -> dict[str, int]:
    return {value.name: value.access for value in model.graph.input}


def test_tensor_scatter(tmp_path: Path) -> None:
    model, lines = convert_text(tmp_path, SCATTER % ("", "new_cache = TensorScatter(cache, rows, at)"))
    assert lines == ["cache -> new_cache: TensorScatter writes in place"]
    assert access(model)["cache"] == ValueInfoProto.READ_WRITE
    assert access(model)["rows"] == ValueInfoProto.READ_ONLY
    assert model.graph.output[0].alias_of == "cache"
    assert check(model) == []
    cache, rows = np.zeros((2, 2, 5, 4), np.float32), np.ones((2, 2, 2, 4), np.float32)
    result = Session(model).run({"cache": writable(cache), "rows": rows, "at": np.array([0, 3])})
    assert result["new_cache"] is cache
    assert cache[0, 0, :, 0].tolist() == [1, 1, 0, 0, 0]
    assert cache[1, 1, :, 2].tolist() == [0, 0, 0, 1, 1]


def test_a_chain_of_two(tmp_path: Path) -> None:
    body = "middle = TensorScatter(cache, rows, at) new_cache = TensorScatter(middle, rows, at)"
    model, lines = convert_text(tmp_path, SCATTER % ("", body))
    assert lines == ["cache: TensorScatter writes in place", "cache -> new_cache: TensorScatter writes in place"]
    assert check(model) == []


def test_a_fork_of_one_cache(tmp_path: Path) -> None:
    body = "new_cache = TensorScatter(cache, rows, at) other = TensorScatter(cache, rows, at)"
    model, lines = convert_text(tmp_path, SCATTER % (", float[batch, 2, capacity, 4] other", body))
    assert any("other: not converted" in line and "take over the storage of 'cache'" in line for line in lines)
    assert check(model) == []


def test_a_reader_of_the_old_content_that_needs_the_new(tmp_path: Path) -> None:
    body = "new_cache = TensorScatter(cache, rows, at) sum = Add(cache, new_cache)"
    model, lines = convert_text(tmp_path, SCATTER % (", float[batch, 2, capacity, 4] sum", body))
    assert len(lines) == 1
    assert "not converted" in lines[0]
    assert "read the updated value" in lines[0]
    assert access(model)["cache"] == ValueInfoProto.READ_ONLY
    assert check(model) == []


def test_an_intermediate_value_is_no_cache(tmp_path: Path) -> None:
    model, lines = convert_text(tmp_path, SCATTER % ("", "copy = Neg(cache) new_cache = TensorScatter(copy, rows, at)"))
    assert [line for line in lines if "writes in place" in line] == []
    assert len(model.graph.node[1].output_alias) == 0


def test_a_cache_update_without_its_alias_is_filled_in(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 24, "tenonnx": 1]>
    g (float[batch, 2, capacity, 4] cache, float[batch, 2, n, 4] rows, int64 position) => (float[batch, 2, capacity, 4] updated)
    { updated = tenonnx.CacheUpdate(cache, rows, position) }"""
    assert any(found.rule == "cache-update-alias" for found in check(from_onnx(parser.parse_model(text))))
    model, lines = convert_text(tmp_path, text)
    assert lines == ["cache -> updated: CacheUpdate writes in place"]
    assert check(model) == []


def test_what_is_declared_already_stays_as_it_is(tmp_path: Path) -> None:
    model, _ = convert_text(tmp_path, SCATTER % ("", "new_cache = TensorScatter(cache, rows, at)"))
    files.save(model, tmp_path / "again.onnx")
    again, _, findings = convert.from_onnx(tmp_path / "again.onnx")
    assert again == model
    assert findings.caches == []


# ---- By hand

BY_HAND = SCATTER % (
    ", float[batch, 2, capacity, 4] louder",
    "new_cache = TensorScatter(cache, rows, at) louder = Mul(rows, rows)",
)
IN_PLACE = """<ir_version: 10, opset_import: ["": 24]>
g (float[n] state, float[n] step) => (float[n] next) { next = Add(state, step) }"""


def test_by_hand(tmp_path: Path) -> None:
    model, lines = convert_text(tmp_path, IN_PLACE, next="state")
    assert "state -> next: aliased by hand" in lines
    assert check(model) == []
    state = np.arange(3, dtype=np.float32)
    result = Session(model).run({"state": writable(state), "step": np.ones(3, np.float32)})
    assert result["next"] is state
    assert state.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("aliases", "message"),
    [
        ({"nothing": "cache"}, "no output 'nothing'"),
        ({"louder": "nothing"}, "no input 'nothing'"),
        ({"louder": "cache"}, "'cache' is none of them"),
    ],
)
def test_by_hand_what_the_graph_does_not_have(tmp_path: Path, aliases: dict[str, str], message: str) -> None:
    with pytest.raises(AliasError, match=message):
        convert_text(tmp_path, BY_HAND, **aliases)


def test_by_hand_against_the_contract(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 24]>
    g (float[n] state, float[n] step) => (float[n] next, float[n] last) { next = Add(state, step) last = Sub(state, step) }"""
    with pytest.raises(CheckError, match="take over the storage of 'state'"):
        convert_text(tmp_path, text, next="state", last="state")
