"""convert(): where the weights may lie, and what happens to the files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest

from tenonnx import convert
from tenonnx.errors import PayloadError, TenonnxError
from tenonnx.schema import files
from tenonnx.schema.external import DataRoot
from tests.gguf_files import split_parts, write_llama


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "weights").mkdir()
    return write_llama(tmp_path / "weights" / "m.gguf", format="Q4_1", tied=False, vocabulary="bpe")


def payloads(path: Path) -> dict[str, bytes]:
    """Every external payload of the model at ``path``, read as its readers would."""
    model, root = files.load(path), DataRoot(path.parent)
    values = [value for value in files.payloads(model) if value.external_data]
    return {value.name: root.read(value.name, value.external_data).tobytes() for value in values}


def test_beside_its_weights_nothing_is_copied(source: Path) -> None:
    before = source.read_bytes()
    report = convert.convert(source, source.with_name("m.onnx"))
    assert sorted(os.listdir(source.parent)) == ["m.gguf", "m.onnx"]
    assert source.read_bytes() == before
    assert report.copied_bytes == 0
    assert report.model_bytes == report.path.stat().st_size
    assert report.weights == {"Q4_1": 16, "F32": 5}
    assert sum(map(len, payloads(report.path).values())) == sum(t.nbytes for t in convert.gguf.read(source).tensors.values())


def test_the_written_model_is_the_one_in_memory(source: Path) -> None:
    model, folder = convert.from_gguf(source)
    convert.convert(source, folder / "m.onnx")
    assert files.load(folder / "m.onnx") == model


def test_stock_onnx_keeps_all_of_it(source: Path) -> None:
    report = convert.convert(source, source.with_name("m.onnx"))
    model = files.load(report.path)
    stock = onnx.load(report.path, load_external_data=False)
    report.path.write_bytes(stock.SerializeToString())
    assert files.load(report.path) == model


def test_elsewhere_is_an_error_that_names_the_ways_out(source: Path, tmp_path: Path) -> None:
    with pytest.raises(PayloadError) as raised:
        convert.convert(source, tmp_path / "m.onnx")
    assert str(source.with_name("m.onnx")) in str(raised.value)
    assert "the option copy" in str(raised.value)
    assert os.listdir(tmp_path) == ["weights"]


def test_copied_weights_are_the_same_bytes(source: Path, tmp_path: Path) -> None:
    steps: list[int] = []
    report = convert.convert(source, tmp_path / "m.onnx", copy=True, progress=steps.append)
    beside = convert.convert(source, source.with_name("m.onnx"))
    assert payloads(report.path) == payloads(beside.path)
    assert sum(steps) == report.copied_bytes > 0
    assert sorted(os.listdir(tmp_path)) == ["m.onnx", "m.onnx.data", "weights"]


def test_a_link_that_the_user_typed_is_followed(source: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.gguf"
    link.symlink_to(source)
    model, folder = convert.from_gguf(link)
    assert folder == source.parent.resolve()
    report = convert.convert(link, source.with_name("m.onnx"))
    assert files.load(report.path) == model
    with pytest.raises(PayloadError, match="the option copy"):
        convert.convert(link, tmp_path / "m.onnx")


def test_a_relative_path(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(source.parent)
    assert payloads(convert.convert("m.gguf", "m.onnx").path)


def test_an_old_model_is_replaced_or_left_alone(source: Path) -> None:
    out = source.with_name("m.onnx")
    out.write_bytes(b"old")
    source.write_bytes(source.read_bytes()[:-40])
    with pytest.raises(PayloadError, match="truncated"):
        convert.convert(source, out)
    assert out.read_bytes() == b"old"
    write_llama(source, format="Q4_1")
    convert.convert(source, out)
    assert files.load(out).graph.node
    assert sorted(os.listdir(source.parent)) == ["m.gguf", "m.onnx"]


def test_the_weights_are_never_replaced(source: Path, tmp_path: Path) -> None:
    before = source.read_bytes()
    link = tmp_path / "link.onnx"
    link.symlink_to(source)
    data = source.rename(source.with_name("x.onnx.data"))
    named = data.with_name("named.gguf")
    named.symlink_to(data)
    link.unlink()
    for out in (data, named, data.with_name("x.onnx")):
        with pytest.raises(PayloadError, match="would replace the weights"):
            convert.convert(named, out, copy=True)
    assert data.read_bytes() == before


def test_split_weights(tmp_path: Path) -> None:
    write_llama(tmp_path / "m.gguf", split=10, format="Q8_0")
    whole = write_llama(tmp_path / "whole.gguf", format="Q8_0")
    parts = split_parts(tmp_path / "m.gguf", 2)
    report = convert.convert(parts[0], tmp_path / "m.onnx")
    assert payloads(report.path) == payloads(convert.convert(whole, tmp_path / "whole.onnx").path)
    assert files.external_files(files.load(report.path)) == {part.name for part in parts}
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / parts[1].name).symlink_to(parts[1].rename(tmp_path / "elsewhere" / "blob"))
    parts[1].symlink_to(tmp_path / "elsewhere" / "blob")
    with pytest.raises(PayloadError, match="its parts lie in 2 folders"):
        convert.convert(parts[0], tmp_path / "m.onnx")


def test_a_file_without_a_suffix_is_known_by_its_content(source: Path) -> None:
    blob = source.rename(source.with_name("3f1b"))
    assert payloads(convert.convert(blob, blob.with_name("m.onnx")).path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("empty.onnx", "holds no graph"),
        ("weights.bin", "is not an ONNX model"),
        ("folder", "without genai_config.json"),
        ("absent", "No such file"),
    ],
)
def test_other_inputs_say_what_they_are_not(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "empty.onnx").write_bytes(b"\x08\x0c")
    (tmp_path / "weights.bin").write_bytes(b"\xff" * 50)
    (tmp_path / "folder").mkdir()
    with pytest.raises(TenonnxError, match=message):
        convert.convert(tmp_path / name, tmp_path / "m.onnx")


def test_more_tokens_than_rows_of_the_embedding(tmp_path: Path) -> None:
    rows = np.zeros((4, 64), np.float32)
    path = write_llama(tmp_path / "m.gguf", vocabulary="bpe", extra={"token_embd.weight": rows})
    with pytest.raises(PayloadError, match="tokens but 4 rows of embedding"):
        convert.from_gguf(path)
