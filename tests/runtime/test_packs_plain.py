"""Packs of plain float initializers: written, mapped, passed over when stale, whichever way the source is stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from tenonnx import Session, check, load, save
from tenonnx.compiled import store
from tenonnx.compiled.inventory import Inventory
from tenonnx.compiled.prune import prune
from tests import packs
from tests.models import FLOAT, INT64, Graph

pytestmark = pytest.mark.usefixtures("user_cache")

K = 24
# By name: element type, and the dims of the source; of "square" both readings are possible.
WEIGHTS: dict[str, tuple[Any, tuple[int, int]]] = {
    "columns": (np.float32, (K, 13)),
    "rows": (np.float32, (17, K)),
    "half": (np.float16, (K, 9)),
    "brain": (ml_dtypes.bfloat16, (8, K)),
    "gemm": (np.float32, (5, K)),
    "square": (np.float32, (K, K)),
}
LAYOUTS = {
    "columns": "f32.1.transposed",
    "rows": "f32.1",
    "half": "f16.1.transposed",
    "brain": "bf16.1",
    "gemm": "f32.1",
    "square": "f32.1.transposed",
}


def model() -> Any:
    g, random = Graph(opset=22), np.random.default_rng(0)
    for name, (dtype, dims) in WEIGHTS.items():
        g.constant(name, random.standard_normal(dims).astype(dtype))
    g.input("x", FLOAT, ["n", K]), g.input("ids", INT64, ["k"])
    g.node("MatMul", ["x", "columns"], "columns.y")
    g.node("MatMul", ["x", g.node("Transpose", ["rows"], "rows.t")], "rows.y")
    g.node("MatMul", ["x", g.node("Cast", ["half"], "half.wide", to=FLOAT)], "half.y")
    g.node("MatMul", ["x", g.node("Transpose", [g.node("Cast", ["brain"], "brain.wide", to=FLOAT)], "brain.t")], "brain.y")
    g.node("Gemm", ["x", "gemm"], "gemm.y", transB=1)
    g.node("MatMul", ["x", "square"], "square.y")
    for name in WEIGHTS:
        g.output(f"{name}.y", FLOAT, ["n", f"{name}.n"])
    g.output(g.node("Gather", ["rows", "ids"], "embedded"), FLOAT, ["k", K])
    return g.model


@pytest.fixture(params=["inline", "external"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    found = tmp_path / "m.onnx"
    save(model(), found)
    if request.param == "external":
        onnx.save(onnx.load(found), found, save_as_external_data=True, location="m.data", size_threshold=0)
    return found


def run(session: Session) -> dict[str, bytes]:
    x = np.random.default_rng(7).standard_normal((3, K)).astype(np.float32)
    return {name: array.tobytes() for name, array in session.run({"x": x, "ids": np.array([8, 0, -1])}).items()}


def verdicts(session: Session) -> dict[str, str]:
    return {verdict.source: verdict.kind for verdict in session.packs}


def edited(path: Path, name: str, change: Callable[[np.ndarray], None]) -> None:
    """Change the content of an initializer where it lies."""
    (tensor,) = (tensor for tensor in onnx.load(path, load_external_data=False).graph.initializer if tensor.name == name)
    place = {entry.key: entry.value for entry in tensor.external_data}
    if place:
        data = bytearray((path.parent / "m.data").read_bytes())
        change(np.frombuffer(data, np.uint8, int(place["length"]), int(place["offset"])))
        (path.parent / "m.data").write_bytes(data)
        return

    def inline(found: Any) -> None:
        (tensor,) = (tensor for tensor in found.graph.initializer if tensor.name == name)
        data = bytearray(tensor.raw_data)
        change(np.frombuffer(data, np.uint8))
        tensor.raw_data = bytes(data)

    packs.edit(path, inline)


def test_what_is_built_is_sound_and_decodes_to_its_sources(path: Path) -> None:
    plan = store.build(path)
    assert (plan.kept, plan.new) == (0, len(WEIGHTS))
    assert check(str(path)) == [] and list(Inventory(path).faults()) == []
    assert {found.source: found.layout for found in Inventory(path).verdicts()} == LAYOUTS
    assert len(onnx.load(path, load_external_data=False).graph.initializer) == len(WEIGHTS)


def test_packs_are_mapped_and_give_the_same_bits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run(Session(path, packs="off"))
    store.build(path)

    def never(*_: object) -> None:
        raise AssertionError("a weight was packed at load")

    monkeypatch.setattr("tenonnx.runtime.weights.pack", never)
    monkeypatch.setattr("tenonnx.runtime.weights.tensor_content", never)
    session = Session(path)
    assert verdicts(session) == dict.fromkeys(WEIGHTS, "hit") and run(session) == expected


def test_write_stores_what_the_model_lacks(path: Path) -> None:
    expected = run(Session(path))
    session = Session(path, packs="write")
    assert verdicts(session) == dict.fromkeys(WEIGHTS, "hit") and run(session) == expected
    before = packs.side(path).stat()
    assert run(Session(path, packs="write")) == expected and packs.side(path).stat() == before


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_changed_source_is_stale_and_packed_anew(path: Path, name: str) -> None:
    store.build(path)
    edited(path, name, lambda data: data.__setitem__(slice(0, 2), [1, 2]))
    expected = run(Session(path, packs="off"))
    session = Session(path)
    assert verdicts(session) == {**dict.fromkeys(WEIGHTS, "hit"), name: "miss"}
    assert run(session) == expected
    assert any("stale" in fault.message for fault in Inventory(path).faults())
    assert [found.source for found in prune(path).verdicts] == [name]
    assert store.build(path).new == 1 and verdicts(Session(path)) == dict.fromkeys(WEIGHTS, "hit")


def test_a_square_weight_that_is_now_read_the_other_way_misses(path: Path) -> None:
    """Its content and shape are those of the pack, but its rows are now its columns."""
    store.build(path)

    def turn(found: Any) -> None:
        (reader,) = (node for node in found.graph.node if "square" in node.input)
        node = found.graph.node.add(op_type="Transpose", input=["square"], output=["square.t"])
        found.graph.node.remove(node)
        position = list(found.graph.node).index(reader)
        reader.input[1] = "square.t"
        found.graph.node.insert(position, node)

    packs.edit(path, turn)
    session = Session(path)
    assert verdicts(session) == {**dict.fromkeys(WEIGHTS, "hit"), "square": "miss"}
    assert run(session) == run(Session(path, packs="off"))
    store.build(path)
    assert verdicts(Session(path))["square"] == "hit" and run(Session(path)) == run(Session(path, packs="off"))


def test_a_source_moved_to_a_file_keeps_its_pack(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    save(model(), path)
    store.build(path)
    found = load(path)
    (tensor,) = (tensor for tensor in found.graph.initializer if tensor.name == "columns")
    (tmp_path / "moved").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = tensor.EXTERNAL
    tensor.external_data.add(key="location", value="moved")
    path.write_bytes(found.SerializeToString())
    assert verdicts(Session(path)) == dict.fromkeys(WEIGHTS, "hit")
