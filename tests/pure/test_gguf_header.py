"""What the reader says of a file equals what the gguf package says of it."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from tenonnx.convert import gguf as reader
from tenonnx.convert.tensor_types import TENSOR_TYPES
from tests.gguf_files import split_parts, write_llama


def assert_same(path: Path, found: reader.Gguf) -> None:
    oracle = gguf.GGUFReader(path)
    assert [(t.name, t.format, t.offset, t.nbytes) for t in found.tensors.values()] == [
        (t.name, t.tensor_type.name, t.data_offset, t.n_bytes) for t in oracle.tensors
    ]
    assert [t.shape for t in found.tensors.values()] == [tuple(map(int, reversed(t.shape))) for t in oracle.tensors]
    fields = {key: field.contents() for key, field in oracle.fields.items() if not key.startswith("GGUF.")}
    assert list(found.metadata) == list(fields)
    for key, value in fields.items():
        ours = found.metadata[key]
        assert (ours.tolist() if isinstance(ours, np.ndarray) else ours) == value, key


def test_block_sizes_are_those_of_the_gguf_package() -> None:
    ours = {number: (size.name, size.elements, size.nbytes) for number, size in TENSOR_TYPES.items()}
    theirs = {int(kind): (kind.name, *gguf.GGML_QUANT_SIZES[kind]) for kind in gguf.GGMLQuantizationType}
    assert ours == {number: theirs[number] for number in ours}


@pytest.mark.parametrize("format", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
@pytest.mark.parametrize("vocabulary", ["bpe", "spm"])
def test_tensors_and_metadata(tmp_path: Path, format: str, vocabulary: str) -> None:
    path = write_llama(tmp_path / "m.gguf", format=format, vocabulary=vocabulary)
    assert_same(path, reader.read(path))


@pytest.mark.parametrize("alignment", [8, 32, 256, 4096])
def test_alignment_of_the_data_section(tmp_path: Path, alignment: int) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_custom_alignment(alignment)
    for columns in (1, 7, 64):
        writer.add_tensor(f"t{columns}", np.ones((3, columns), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert_same(tmp_path / "m.gguf", reader.read(tmp_path / "m.gguf"))


def test_every_kind_of_value(tmp_path: Path) -> None:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    scalars = [
        (0, "<B", 255),
        (1, "<b", -128),
        (2, "<H", 65535),
        (3, "<h", -32768),
        (4, "<I", 2**32 - 1),
        (5, "<i", -(2**31)),
        (6, "<f", 0.5),
        (7, "<?", True),
        (10, "<Q", 2**64 - 1),
        (11, "<q", -(2**63)),
        (12, "<d", 1e300),
    ]
    entries = [text(f"k{kind}") + struct.pack("<I", kind) + struct.pack(layout, value) for kind, layout, value in scalars]
    entries += [
        text(f"a{kind}") + struct.pack("<IIQ", 9, kind, 2) + struct.pack(layout, value) * 2 for kind, layout, value in scalars
    ]
    inner = struct.pack("<IQ", 4, 2) + struct.pack("<II", 7, 8)
    entries.append(text("nested") + struct.pack("<IIQ", 9, 9, 2) + inner * 2)
    entries.append(text("texts") + struct.pack("<IIQ", 9, 8, 3) + text("") + text("é") + text("漢\0"))
    entries.append(text("none") + struct.pack("<IIQ", 9, 8, 0))
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 2, 0, len(entries)) + b"".join(entries))
    found = reader.read(path).metadata
    for kind, _, value in scalars:
        assert found[f"k{kind}"] == value
        assert found[f"a{kind}"].tolist() == [value, value]
    assert [array.tolist() for array in found["nested"]] == [[7, 8], [7, 8]]
    assert (found["texts"], found["none"]) == (["", "é", "漢\0"], [])


@pytest.mark.parametrize("opened", [0, 2])
def test_a_split_model_reads_as_the_whole(tmp_path: Path, opened: int) -> None:
    whole = reader.read(write_llama(tmp_path / "whole.gguf", format="Q8_0"))
    write_llama(tmp_path / "m.gguf", format="Q8_0", split=5)
    parts = split_parts(tmp_path / "m.gguf", 4)
    found = reader.read(parts[opened])
    assert found.files == tuple(part.resolve() for part in parts)
    assert list(found.tensors) == list(whole.tensors)
    for name, tensor in found.tensors.items():
        expected = whole.tensors[name]
        bytes_of = [t.file.read_bytes()[t.offset : t.offset + t.nbytes] for t in (tensor, expected)]
        assert bytes_of[0] == bytes_of[1]
    assert whole.metadata.items() <= found.metadata.items()


def test_a_split_model_of_links_is_found_by_the_names_of_the_links(tmp_path: Path) -> None:
    write_llama(tmp_path / "m.gguf", split=10)
    (tmp_path / "links").mkdir()
    links = split_parts(tmp_path / "links" / "m.gguf", 2)
    for number, (part, link) in enumerate(zip(split_parts(tmp_path / "m.gguf", 2), links, strict=True)):
        blob = part.rename(tmp_path / f"blob{number}")
        link.symlink_to(blob)
    assert [file.name for file in reader.read(links[0]).files] == ["blob0", "blob1"]


def test_the_real_model(smollm2_gguf: Path) -> None:
    assert_same(smollm2_gguf, reader.read(smollm2_gguf))
