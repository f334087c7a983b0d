"""Saves that fail leave what was there; files that are no models are refused."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from tenonnx.errors import CheckError, PayloadError, TenonnxError
from tenonnx.schema import atomic
from tenonnx.schema.external import DataRoot
from tenonnx.schema.files import load, save
from tenonnx.schema.messages import ModelProto
from tenonnx.schema.payload import tensor_array
from tests.pure.schema_models import TRUTH, contents, external_model, small_model

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


def test_a_read_only_folder():
    with tempfile.TemporaryDirectory() as name:  # not tmp_path: its parents are closed to other users
        folder = Path(name)
        save(small_model(), folder / "m.onnx")
        folder.chmod(0o555)
        root = os.geteuid() == 0  # who may write everywhere, and so takes another user's place meanwhile
        if root:
            os.seteuid(65534)
        try:
            with pytest.raises(PayloadError, match="cannot be written: Permission denied"):
                save(ModelProto(), folder / "m.onnx")
        finally:
            if root:
                os.seteuid(0)
            folder.chmod(0o755)
        assert load(folder / "m.onnx") == small_model() and os.listdir(folder) == ["m.onnx"]


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
        ("a\0b", "null (byte|character)"),
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
