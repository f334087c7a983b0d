"""Models to and from disk: whole or not at all, and never a byte of a weight lost."""

from __future__ import annotations

import os
import stat

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tenonnx.errors import CheckError, PayloadError, TenonnxError, UnsupportedError
from tenonnx.schema import atomic, files
from tenonnx.schema.external import DataRoot
from tenonnx.schema.files import data_folder, external_files, load, save
from tenonnx.schema.messages import ModelProto, TensorProto, from_onnx
from tenonnx.schema.payload import struct_payload, tensor_array

RNG = np.random.default_rng(0)
WEIGHTS = {"a": RNG.standard_normal(3000).astype(np.float32), "b": RNG.integers(0, 256, 5000, np.uint8)}
STRUCT, PACK = RNG.bytes(4096), RNG.bytes(2000)


def small_model():
    """y = x + a: initializers a and b, a structured value, a pack, and a tensor inside a branch and inside a node."""
    model = ModelProto(ir_version=11)
    model.opset_import.add(version=20)
    graph = model.graph
    graph.name = "g"
    for name in WEIGHTS:
        graph.initializer.append(from_onnx(numpy_helper.from_array(WEIGHTS[name], name)))
    graph.struct_initializer.add(type=0, name="s", raw_data=STRUCT)
    graph.input.add(name="x").type.tensor_type.elem_type = 1
    graph.node.add(op_type="Add", input=["x", "a"], output=["y"])
    graph.output.add(name="y").type.tensor_type.elem_type = 1
    branch = graph.node.add(op_type="If", input=["c"], output=["z"]).attribute.add(name="then_branch", type=5).g
    branch.initializer.append(from_onnx(numpy_helper.from_array(WEIGHTS["a"], "inner")))
    branch.node.add(op_type="Constant", output=["k"]).attribute.add(name="value", type=4).t.CopyFrom(
        from_onnx(numpy_helper.from_array(WEIGHTS["b"], "constant"))
    )
    model.compiled_tensors.add(source_name="a").value.raw_data = PACK
    model.compiled_tensors[0].value.type = 0
    return model


def contents(model, folder):
    """The payload bytes of every value of ``small_model``, wherever they lie."""
    root = DataRoot(folder)
    found = {tensor.name: tensor_array(tensor, root).tobytes() for tensor in model.graph.initializer}
    found["s"] = struct_payload(model.graph.struct_initializer[0], root).tobytes()
    found["pack"] = struct_payload(model.compiled_tensors[0].value, root).tobytes()
    branch = model.graph.node[1].attribute[0].g
    found["inner"] = tensor_array(branch.initializer[0], root).tobytes()
    found["constant"] = tensor_array(branch.node[0].attribute[0].t, root).tobytes()
    return found


TRUTH = contents(small_model(), None)


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


def external_model(folder):
    """``small_model`` with every payload in ``folder``/old.onnx.data."""
    save(small_model(), folder / "old.onnx", threshold=0)
    return load(folder / "old.onnx")


def test_external_data_of_the_same_folder_is_left_where_it_lies(tmp_path):
    model = external_model(tmp_path)
    data = (tmp_path / "old.onnx.data").stat()
    save(model, tmp_path / "new.onnx")
    assert load(tmp_path / "new.onnx") == model
    assert (tmp_path / "old.onnx.data").stat() == data and not (tmp_path / "new.onnx.data").exists()


def test_external_data_of_another_folder_is_refused_before_anything_is_written(tmp_path):
    model = external_model(tmp_path)
    (tmp_path / "other").mkdir()
    with pytest.raises(PayloadError, match=r"not in .*other"):
        save(model, tmp_path / "other" / "new.onnx")
    assert os.listdir(tmp_path / "other") == []


def test_a_copy_takes_every_payload_along(tmp_path):
    model = external_model(tmp_path)
    constant = model.graph.node[1].attribute[0].g.node[0].attribute[0].t
    constant.CopyFrom(model.graph.initializer[1])  # also a tensor of a node lies in the file
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
    del model.graph.node[1]
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


# ---- Whole or not at all ------------------------------------------------------------------------------------------------


class Broken(Exception):
    pass


def fail_at(monkeypatch, name, call):
    """Let the ``call``-th use of ``os.<name>`` in a save fail."""
    real, calls = getattr(os, name), []

    def failing(*args, **options):
        calls.append(args)
        if len(calls) == call:
            raise OSError(28, "No space left on device")
        return real(*args, **options)

    monkeypatch.setattr(atomic.os, name, failing)


@pytest.mark.parametrize(("name", "call"), [("open", 1), ("open", 2), ("fsync", 1), ("fsync", 2), ("replace", 1), ("replace", 2)])
@pytest.mark.parametrize("existing", [True, False])
def test_a_failure_at_any_step_leaves_what_was_there(tmp_path, monkeypatch, name, call, existing):
    path = tmp_path / "m.onnx"
    if existing:
        save(small_model(), path, threshold=0)
    before = {file: (tmp_path / file).read_bytes() for file in os.listdir(tmp_path)}
    changed = small_model()
    changed.graph.name = "changed"
    changed.graph.struct_initializer[0].raw_data = b"changed"
    with monkeypatch.context() as patch:
        fail_at(patch, name, call)
        with pytest.raises(PayloadError, match=r"m\.onnx: cannot be written: No space left on device; nothing was changed"):
            save(changed, path, threshold=0)
    assert {file: (tmp_path / file).read_bytes() for file in os.listdir(tmp_path)} == before


@pytest.mark.parametrize("error", [Broken, KeyboardInterrupt])
def test_an_interruption_leaves_what_was_there(tmp_path, error):
    model = external_model(tmp_path)
    before = {file: (tmp_path / file).read_bytes() for file in os.listdir(tmp_path)}

    def stop(_):
        raise error

    with pytest.raises(error):
        save(model, tmp_path / "old.onnx", data_root=tmp_path, progress=stop)
    assert {file: (tmp_path / file).read_bytes() for file in os.listdir(tmp_path)} == before


def test_a_map_of_the_replaced_file_keeps_its_bytes(tmp_path):
    model = external_model(tmp_path)
    held = tensor_array(model.graph.initializer[0], DataRoot(tmp_path))
    changed = small_model()
    changed.graph.initializer[0].raw_data = bytes(12000)
    save(changed, tmp_path / "old.onnx", threshold=0)
    assert held.tobytes() == TRUTH["a"]


def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(PayloadError, match="is a folder"):
        save(small_model(), tmp_path / "folder")
    with pytest.raises(PayloadError, match="cannot be written: No such file or directory"):
        save(small_model(), tmp_path / "missing" / "m.onnx")
    (tmp_path / "m.onnx.data").mkdir()
    with pytest.raises(PayloadError, match="is a folder"):
        save(small_model(), tmp_path / "m.onnx", threshold=0)
    assert sorted(os.listdir(tmp_path)) == ["folder", "m.onnx.data"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder(tmp_path):
    save(small_model(), tmp_path / "m.onnx")
    tmp_path.chmod(0o555)
    with pytest.raises(PayloadError, match="cannot be written: Permission denied"):
        save(ModelProto(), tmp_path / "m.onnx")
    assert load(tmp_path / "m.onnx") == small_model()


def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    save(small_model(), tmp_path / "m.onnx", threshold=0)
    plain = (tmp_path / "plain").stat().st_mode
    assert (tmp_path / "m.onnx").stat().st_mode == plain == (tmp_path / "m.onnx.data").stat().st_mode


@pytest.mark.parametrize("mode", [0o600, 0o664, 0o400])
def test_a_replaced_file_keeps_its_permissions(tmp_path, mode):
    save(small_model(), tmp_path / "m.onnx")
    (tmp_path / "m.onnx").chmod(mode)
    save(small_model(), tmp_path / "m.onnx")
    assert stat.S_IMODE((tmp_path / "m.onnx").stat().st_mode) == mode


def test_saving_over_a_link_leaves_what_it_names(tmp_path):
    (tmp_path / "real.onnx").write_bytes(b"precious")
    (tmp_path / "m.onnx").symlink_to("real.onnx")
    save(small_model(), tmp_path / "m.onnx")
    assert (tmp_path / "real.onnx").read_bytes() == b"precious"
    assert load(tmp_path / "m.onnx") == small_model()


def test_the_longest_file_name(tmp_path):
    path = tmp_path / ("n" * 245 + ".onnx")
    save(small_model(), path, threshold=0)
    assert contents(load(path), tmp_path) == TRUTH


# ---- Files that are no models -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "error"),
    [(b"", CheckError), (b"hello, world\n", TenonnxError), (b"\x00" * 64, PayloadError), (b"\xff" * 64, PayloadError)],
)
def test_a_file_that_is_no_model(tmp_path, content, error):
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(error, match=r"m\.onnx"):
        load(tmp_path / "m.onnx")


def test_places_that_cannot_be_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "gone").symlink_to("nowhere")
    for path, message in [
        (tmp_path, "is a folder"),
        (tmp_path / "missing.onnx", "No such file"),
        (tmp_path / "gone", "No such file"),
        (tmp_path / "pipe", "not a regular file"),
        ("/dev/zero", "not a regular file"),
        ("a\0b", "null byte"),
    ]:
        with pytest.raises(PayloadError, match=message):
            load(path)


def test_a_truncated_file_is_refused_or_a_prefix_of_its_fields(tmp_path):
    """A cut inside a field is refused; between two fields of the model there is nothing to notice it by."""
    model = small_model()
    data = model.SerializeToString(deterministic=True)
    path = tmp_path / "m.onnx"
    loaded = set()
    for size in [*range(60), *range(60, len(data), 97), *range(len(data) - 60, len(data))]:
        path.write_bytes(data[:size])
        try:
            loaded.add(load(path).SerializeToString(deterministic=True))
        except TenonnxError:
            continue
    assert all(data.startswith(prefix) for prefix in loaded)
    assert len(loaded) <= len(model.ListFields())


def test_nesting_past_what_protobuf_parses(tmp_path):
    model = ModelProto()
    graph = model.graph
    for _ in range(200):
        graph = graph.node.add(op_type="If").attribute.add(name="then_branch", type=5).g
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(PayloadError, match="not an ONNX model, or is truncated"):
        load(tmp_path / "m.onnx")


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
