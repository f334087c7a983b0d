"""Paths and ranges that a model file names: never a byte outside its folder, never past the end of a file."""

from __future__ import annotations

import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenonnx.errors import PayloadError
from tenonnx.schema import external
from tenonnx.schema.external import DataRoot, map_file
from tenonnx.schema.files import check_external, save
from tenonnx.schema.messages import ModelProto, TensorProto
from tenonnx.schema.payload import struct_payload, tensor_array

DATA = bytes(range(64))
KINDS = ["tensor", "struct", "compiled", "nested", "attribute"]


@pytest.fixture
def folder(tmp_path):
    """model/weights.bin, and secret.bin outside of model/."""
    (tmp_path / "secret.bin").write_bytes(b"s" * 64)
    model = tmp_path / "model"
    (model / "inner").mkdir(parents=True)
    (model / "weights.bin").write_bytes(DATA)
    (model / "inner" / "weights.bin").write_bytes(DATA[::-1])
    (model / "empty.bin").write_bytes(b"")
    return model


def placed(kind, entries, dims=(64,)):
    """A model whose one external value is of ``kind``, and that value."""
    model = ModelProto()
    if kind in ("struct", "compiled"):
        value = model.graph.struct_initializer.add() if kind == "struct" else model.compiled_tensors.add().value
        value.type = 0
    else:
        attribute = model.graph.node.add(op_type="If").attribute.add(name="x")
        place = {"tensor": model.graph, "nested": attribute.g}.get(kind)
        value = place.initializer.add() if place is not None else attribute.t
        value.data_type, value.data_location = TensorProto.UINT8, TensorProto.EXTERNAL
        value.dims.extend(dims)
    value.name = "w"
    for key, text in entries:
        value.external_data.add(key=key, value=text)
    return model, value


def read(value, folder):
    root = DataRoot(folder)
    return tensor_array(value, root) if isinstance(value, TensorProto) else struct_payload(value, root)


def refused(entries, folder, message, kinds=KINDS):
    """Every way in refuses: reading the value, checking the model, saving it in the folder and as a copy elsewhere."""
    for kind in kinds:
        model, value = placed(kind, entries)
        before = sorted(os.listdir(folder)) if folder.is_dir() else []
        (folder.parent / "copies").mkdir(exist_ok=True)
        for attempt in (
            lambda value=value: read(value, folder),
            lambda model=model: check_external(model, DataRoot(folder)),
            lambda model=model: save(model, folder / "saved.onnx"),
            lambda model=model: save(model, folder.parent / "copies" / "saved.onnx", data_root=folder),
        ):
            with pytest.raises(PayloadError, match=message):
                attempt()
        assert sorted(os.listdir(folder)) == before and os.listdir(folder.parent / "copies") == []


def whole(location):
    return [("location", location), ("offset", "0"), ("length", "64")]


# ---- Paths --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("location", "content"), [("weights.bin", DATA), ("./weights.bin", DATA), ("inner/weights.bin", DATA[::-1])]
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_inside_the_folder_is_read(folder, kind, location, content):
    model, value = placed(kind, whole(location))
    found = read(value, folder)
    assert found.tobytes() == content and not found.flags.writeable
    check_external(model, DataRoot(folder))


@pytest.mark.parametrize(
    "location",
    [
        "../secret.bin", "inner/../../secret.bin", "inner/../weights.bin", "..", "/dev/zero", "/etc/passwd", "//etc/passwd",
        "inner//weights.bin", "inner/", "/", "\\etc\\passwd", "..\\secret.bin", "inner\\weights.bin", "weights.bin\0",
        "\0", "C:\\weights.bin",
    ],
)  # fmt: skip
def test_a_location_that_is_no_plain_path_inside(folder, location):
    refused(whole(location), folder, "not a plain path inside")


def test_the_absolute_path_of_a_file_inside(folder):
    refused(whole(str(folder / "weights.bin")), folder, "not a plain path inside")


def test_a_link_to_a_file_outside(folder):
    (folder / "link.bin").symlink_to("../secret.bin")
    refused(whole("link.bin"), folder, "reached through a symbolic link")


def test_a_link_to_a_file_inside(folder):
    (folder / "link.bin").symlink_to("weights.bin")
    refused(whole("link.bin"), folder, "reached through a symbolic link")


def test_a_linked_folder_on_the_way(folder):
    (folder / "out").symlink_to("..")
    (folder / "inner" / "out").symlink_to("../..")
    refused(whole("out/secret.bin"), folder, "reached through a symbolic link")
    refused(whole("inner/out/secret.bin"), folder, "reached through a symbolic link")


def test_a_link_that_is_made_after_the_first_look(folder, monkeypatch):
    """The folder on the way is swapped for a link between two steps of the walk; an open folder stays what it is."""
    real, outside = os.open, folder.parent / "outside"
    outside.mkdir()
    (outside / "weights.bin").write_bytes(b"s" * 64)

    def swapping(path, flags, *args, **options):
        opened = real(path, flags, *args, **options)
        if path == "inner":
            (folder / "inner").rename(folder / "moved")
            (folder / "inner").symlink_to("../outside")
        return opened

    monkeypatch.setattr(external.os, "open", swapping)
    _, value = placed("tensor", whole("inner/weights.bin"))
    assert read(value, folder).tobytes() == DATA[::-1]


def test_a_hard_link_to_a_file_outside(folder):
    os.link(folder.parent / "secret.bin", folder / "hard.bin")
    refused(whole("hard.bin"), folder, "second hard link")


def test_what_is_no_regular_file(folder):
    os.mkfifo(folder / "pipe")
    refused(whole("pipe"), folder, "not a regular file")
    refused(whole("inner"), folder, "not a regular file")
    refused(whole("."), folder, "not a regular file")


def test_a_socket(folder, monkeypatch):
    monkeypatch.chdir(folder)  # for a name short enough
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        refused(whole("socket"), folder, "not a regular file|cannot be opened")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
def test_a_device(folder):
    try:
        os.mknod(folder / "zero", 0o20666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("no devices in this sandbox")
    refused(whole("zero"), folder, "not a regular file|cannot be opened")


def test_what_is_not_there(folder):
    refused(whole("missing.bin"), folder, "'missing.bin' is not in .*put it beside the model")
    refused(whole("missing/weights.bin"), folder, "is not in")
    refused(whole("weights.bin/x"), folder, "a file that is no folder")
    refused(whole("x" * 300), folder, "cannot be opened: File name too long")


def test_a_folder_that_is_not_there(folder):
    _, value = placed("tensor", whole("weights.bin"))
    with pytest.raises(PayloadError, match="is not in"):
        read(value, folder / "missing")


def test_a_model_in_memory_has_no_folder():
    _, value = placed("tensor", whole("weights.bin"))
    with pytest.raises(PayloadError, match=r"'w'.*no folder"):
        read(value, None)


def test_the_folder_itself_may_be_a_link(folder):
    """The user typed it."""
    (folder.parent / "link").symlink_to("model")
    _, value = placed("tensor", whole("weights.bin"))
    assert read(value, folder.parent / "link").tobytes() == DATA


def test_what_the_user_typed_may_be_a_link(folder):
    (folder / "link.bin").symlink_to("../secret.bin")
    assert map_file(folder / "link.bin").data.tobytes() == b"s" * 64


# ---- Keys and numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["__class__", "Location", "offset ", "", "size", "__dict__"])
def test_an_unknown_key(folder, key):
    refused([*whole("weights.bin"), (key, "x")], folder, "has key")


@pytest.mark.parametrize("key", ["location", "offset", "length", "checksum"])
def test_a_repeated_key(folder, key):
    refused([*whole("weights.bin"), ("checksum", "0"), (key, "0")], folder, f"repeats key '{key}'")


@pytest.mark.parametrize("entries", [[("offset", "0"), ("length", "64")], [("location", ""), ("length", "64")]])
def test_no_location(folder, entries):
    refused(entries, folder, "names no location")


def test_no_entries_at_all(folder):
    refused([], folder, "names no location", ["tensor", "nested", "attribute"])


OTHER_DIGITS = ["\u0663", "\uff11", "\u00b2"]  # which int() or isdigit() takes
NUMBERS = ["-1", "+1", " 1", "1 ", "1.0", "0x10", "1e3", "", "1_0", "nan", "a", str(2**63), str(2**64), "9" * 5000, *OTHER_DIGITS]


@pytest.mark.parametrize("text", NUMBERS, ids=lambda text: text[:24])
@pytest.mark.parametrize("key", ["offset", "length"])
def test_a_number_that_is_none(folder, key, text):
    entries = dict(whole("weights.bin")) | {key: text}
    refused(list(entries.items()), folder, f"{key} is .*; expected a byte count", ["tensor", "struct"])


@pytest.mark.parametrize(
    ("offset", "length"),
    [
        (0, 65), (1, 64), (64, 1), (65, 0), (65, 1), (2**63 - 1, 1), (2**63 - 1, 2**63 - 1), (16, 2**63 - 1), (2**62, 2**62),
        (2**63 - 8, 16), (0, 2**63 - 1),
    ],
)  # fmt: skip
def test_a_range_past_the_end(folder, offset, length):
    entries = [("location", "weights.bin"), ("offset", str(offset)), ("length", str(length))]
    refused(entries, folder, rf"holds 64 bytes but the model asks for {length} bytes at offset {offset}")


def test_a_range_whose_end_wraps_64_bits(folder):
    entries = [("location", "weights.bin"), ("offset", str(2**64 - 8)), ("length", "16")]
    refused(entries, folder, "expected a byte count")


@given(offset=st.integers(0, 130), length=st.integers(0, 130) | st.none())
def test_ranges_are_exactly_what_the_file_holds(tmp_path_factory, offset, length):
    path = tmp_path_factory.getbasetemp() / "ranges.bin"
    path.write_bytes(DATA)
    mapped = map_file(path)
    if offset + (length or 0) <= 64:
        end = None if length is None else offset + length
        assert mapped.bytes_at("w", offset, length).tobytes() == DATA[offset:end]
    else:
        with pytest.raises(PayloadError, match="holds 64 bytes"):
            mapped.bytes_at("w", offset, length)


def test_no_bytes_at_the_end(folder):
    entries = [("location", "weights.bin"), ("offset", "64"), ("length", "0")]
    for kind in KINDS:
        _, value = placed(kind, entries, dims=[0])
        assert read(value, folder).size == 0


def test_an_empty_file(folder):
    _, value = placed("tensor", [("location", "empty.bin")], dims=[0])
    found = read(value, folder)
    assert found.shape == (0,) and not found.flags.writeable
    refused(whole("empty.bin"), folder, "holds 0 bytes")


def test_without_a_length_a_tensor_takes_the_rest_and_a_structured_value_is_refused(folder):
    entries = [("location", "weights.bin"), ("offset", "60")]
    _, value = placed("tensor", entries, dims=[4])
    assert read(value, folder).tobytes() == DATA[60:]
    _, value = placed("struct", entries)
    with pytest.raises(PayloadError, match="external_data has no length"):
        read(value, folder)


@pytest.mark.parametrize("kind", ["tensor", "struct"])
def test_two_payloads(folder, kind):
    _, value = placed(kind, whole("weights.bin"))
    value.raw_data = DATA
    with pytest.raises(PayloadError, match="both raw_data and external_data"):
        read(value, folder)


def test_typed_data_beside_external_data(folder):
    _, value = placed("tensor", whole("weights.bin"))
    value.int32_data.append(1)
    with pytest.raises(PayloadError, match="both int32_data and external_data"):
        read(value, folder)


def test_an_offset_that_splits_elements(folder):
    value = TensorProto(name="w", data_type=1, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, text in (("location", "weights.bin"), ("offset", "3"), ("length", "16")):
        value.external_data.add(key=key, value=text)
    found = tensor_array(value, DataRoot(folder))
    assert found.tobytes() == DATA[3:19] and found.flags.aligned and not found.flags.writeable


def test_a_file_is_mapped_once(folder):
    root = DataRoot(folder)
    first, second = (tensor_array(placed("tensor", whole("weights.bin"))[1], root) for _ in range(2))
    assert first.ctypes.data == second.ctypes.data
    root.release()
    assert first.tobytes() == DATA


def test_an_array_outlives_its_root_and_its_file(folder):
    found = tensor_array(placed("tensor", whole("weights.bin"))[1], DataRoot(folder))
    (folder / "weights.bin").unlink()
    assert found.tobytes() == DATA
