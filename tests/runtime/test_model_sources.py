"""The same model from a path, through links, and from stock onnx: what a user may pass, and where its data is looked for."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import tenonnx
from tenonnx.errors import PayloadError, UnsupportedError
from tenonnx.schema.messages import ModelProto, as_model

WEIGHT = np.arange(4, dtype=np.float32)
X = {"x": np.ones(4, np.float32)}


def stock_model():
    model = parser.parse_model('<ir_version: 11, opset_import: ["": 21]> g (float[4] x) => (float[4] y) { y = Add(x, w) }')
    model.graph.initializer.append(numpy_helper.from_array(WEIGHT, "w"))
    return model


@pytest.fixture
def path(tmp_path):
    """real/m.onnx with its weight in real/m.onnx.data."""
    (tmp_path / "real").mkdir()
    tenonnx.save(stock_model(), tmp_path / "real" / "m.onnx", threshold=0)
    return tmp_path / "real" / "m.onnx"


def runs(model, **options):
    return tenonnx.Session(model, **options).run(X)["y"].tolist() == [1, 2, 3, 4]


def test_a_path(path, monkeypatch):
    assert runs(path) and runs(str(path)) and tenonnx.check(path) == []
    monkeypatch.chdir(path.parent)
    assert runs("m.onnx") and tenonnx.check("m.onnx") == []


def test_a_link_to_the_model(path, tmp_path):
    (tmp_path / "link.onnx").symlink_to("real/m.onnx")
    assert runs(tmp_path / "link.onnx") and tenonnx.check(tmp_path / "link.onnx") == []


def test_a_link_to_its_folder(path, tmp_path):
    (tmp_path / "folder").symlink_to("real")
    assert runs(tmp_path / "folder" / "m.onnx")


def test_a_folder_that_moved(path, tmp_path):
    (tmp_path / "real").rename(tmp_path / "moved")
    assert runs(tmp_path / "moved" / "m.onnx")


def test_another_data_root(path, tmp_path):
    path.rename(tmp_path / "alone.onnx")
    with pytest.raises(PayloadError, match="put it beside the model"):
        runs(tmp_path / "alone.onnx")
    assert runs(tmp_path / "alone.onnx", data_root=tmp_path / "real")


def test_a_check_looks_at_external_tensors(path, tmp_path):
    path.with_name("m.onnx.data").write_bytes(bytes(15))
    assert [(found.rule, found.where) for found in tenonnx.check(path)] == [("tensor-is-exact", "tensor 'w'")]
    assert tenonnx.check(tenonnx.load(path)) == [], "a model in memory has no folder to look in"
    wrong = stock_model()
    wrong.graph.initializer[0].dims[0] = 5
    assert [found.rule for found in tenonnx.check(wrong)] == ["tensor-is-exact"]


def test_a_linked_weight_file_is_refused(path, tmp_path):
    data = path.with_name("m.onnx.data")
    data.rename(tmp_path / "elsewhere")
    data.symlink_to("../elsewhere")
    with pytest.raises(PayloadError, match="symbolic link"):
        runs(path)


def test_a_model_of_stock_onnx(tmp_path):
    model = stock_model()
    assert runs(model) and tenonnx.check(model) == []
    assert len(tenonnx.plan(model).steps) == 1 and tenonnx.ShapesContext(model)["y"].dims == (4,)
    tenonnx.save(model, tmp_path / "m.onnx")
    assert onnx.load(tmp_path / "m.onnx") == model
    ours = as_model(model)
    assert isinstance(ours, ModelProto) and as_model(ours) is ours


@pytest.mark.parametrize(
    "model", [None, 3, b"bytes", onnx.GraphProto(), tenonnx.GraphProto()], ids=lambda model: type(model).__name__
)
@pytest.mark.parametrize("entry", ["check", "plan", "Session", "ShapesContext"])
def test_what_is_no_model(entry, model):
    with pytest.raises(UnsupportedError, match="expected a ModelProto, found"):
        getattr(tenonnx, entry)(model)
