"""Models to and from disk: whole or not at all, and never a byte of a weight lost."""

from __future__ import annotations

import os

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tenonnx.errors import PayloadError, UnsupportedError
from tenonnx.schema import files
from tenonnx.schema.external import DataRoot
from tenonnx.schema.files import data_folder, external_files, load, save
from tenonnx.schema.messages import ModelProto, TensorProto, from_onnx
from tenonnx.schema.payload import tensor_array
from tests.pure.schema_models import TRUTH, WEIGHTS, contents, external_model, small_model

# ---- Round trips --------------------------------------------------------------------------------------------------------


def test_a_saved_model_is_the_loaded_one(tmp_path):
    model = small_model()
    save(model, tmp_path / "m.onnx")
    assert load(tmp_path / "m.onnx") == model == load(str(tmp_path / "m.onnx"))
    assert os.listdir(tmp_path) == ["m.onnx"]


@pytest.mark.parametrize("threshold", [0, 1, 2001, 4096, 4097, 12000, 12001])
def test_a_threshold_moves_initializers_of_at_least_its_bytes(tmp_path, threshold):
    model = small_model()
    save(model, tmp_path / "m.onnx", threshold=threshold)
    saved = load(tmp_path / "m.onnx")
    assert contents(saved, tmp_path) == TRUTH
    assert model == small_model(), "the given model is changed"
    moved = {value.name for value in [*saved.graph.initializer, *saved.graph.struct_initializer] if value.external_data}
    assert moved == {name for name in ("a", "b", "s") if len(TRUTH[name]) >= threshold}
    assert (tmp_path / "m.onnx.data").exists() == bool(moved)
    assert external_files(saved) == ({"m.onnx.data"} if moved else set())


def test_payloads_of_the_side_file_can_be_mapped_alone(tmp_path):
    save(small_model(), tmp_path / "m.onnx", threshold=0)
    for value in files.payloads(load(tmp_path / "m.onnx")):
        offsets = [int(entry.value) for entry in value.external_data if entry.key == "offset"]
        assert all(offset % 4096 == 0 for offset in offsets)


def test_stock_onnx_reads_what_was_moved(tmp_path):
    save(small_model(), tmp_path / "m.onnx", threshold=0)
    stock = onnx.load(tmp_path / "m.onnx")
    assert [numpy_helper.to_array(tensor).tobytes() for tensor in stock.graph.initializer] == [TRUTH["a"], TRUTH["b"]]


def test_what_stock_onnx_moved_is_read(tmp_path):
    stock = helper.make_model(helper.make_graph([], "g", [], [], [numpy_helper.from_array(WEIGHTS["a"], "a")]))
    onnx.save(stock, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    tensor = load(tmp_path / "m.onnx").graph.initializer[0]
    assert tensor_array(tensor, DataRoot(tmp_path)).tobytes() == TRUTH["a"]


TYPED = [
    helper.make_tensor("f", 1, [3], [1.5, -2, 0]),
    helper.make_tensor("h", 10, [3], [1.5, -2, 0]),
    helper.make_tensor("bf", 16, [2], [1.5, -2]),
    helper.make_tensor("i4", 22, [5], [1, -8, 7, 0, 3]),
    helper.make_tensor("u2", 25, [5], [1, 3, 2, 0, 3]),
    helper.make_tensor("f8", 17, [2], [1.5, -2]),
    helper.make_tensor("i64", 7, [2], [2**62, -1]),
    helper.make_tensor("u64", 13, [1], [2**64 - 1]),
    helper.make_tensor("d", 11, [2], [1.5, -2]),
    helper.make_tensor("c", 14, [2], [1 + 2j, 3j]),
    helper.make_tensor("bool", 9, [2], [True, False]),
]


@pytest.mark.parametrize("tensor", TYPED, ids=lambda tensor: tensor.name)
def test_typed_fields_move_as_the_same_elements(tmp_path, tensor):
    model = ModelProto()
    model.graph.initializer.append(from_onnx(tensor))
    save(model, tmp_path / "m.onnx", threshold=0)
    saved = load(tmp_path / "m.onnx").graph.initializer[0]
    assert saved.data_location == TensorProto.EXTERNAL
    found = tensor_array(saved, DataRoot(tmp_path))
    expected = numpy_helper.to_array(tensor)
    assert found.dtype == expected.dtype and found.tobytes() == expected.tobytes()


def test_strings_and_empty_tensors_stay_in_the_model(tmp_path):
    model = ModelProto()
    model.graph.initializer.add(name="text", data_type=8, dims=[1], string_data=[b"text"])
    model.graph.initializer.add(name="none", data_type=1, dims=[0])
    save(model, tmp_path / "m.onnx", threshold=0)
    assert load(tmp_path / "m.onnx") == model


# ---- External data that the model brings --------------------------------------------------------------------------------


def test_external_data_of_the_same_folder_is_left_where_it_lies(tmp_path):
    model = external_model(tmp_path)
    data, before = (tmp_path / "old.onnx.data").read_bytes(), (tmp_path / "old.onnx.data").stat()
    save(model, tmp_path / "new.onnx")
    assert load(tmp_path / "new.onnx") == model
    after = (tmp_path / "old.onnx.data").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert (tmp_path / "old.onnx.data").read_bytes() == data and not (tmp_path / "new.onnx.data").exists()


def test_external_data_of_another_folder_is_refused_before_anything_is_written(tmp_path):
    model = external_model(tmp_path)
    (tmp_path / "other").mkdir()
    with pytest.raises(PayloadError, match=r"not in .*other"):
        save(model, tmp_path / "other" / "new.onnx")
    assert os.listdir(tmp_path / "other") == []


def test_a_copy_takes_every_payload_along(tmp_path):
    model = external_model(tmp_path)
    for tensor in (model.graph.node[1].attribute[0].g.node[0].attribute[0].t, model.functions[0].attribute_proto[0].t):
        tensor.CopyFrom(model.graph.initializer[1])  # tensors of attributes may lie in the file too
    (tmp_path / "other").mkdir()
    copied = []
    save(model, tmp_path / "other" / "new.onnx", data_root=tmp_path, progress=copied.append)
    for name in ("old.onnx", "old.onnx.data"):
        (tmp_path / name).unlink()
    saved = load(tmp_path / "other" / "new.onnx")
    assert external_files(saved) == {"new.onnx.data"}
    assert contents(saved, tmp_path / "other") == TRUTH
    assert sum(copied) == sum(map(len, TRUTH.values()))


@pytest.mark.parametrize("options", [{}, {"threshold": 0}, {"copy": True}, {"copy": True, "threshold": 0}], ids=str)
@pytest.mark.parametrize("spelling", ["", "./"])
def test_saving_over_its_own_source_loses_nothing(tmp_path, options, spelling):
    """The side file that is written is the one that the model's bytes lie in."""
    model = external_model(tmp_path)
    for value in files.payloads(model):
        for entry in value.external_data:
            if entry.key == "location":
                entry.value = spelling + entry.value
    model.graph.initializer.append(from_onnx(numpy_helper.from_array(WEIGHTS["a"], "added")))
    options = dict(options)
    if options.pop("copy", False):
        options["data_root"] = tmp_path
    for _ in range(2):
        save(model, tmp_path / "old.onnx", **options)
        model = load(tmp_path / "old.onnx")
        assert contents(model, tmp_path) == {**TRUTH, "added": TRUTH["a"]}
    assert sorted(os.listdir(tmp_path)) == ["old.onnx", "old.onnx.data"]


def test_a_threshold_keeps_external_data_of_other_files(tmp_path):
    model = external_model(tmp_path)
    model.graph.initializer.append(from_onnx(numpy_helper.from_array(WEIGHTS["a"], "added")))
    save(model, tmp_path / "new.onnx", threshold=0)
    saved = load(tmp_path / "new.onnx")
    assert external_files(saved) == {"old.onnx.data", "new.onnx.data"}
    assert contents(saved, tmp_path) == {**TRUTH, "added": TRUTH["a"]}


# ---- Over protobuf's limit ----------------------------------------------------------------------------------------------


def test_a_model_over_the_limit_goes_to_a_side_file(tmp_path, monkeypatch):
    model = small_model()
    del model.graph.node[1], model.functions[:]
    monkeypatch.setattr(files, "PROTOBUF_LIMIT", model.ByteSize())
    save(model, tmp_path / "fits.onnx")
    assert not (tmp_path / "fits.onnx.data").exists()
    monkeypatch.setattr(files, "PROTOBUF_LIMIT", model.ByteSize() - 1)
    save(model, tmp_path / "over.onnx")
    saved = load(tmp_path / "over.onnx")
    assert all(value.external_data for value in files.payloads(saved))
    assert tensor_array(saved.graph.initializer[0], DataRoot(tmp_path)).tobytes() == TRUTH["a"]


def test_a_copy_that_is_over_the_limit_moves_the_rest_too(tmp_path, monkeypatch):
    model = external_model(tmp_path)
    model.graph.initializer.append(from_onnx(numpy_helper.from_array(WEIGHTS["a"], "added")))
    monkeypatch.setattr(files, "PROTOBUF_LIMIT", model.ByteSize() - 1)
    (tmp_path / "other").mkdir()
    save(model, tmp_path / "other" / "new.onnx", data_root=tmp_path)
    assert contents(load(tmp_path / "other" / "new.onnx"), tmp_path / "other") == {**TRUTH, "added": TRUTH["a"]}


def test_a_graph_over_the_limit_is_refused_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PROTOBUF_LIMIT", 100)
    with pytest.raises(UnsupportedError, match="even without its initializers"):
        save(small_model(), tmp_path / "m.onnx")
    assert os.listdir(tmp_path) == []


def test_a_file_over_the_limit_is_no_model(tmp_path, monkeypatch):
    save(small_model(), tmp_path / "m.onnx")
    monkeypatch.setattr(files, "PROTOBUF_LIMIT", 100)
    with pytest.raises(PayloadError, match="over the 100 of a protobuf message"):
        load(tmp_path / "m.onnx")


@pytest.mark.slow
def test_more_than_two_gigabytes(tmp_path):
    part = np.arange(2**26, dtype=np.int64).view(np.uint8)  # 512 MB
    model = ModelProto(ir_version=11)
    for index in range(5):
        model.graph.initializer.add(name=f"w{index}", data_type=2, dims=[part.size], raw_data=part.tobytes())
    save(model, tmp_path / "big.onnx")
    assert (tmp_path / "big.onnx").stat().st_size < 2000
    saved, root = load(tmp_path / "big.onnx"), DataRoot(tmp_path)
    for tensor in saved.graph.initializer:
        assert np.array_equal(tensor_array(tensor, root), part)


# ---- The folder of external data ----------------------------------------------------------------------------------------


def test_data_beside_a_link_is_taken_first(tmp_path):
    model = external_model(tmp_path)
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "m.onnx"
    link.symlink_to("../old.onnx")
    assert data_folder(model, link) == tmp_path.resolve(), "the data lies beside the file that the link names"
    (tmp_path / "links" / "old.onnx.data").write_bytes((tmp_path / "old.onnx.data").read_bytes())
    assert data_folder(model, link) == tmp_path / "links"
    assert data_folder(model, tmp_path / "old.onnx") == tmp_path
    assert data_folder(small_model(), link) == tmp_path / "links"


def test_a_linked_folder_is_a_folder(tmp_path):
    (tmp_path / "real").mkdir()
    model = external_model(tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    assert contents(model, data_folder(model, tmp_path / "link" / "old.onnx")) == TRUTH
