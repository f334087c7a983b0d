"""Each loading rule of the specification: a pack is used when all hold, and otherwise the result is the same without it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tenonnx import Session, ledger, load
from tenonnx.compiled import digest as digests
from tenonnx.compiled import store
from tenonnx.compiled.digest import Sources
from tenonnx.compiled.load import SEAL, seal_header
from tenonnx.errors import CheckError, PayloadError
from tenonnx.schema.external import DataRoot
from tests import packs

pytestmark = pytest.mark.usefixtures("user_cache")


@pytest.fixture
def model(tmp_path):
    return packs.built(tmp_path / "m" / "m.onnx")


@pytest.fixture
def expected(tmp_path):
    return packs.run(Session(packs.write(tmp_path / "plain" / "m.onnx"), packs="off"))


def set_metadata(message, key, value):
    for entry in message.metadata_props:
        if entry.key == key:
            entry.value = value


def seal_again(model, folder, position):
    """Give an entry the digest of its payload again, as if it had been written like this."""
    entry = model.compiled_tensors[position]
    place = {item.key: item.value for item in entry.value.external_data}
    begin = int(place["offset"])
    data = (folder / place["location"]).read_bytes()[begin : begin + int(place["length"])]
    layout = next(item.value for item in entry.metadata_props if item.key == "layout")
    header = seal_header(entry.source_digest, layout, packs.WEIGHTS[entry.source_name][1], packs.COLUMNS)
    set_metadata(entry, SEAL, digests([header, data], entry.digest_algorithm).hex())


def test_all_packs_hit_and_results_are_the_same_bits(model, expected):
    session = Session(model)
    assert packs.kinds(session) == ["hit"] * packs.PACKED
    assert packs.run(session) == expected == packs.run(Session(model, packs="off"))


def test_packs_that_hit_take_no_memory_of_their_own(model):
    before = ledger()["weight"]["allocations"]
    session = Session(model)
    packs.run(session)
    assert ledger()["weight"]["allocations"] == before
    assert Session(model, packs="off") and ledger()["weight"]["allocations"] == before + packs.PACKED


def test_the_source_is_not_touched_once_it_is_known(model, expected):
    Session(model)  # verifies
    os.truncate(model.parent / "weights.bin", 0)
    stat = os.stat(model.parent / "weights.bin")
    assert stat.st_size == 0
    with pytest.raises(PayloadError):
        Session(model)  # the change shows without the file being read


def rejected(model, expected, kind, why, position=0):
    """The entry is passed over for this reason, and the results are right."""
    session = Session(model)
    assert session.packs[position].kind == kind and why in session.packs[position].why
    assert packs.run(session) == expected
    return session


# ---- source_name resolves to exactly one initializer


@pytest.mark.parametrize("name", ["", "nowhere", "x", "a.decoded"])
def test_the_source_must_exist(model, expected, name):
    packs.edit(model, lambda made: setattr(made.compiled_tensors[0], "source_name", name))
    rejected(model, expected, "damaged", "no initializers are named")


def test_a_source_that_no_kernel_reads_packed_is_left_alone(model, expected):
    def change(made):
        made.graph.initializer.add(name="more", data_type=1, dims=[2], raw_data=bytes(8))
        made.compiled_tensors[0].source_name = "more"

    packs.edit(model, change)
    rejected(model, expected, "miss", "no kernel reads")


# ---- source_digest matches the canonical initializer content


def test_one_changed_weight_makes_its_pack_stale(model, expected):
    weights = model.parent / "weights.bin"
    data = bytearray(weights.read_bytes())
    data[5] ^= 1
    weights.write_bytes(data)
    changed = packs.run(Session(model, packs="off"))
    assert changed != expected
    session = rejected(model, changed, "miss", "stale")
    assert packs.kinds(session) == ["miss"] + ["hit"] * (packs.PACKED - 1)


def test_an_edit_with_its_mtime_restored_is_caught(model):
    Session(model)
    weights = model.parent / "weights.bin"
    before = weights.stat()
    with weights.open("r+b") as stream:
        stream.seek(5)
        stream.write(b"\x5a")
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert weights.stat().st_mtime_ns == before.st_mtime_ns
    assert Session(model).packs[0].why.startswith("stale")


def test_two_fine_tunes_of_the_same_names_do_not_share_packs(tmp_path, model):
    other = packs.write(tmp_path / "tuned" / "m.onnx", seed=1)
    plain = packs.run(Session(other))
    shutil.copy(packs.side(model), other.parent / packs.side(model).name)
    source = load(model)

    def change(made):
        made.devices.extend(source.devices)
        made.compiled_tensors.extend(source.compiled_tensors)

    packs.edit(other, change)
    session = Session(other)
    assert packs.kinds(session) == ["miss"] * packs.PACKED and packs.run(session) == plain


def test_an_unknown_digest_algorithm_is_a_miss(model, expected):
    packs.edit(model, lambda made: setattr(made.compiled_tensors[0], "digest_algorithm", "blake4"))
    rejected(model, expected, "miss", "'blake4' is not known")


@pytest.mark.parametrize("field", ["source_digest", "digest_algorithm"])
def test_an_empty_digest_is_damage(model, expected, field):
    packs.edit(model, lambda made: made.compiled_tensors[0].ClearField(field))
    rejected(model, expected, "damaged", "no digest")


def test_sha256_is_accepted(model, expected):
    def change(made):
        sources = Sources(made, DataRoot(model.parent), "sha256")
        for position, entry in enumerate(made.compiled_tensors):
            (value,) = (value for value in made.graph.struct_initializer if value.name == entry.source_name)
            entry.digest_algorithm, entry.source_digest = "sha256", sources.digest(value)
            seal_again(made, model.parent, position)

    packs.edit(model, change)
    session = Session(model)
    assert packs.kinds(session) == ["hit"] * packs.PACKED and packs.run(session) == expected


# ---- device is an in-range model-level index


@pytest.mark.parametrize("index", [1, -1, 2**31 - 1])
def test_the_device_must_be_in_range(model, expected, index):
    packs.edit(model, lambda made: setattr(made.compiled_tensors[0], "device", index))
    rejected(model, expected, "damaged", "not in devices, which has 1 entries")


def test_an_absent_device_is_damage(model, expected):
    packs.edit(model, lambda made: made.compiled_tensors[0].ClearField("device"))
    rejected(model, expected, "damaged", "not in devices")


def test_devices_in_another_order_are_another_meaning(model, expected):
    def change(made):
        device = made.devices.add()
        device.CopyFrom(made.devices[0])
        made.devices[0].type = "cuda"  # index 0 is now another device

    packs.edit(model, change)
    session = rejected(model, expected, "miss", "'cuda'")
    assert packs.kinds(session) == ["miss"] * packs.PACKED


# ---- device type, architecture, runtime, version and required metadata are compatible


@pytest.mark.parametrize(
    "field,value,why",
    [
        ("type", "rocm", "device of type 'rocm'"),
        ("index", 3, "cpu number 3"),
        ("architecture", "aarch64", "family"),
        ("architecture", "unheard-of", "not known"),
        ("runtime", "another", "runtime 'another'"),
        ("runtime_version", "0", "version '0'"),
    ],
)
def test_each_field_of_the_device_must_fit(model, expected, field, value, why):
    packs.edit(model, lambda made: setattr(made.devices[0], field, value))
    session = rejected(model, expected, "miss", why)
    assert packs.kinds(session) == ["miss"] * packs.PACKED


def test_required_metadata_must_be_known(model, expected):
    packs.edit(model, lambda made: made.devices[0].metadata_props.add(key="numa", value="2"))
    rejected(model, expected, "miss", "numa")


def test_another_version_of_a_layout_is_a_miss_for_its_packs_alone(model, expected):
    packs.edit(model, lambda made: set_metadata(made.devices[0], "layout.q4m", "2"))
    session = rejected(model, expected, "miss", "its layout is q4m.2, this runtime's is q4m.1")
    assert {verdict.source: verdict.kind for verdict in session.packs} == {"a": "miss", **dict.fromkeys("bcdef", "hit")}


ISA_RUN = "from tenonnx import Session; print([pack.kind for pack in Session({!r}).packs])"


@pytest.mark.parametrize("isa,kind", [("avx2", "hit"), ("portable", "miss")])
def test_a_pack_for_avx2_is_used_from_avx2_on(tmp_path, isa, kind):
    model = packs.built(tmp_path / "v3.onnx", architecture="x86_64_v3")
    if Session(model).packs[0].kind != "hit":
        pytest.skip("this host has no AVX2")
    environment = {**os.environ, "TENONNX_ISA": isa, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", ISA_RUN.format(str(model))]
    assert subprocess.check_output(command, env=environment, text=True).strip() == str([kind] * packs.PACKED)


def test_a_pack_for_avx512_is_a_miss_on_avx2(tmp_path):
    model = packs.built(tmp_path / "v4.onnx", architecture="x86_64_v4")
    environment = {**os.environ, "TENONNX_ISA": "avx2", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", ISA_RUN.format(str(model))]
    assert subprocess.check_output(command, env=environment, text=True).strip() == str(["miss"] * packs.PACKED)


def test_of_two_that_fit_the_one_made_for_more_is_used(model, expected):
    store.build(model, architecture="x86_64_v2")
    session = Session(model)
    if session.packs[-1].kind != "hit":
        pytest.skip("this host has less than x86_64_v2")
    assert packs.kinds(session) == ["usable"] * packs.PACKED + ["hit"] * packs.PACKED
    assert session.packs[0].why == "a better one exists" and packs.run(session) == expected


# ---- value and its type pass structural and payload-size validation; the runtime recognizes them


def test_the_type_must_be_that_of_the_layout(model, expected):
    def change(made):  # FLOAT16 and BFLOAT16 blocks are of one size
        c, f = (next(entry for entry in made.compiled_tensors if entry.source_name == name) for name in "cf")
        c.value.struct_type.array.element_type.struct_type.array.element_type.CopyFrom(
            f.value.struct_type.array.element_type.struct_type.array.element_type
        )

    packs.edit(model, change)
    rejected(model, expected, "damaged", "not that of a [8, 64] matrix in layout f16.1", position=2)


def test_raw_weights_under_a_packs_name_are_not_taken_for_packed(model, expected):
    """Equal sizes, the type swapped for that of the source: never read as packed."""

    def change(made):
        entry = next(entry for entry in made.compiled_tensors if entry.source_name == "c")
        (source,) = (value for value in made.graph.struct_initializer if value.name == "c")
        entry.value.ClearField("struct_type")
        entry.value.type = source.type
        del entry.value.external_data[:]
        entry.value.external_data.extend(source.external_data)

    packs.edit(model, change)
    rejected(model, expected, "damaged", "not that of a", position=2)


@pytest.mark.parametrize("by", [-1, 1, -64])
def test_the_payload_must_be_of_the_types_size(model, expected, by):
    def change(made):
        (length,) = (item for item in made.compiled_tensors[0].value.external_data if item.key == "length")
        length.value = str(int(length.value) + by)

    packs.edit(model, change)
    rejected(model, expected, "damaged", "its type takes")


@pytest.mark.parametrize("field", ["value", "metadata_props"])
def test_an_entry_without_its_value_or_layout(model, expected, field):
    packs.edit(model, lambda made: made.compiled_tensors[0].ClearField(field))
    rejected(model, expected, "miss" if field == "metadata_props" else "damaged", "")


def test_two_packs_swapped_whole_are_noticed(model, expected):
    """Payload, type and payload digest of one pack under the source digest of another of the same shape and layout."""

    def swap(made):
        first, second = made.compiled_tensors[0], made.compiled_tensors.add()
        second.CopyFrom(first)
        del made.compiled_tensors[-1]
        set_metadata(first, SEAL, "00" * 32)

    packs.edit(model, swap)
    rejected(model, expected, "damaged", "its digest differs")


def test_an_inline_payload_is_used(model, expected):
    def change(made):
        for entry in made.compiled_tensors:
            place = {item.key: item.value for item in entry.value.external_data}
            begin = int(place["offset"])
            data = (model.parent / place["location"]).read_bytes()
            entry.value.raw_data = data[begin : begin + int(place["length"])]
            del entry.value.external_data[:]

    packs.edit(model, change)
    session = Session(model)
    assert packs.kinds(session) == ["hit"] * packs.PACKED and packs.run(session) == expected


def test_a_model_in_memory_finds_its_packs_in_its_data_root(model, expected):
    session = Session(load(model), data_root=model.parent)
    assert packs.kinds(session) == ["hit"] * packs.PACKED and packs.run(session) == expected


@pytest.mark.parametrize("external", [True, False])
def test_inline_and_external_sources_have_packs_alike(tmp_path, external):
    path = packs.write(tmp_path / "m.onnx", external=external)
    plain = packs.run(Session(path))
    store.build(path)
    for _ in range(2):
        session = Session(path)
        assert packs.kinds(session) == ["hit"] * packs.PACKED and packs.run(session) == plain


# ---- What is known from before


def test_strict_hashes_what_is_known(model, monkeypatch):
    Session(model)
    hashed = []
    real = Sources.content
    monkeypatch.setattr(Sources, "content", lambda self, value: hashed.append(value.name) or real(self, value))
    assert packs.kinds(Session(model)) == ["hit"] * packs.PACKED and hashed == []
    assert packs.kinds(Session(model, strict=True)) == ["hit"] * packs.PACKED and len(hashed) == packs.PACKED


def test_a_cache_that_cannot_be_written_or_read_costs_only_time(model, expected, user_cache, tmp_path, monkeypatch):
    for folder in ("/proc/nowhere", str(model)):
        monkeypatch.setenv("TENONNX_CACHE", folder)
        assert packs.run(Session(model)) == expected
    monkeypatch.setenv("TENONNX_CACHE", str(user_cache))
    Session(model)
    for file in (user_cache / "digests").iterdir():
        file.write_bytes(b"\xff{[")
    session = Session(model)
    assert packs.kinds(session) == ["hit"] * packs.PACKED and packs.run(session) == expected


def test_a_model_moved_or_reached_by_a_link_keeps_its_packs(model, expected, tmp_path):
    link = tmp_path / "elsewhere" / "linked.onnx"
    link.parent.mkdir()
    link.symlink_to(model)
    assert packs.kinds(Session(link)) == ["hit"] * packs.PACKED
    moved = tmp_path / "moved"
    model.parent.rename(moved)
    session = Session(moved / model.name)
    assert packs.kinds(session) == ["hit"] * packs.PACKED and packs.run(session) == expected


# ---- A broken type that only packs use


def test_types_that_only_packs_use_never_make_a_model_unfit(model, expected):
    def change(made):
        made.struct_types.add().array.dimension = 3  # no element type
        made.compiled_tensors[0].value.ClearField("struct_type")
        made.compiled_tensors[0].value.type = len(made.struct_types) - 1

    packs.edit(model, change)
    rejected(model, expected, "damaged", "")
    packs.edit(model, lambda made: setattr(made.graph.struct_initializer[0], "type", len(made.struct_types) - 1))
    with pytest.raises(CheckError):
        Session(model)


# ---- Files under a running session


def test_a_side_file_replaced_by_rename_is_harmless(model, expected):
    session = Session(model)
    assert packs.run(session) == expected
    side = packs.side(model)
    other = side.with_name("new")
    other.write_bytes(np.random.default_rng(0).bytes(side.stat().st_size))
    other.replace(side)
    assert packs.run(session) == expected == packs.run(session)


@pytest.mark.parametrize("restore", [False, True])
def test_a_side_file_changed_in_place_is_refused(model, restore):
    session = Session(model)
    packs.run(session)
    side = packs.side(model)
    before = side.stat()
    with side.open("r+b") as stream:
        stream.seek(10)
        stream.write(b"\x77\x11")
    if restore:
        os.utime(side, ns=(before.st_atime_ns, before.st_mtime_ns))
    for _ in range(2):
        with pytest.raises(PayloadError, match="changed in place"):
            packs.run(session)


def test_a_truncated_side_file_is_refused_before_it_is_read(model):
    session = Session(model)
    os.truncate(packs.side(model), 0)
    with pytest.raises(PayloadError, match="changed in place"):
        packs.run(session)


def test_permissions_and_links_do_not_end_a_session(model, expected):
    session = Session(model)
    packs.side(model).chmod(0o600)
    assert packs.run(session) == expected
    os.link(packs.side(model), model.parent / "backup")
    assert packs.run(session) == expected
