"""Damaged and hostile packs: the model loads, its results are right, and what was passed over is said."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
import pytest

from tenonnx import Session, check, load
from tenonnx.compiled.inventory import Inventory
from tenonnx.compiled.prune import prune
from tenonnx.errors import TenonnxError
from tenonnx.schema.messages import ModelProto
from tests import packs


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model with packs, its portable bytes, and its right results. Tests put back what they change."""
    folder = tmp_path_factory.mktemp("damage")
    os.environ["TENONNX_CACHE"] = str(folder / "user-cache")
    path = packs.write(folder / "m" / "m.onnx")
    portable = path.read_bytes()
    expected = packs.run(Session(path, packs="off"))
    packs.store.build(path)
    yield path, portable, expected
    del os.environ["TENONNX_CACHE"]


@pytest.fixture
def model(made):
    path, _, _ = made
    before = {file: file.read_bytes() for file in path.parent.iterdir()}
    yield path
    for file in path.parent.iterdir():
        if file not in before:
            file.unlink()
    for file, data in before.items():
        if file.is_symlink() or not file.exists() or file.read_bytes() != data:
            file.unlink(missing_ok=True)
            file.write_bytes(data)


@pytest.fixture
def expected(made):
    return made[2]


def boundaries(model):
    """Every begin and end of a payload in the side file, and the bytes beside them."""
    edges = {0, packs.side(model).stat().st_size}
    for entry in load(model).compiled_tensors:
        place = {item.key: item.value for item in entry.value.external_data}
        edges |= {int(place["offset"]), int(place["offset"]) + int(place["length"])}
    return sorted({edge + by for edge in edges for by in (-1, 0, 1) if edge + by >= 0})


def test_every_truncation_point_of_the_side_file(model, expected):
    side = packs.side(model)
    whole = side.read_bytes()
    for size in boundaries(model):
        side.write_bytes(whole[:size])
        session = Session(model)
        assert packs.run(session) == expected, size
        lost = sum(kind == "damaged" for kind in packs.kinds(session))
        assert (lost == 0) == (size >= 5 * 4096 + 1024), size  # the last payload is 1,024 bytes: BFLOAT16 [8, 64]
        assert lost + packs.kinds(session).count("hit") == packs.PACKED


def test_every_byte_of_the_payloads(model, expected):
    side = packs.side(model)
    whole = side.read_bytes()
    generator = np.random.default_rng(0)
    for position in range(0, len(whole), 199):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << int(generator.integers(8))
        side.write_bytes(flipped)
        session = Session(model, strict=True)
        assert packs.run(session) == expected, position
        inside = any(verdict.kind == "damaged" for verdict in session.packs)
        assert inside == (position % 4096 < session.packs[position // 4096].nbytes), position


def test_flipped_bits_of_the_entries_and_devices(model, made):
    """Every bit of the head of the first device, and one of every sixteenth byte after."""
    _, portable, expected = made
    whole = model.read_bytes()
    begin = len(portable)
    generator = np.random.default_rng(0)
    bits = [(position, bit) for position in range(begin, begin + 24) for bit in range(8)]
    bits += [(position, int(generator.integers(8))) for position in range(begin + 24, len(whole), 16)]
    for position, bit in bits:
        flipped = bytearray(whole)
        flipped[position] ^= 1 << bit
        model.write_bytes(flipped)
        assert packs.run(Session(model)) == expected, (position - begin, bit)


def test_every_truncation_point_of_the_model_behind_its_portable_part(model, made, caplog):
    _, portable, expected = made
    whole = model.read_bytes()
    for size in [*range(len(portable), len(portable) + 200), *range(len(portable) + 200, len(whole), 61)]:
        model.write_bytes(whole[:size])
        caplog.clear()
        session = Session(model)
        assert packs.run(session) == expected, size
        assert packs.kinds(session) == ["hit"] * len(session.packs)
        assert "damaged and left out" in caplog.text or ModelProto.FromString(whole[:size]).ByteSize() == size


def test_a_model_truncated_before_its_packs_is_refused(model, made):
    _, portable, _ = made
    model.write_bytes(portable[:-1])
    with pytest.raises(TenonnxError):
        Session(model)


def test_a_model_with_packs_damaged_beyond_reading_is_refused_by_the_checker_and_mended_by_prune(model, made):
    _, portable, _ = made
    model.write_bytes(model.read_bytes()[:-5])
    with pytest.raises(TenonnxError):
        check(str(model))
    assert any("damaged beyond reading" in fault.message for fault in Inventory(model).faults())
    prune(model)
    assert model.read_bytes() == portable and not list(model.parent.glob("*.packs"))
    packs.store.build(model)
    assert packs.kinds(Session(model)) == ["hit"] * packs.PACKED


def test_build_mends_packs_damaged_beyond_reading(model, expected):
    model.write_bytes(model.read_bytes()[:-5])
    packs.store.build(model)
    session = Session(model)
    assert packs.kinds(session) == ["hit"] * packs.PACKED and packs.run(session) == expected
    assert list(Inventory(model).faults()) == []


def test_types_swapped_between_entries(model, expected):
    def swap(made):
        first, second = made.compiled_tensors[0].value.struct_type, made.compiled_tensors[1].value.struct_type
        kept = first.SerializeToString()
        first.CopyFrom(second)
        second.ParseFromString(kept)

    packs.edit(model, swap)
    session = Session(model)
    assert packs.kinds(session)[:2] == ["damaged", "damaged"] and packs.run(session) == expected


def test_payloads_swapped_between_entries(model, expected):
    def swap(made):
        first, second = made.compiled_tensors[0].value, made.compiled_tensors[3].value
        offsets = [next(item for item in value.external_data if item.key == "offset") for value in (first, second)]
        offsets[0].value, offsets[1].value = offsets[1].value, offsets[0].value

    packs.edit(model, swap)
    session = Session(model)
    assert [packs.kinds(session)[position] for position in (0, 3)] == ["damaged", "damaged"]
    assert packs.run(session) == expected


def test_sources_swapped_between_entries(model, expected):
    def swap(made):
        first, second = made.compiled_tensors[0], made.compiled_tensors[1]
        first.source_name, second.source_name = second.source_name, first.source_name

    packs.edit(model, swap)
    session = Session(model)
    assert "hit" not in packs.kinds(session)[:2] and packs.run(session) == expected


def test_devices_reordered(model, expected):
    packs.store.build(model, architecture="aarch64")

    def reverse(made):
        devices = list(made.devices)[::-1]
        del made.devices[:]
        made.devices.extend(devices)

    packs.edit(model, reverse)
    session = Session(model)
    assert packs.run(session) == expected
    assert session.packs[0].device == "aarch64" and packs.kinds(session)[: packs.PACKED] == ["miss"] * packs.PACKED


@pytest.mark.parametrize(
    "location",
    [
        "../outside",
        "/etc/passwd",
        "a/../../outside",
        "",
        ".",
        "..",
        "m.onnx/x",
        "no\0where",
        "\\x",
        "link",
        "linked/outside",
        "hard",
    ],
)
def test_hostile_paths(model, expected, location):
    outside = model.parent.parent / "outside"
    outside.write_bytes(bytes(100_000))
    links = [(model.parent / "link", "../outside"), (model.parent / "linked", "..")]
    for link, target in links:
        link.symlink_to(target)
    os.link(outside, model.parent / "hard")

    def change(made):
        for entry in made.compiled_tensors:
            next(item for item in entry.value.external_data if item.key == "location").value = location

    packs.edit(model, change)
    session = Session(model)
    for link, _ in links:
        link.unlink()
    assert packs.kinds(session) == ["damaged"] * packs.PACKED and packs.run(session) == expected
    assert all(verdict.why for verdict in session.packs)


@pytest.mark.parametrize(
    "key,value",
    [
        ("offset", str(2**63)),
        ("offset", "-1"),
        ("length", str(2**64 - 1)),
        ("offset", "0x10"),
        ("__class__", "1"),
        ("offset", "9" * 400),
    ],
)
def test_hostile_ranges(model, expected, key, value):
    packs.edit(model, lambda made: made.compiled_tensors[0].value.external_data.add(key=key, value=value))
    session = Session(model)
    assert packs.kinds(session)[0] == "damaged" and packs.run(session) == expected


def test_a_side_file_that_is_no_file(model, expected):
    side = packs.side(model)
    side.unlink()
    os.mkfifo(side)
    try:
        session = Session(model)
    finally:
        side.unlink()
        side.write_bytes(b"")
    assert packs.kinds(session) == ["damaged"] * packs.PACKED and packs.run(session) == expected


def test_a_missing_side_file(model, expected, caplog):
    packs.side(model).unlink()
    with caplog.at_level(logging.WARNING, "tenonnx"):
        session = Session(model)
    assert packs.kinds(session) == ["damaged"] * packs.PACKED and packs.run(session) == expected
    assert "6 damaged packs are passed over" in caplog.text


def test_types_that_are_endless_or_enormous(model, expected):
    def change(made):
        entries = made.compiled_tensors
        huge = entries[0].value.struct_type
        huge.array.dimension = 2**64 - 1
        node = entries[1].value.struct_type
        node.Clear()
        for _ in range(20):
            node.array.dimension = 2
            node = node.array.element_type.struct_type
        for index in range(2):
            cycle = made.struct_types.add()
            cycle.array.dimension = 1
            cycle.array.element_type.struct_type.type_index = len(made.struct_types) - 1 if index else len(made.struct_types)
        entries[2].value.ClearField("struct_type")
        entries[2].value.type = len(made.struct_types) - 1

    packs.edit(model, change)
    session = Session(model)
    assert packs.kinds(session)[:3] == ["damaged"] * 3 and packs.run(session) == expected


def test_a_thousand_entries_for_one_weight(model, expected):
    packs.edit(model, lambda made: made.compiled_tensors.extend([made.compiled_tensors[0]] * 1000))
    session = Session(model)
    assert packs.kinds(session).count("hit") == packs.PACKED and packs.run(session) == expected
    assert prune(model).kept == packs.PACKED
    assert Path(model).stat().st_size < 40_000
