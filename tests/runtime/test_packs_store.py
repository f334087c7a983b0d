"""Writing packs: whole or not at all, one writer at a time, never more than once."""

from __future__ import annotations

import errno
import io
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx
import pytest

from tenonnx import Session, check, load
from tenonnx.compiled import store
from tenonnx.compiled.inventory import Inventory
from tenonnx.compiled.prune import prune
from tenonnx.errors import OptionError, PayloadError, UnsupportedError
from tests import packs

pytestmark = pytest.mark.usefixtures("user_cache")


@pytest.fixture
def model(tmp_path):
    return packs.write(tmp_path / "m.onnx")


@pytest.fixture
def expected(tmp_path):
    return packs.run(Session(packs.write(tmp_path / "plain" / "m.onnx"), packs="off"))


def states(folder):
    return {file.name: (file.stat().st_ino, file.stat().st_mtime_ns, file.stat().st_size) for file in sorted(folder.iterdir())}


def test_what_is_built_is_sound_and_stock_onnx_reads_it(model):
    plan = store.build(model)
    assert (plan.kept, plan.new) == (0, packs.PACKED) and plan.path == packs.side(model)
    assert plan.nbytes == plan.path.stat().st_size
    assert check(str(model)) == [] and list(Inventory(model).faults()) == []
    assert onnx.load(model, load_external_data=False).graph.name == "packs"


def test_payloads_are_aligned(model):
    store.build(model)
    for entry in load(model).compiled_tensors:
        (offset,) = (int(item.value) for item in entry.value.external_data if item.key == "offset")
        assert offset % 4096 == 0


def test_a_second_build_writes_nothing(model):
    store.build(model)
    before = states(model.parent)
    plan = store.build(model)
    assert (plan.kept, plan.new) == (packs.PACKED, 0) and states(model.parent) == before


def test_loading_twenty_times_neither_grows_nor_rewrites(model, expected):
    Session(model, packs="write")
    before = states(model.parent)
    for _ in range(20):
        assert packs.run(Session(model, packs="write")) == expected
    assert states(model.parent) == before


def test_auto_never_writes(model):
    before = states(model.parent)
    Session(model), Session(model, packs="off")
    assert states(model.parent) == before


def test_write_stores_and_then_maps(model, expected):
    session = Session(model, packs="write")
    assert packs.kinds(session) == ["hit"] * packs.PACKED and packs.run(session) == expected


def test_write_needs_a_file(model):
    with pytest.raises(OptionError, match="path"):
        Session(load(model), packs="write", data_root=model.parent)


def test_what_is_right_is_kept_and_the_rest_made_again(model, expected):
    store.build(model)
    weights = model.parent / "weights.bin"
    data = bytearray(weights.read_bytes())
    data[5] ^= 1
    weights.write_bytes(data)
    plan = store.build(model)
    assert (plan.kept, plan.new) == (packs.PACKED - 1, 1)
    session = Session(model)
    assert packs.kinds(session) == ["hit"] * packs.PACKED
    assert packs.run(session) == packs.run(Session(model, packs="off")) != expected


def test_the_model_around_the_packs_stays_the_same_bytes(model):
    before = model.read_bytes()
    store.build(model)
    assert model.read_bytes().startswith(before)
    prune(model, everything=True)
    assert model.read_bytes() == before
    assert sorted(file.name for file in model.parent.glob("*.packs*")) == []


def test_another_architecture_gets_a_file_of_its_own(model):
    store.build(model)
    store.build(model, architecture="x86_64_v4")
    store.build(model, architecture="aarch64")
    made = load(model)
    assert [device.architecture for device in made.devices] == ["x86_64", "x86_64_v4", "aarch64"]
    assert len(list(model.parent.glob("m.onnx.*.packs"))) == 3
    assert list(Inventory(model).faults()) == []


def test_packs_of_another_runtime_are_kept(model):
    def change(made):
        made.devices.add(type="npu", runtime="other", architecture="x")
        entry = made.compiled_tensors.add(source_name="a", device=0, source_digest=b"1", digest_algorithm="crc")
        entry.value.type, entry.value.raw_data = 0, b"?"

    packs.edit(model, change)
    foreign = load(model).compiled_tensors[0]
    store.build(model)
    assert load(model).compiled_tensors[0] == foreign
    assert [verdict.kind for verdict in prune(model).verdicts] == []
    assert load(model).compiled_tensors[0] == foreign


def test_nothing_is_written_unless_agreed(model):
    before = states(model.parent)
    asked = []
    store.build(model, agree=lambda plan: bool(asked.append(plan)))
    assert states(model.parent) == before and asked[0].nbytes == packs.PACKED * 4096 and asked[0].new == packs.PACKED


def test_a_model_without_packed_weights_says_so(tmp_path):
    made = onnx.helper.make_graph([onnx.helper.make_node("Neg", ["x"], ["y"])], "g", [_info("x")], [_info("y")])
    onnx.save(onnx.helper.make_model(made), tmp_path / "m.onnx")
    with pytest.raises(UnsupportedError, match="nothing to pack"):
        store.build(tmp_path / "m.onnx")
    Session(tmp_path / "m.onnx", packs="write")


def _info(name):
    return onnx.helper.make_tensor_value_info(name, 1, [2])


# ---- Where writing fails


class Full(io.RawIOBase):
    """A file on a disk that fills up; ``room`` is what it and its like have left."""

    def __init__(self, room, file):
        self.room, self.file = room, file

    def write(self, data):
        self.room[0] -= len(data)
        if self.room[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(data)

    def tell(self):
        return self.file.tell()

    def fileno(self):
        return self.file.fileno()

    def flush(self):
        self.file.flush()

    def close(self):
        self.file.close()


@pytest.mark.parametrize("room", [0, 4096, 20_000, 24_576, 30_000])
def test_a_full_disk_leaves_the_model_as_it_was(model, expected, monkeypatch, caplog, room):
    before = states(model.parent)
    real, left = os.fdopen, [room]
    monkeypatch.setattr(store.os, "fdopen", lambda number, mode: Full(left, real(number, mode)))
    with pytest.raises(PayloadError, match="No space left"):
        store.build(model)
    after = states(model.parent)
    after.pop("m.onnx.x86_64.packs", None)  # where the payloads fitted and the model did not
    assert after == before
    with caplog.at_level(logging.WARNING, "tenonnx"):
        assert packs.run(Session(model, packs="write")) == expected
    assert "not stored" in caplog.text


def test_a_read_only_folder(model, expected):
    root = os.geteuid() == 0  # who may write everywhere, and so takes another user's place meanwhile
    with tempfile.TemporaryDirectory() as folder:  # one that other users reach
        there = Path(shutil.copytree(model.parent, folder, dirs_exist_ok=True)) / model.name
        store.build(model)  # and all is imported, which another user may not read
        Path(folder).chmod(0o555)
        if root:
            os.seteuid(65534)
        try:
            with pytest.raises(PayloadError, match="Permission denied"):
                store.build(there)
            assert packs.run(Session(there, packs="write")) == expected
        finally:
            if root:
                os.seteuid(0)
            Path(folder).chmod(0o755)


def test_a_folder_in_which_nothing_can_be_made(model, expected, monkeypatch, caplog):
    real = os.open

    def refuse(path, flags, *more, **options):
        if flags & os.O_CREAT and str(path).endswith(".part"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, flags, *more, **options)

    monkeypatch.setattr(store.os, "open", refuse)
    with pytest.raises(PayloadError, match="Permission denied"):
        store.build(model)
    assert packs.run(Session(model, packs="write")) == expected
    assert packs.run(Session(model)) == expected


# ---- Several processes

BUILD = "from tenonnx import Session; from tests import packs; print(hash(str(packs.run(Session({!r}, packs='write')))))"


def start(code, **environment):
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "0", **environment}
    return subprocess.Popen([sys.executable, "-c", code], env=settings, text=True, stdout=subprocess.PIPE)


def test_eight_processes_on_a_cold_model_end_with_one_good_pack(model):
    processes = [start(BUILD.format(str(model))) for _ in range(8)]
    results = {process.communicate()[0] for process in processes}
    assert all(process.returncode == 0 for process in processes) and len(results) == 1
    assert [file.name for file in model.parent.glob("*.packs*")] == [packs.side(model).name]
    assert len(load(model).compiled_tensors) == packs.PACKED and list(Inventory(model).faults()) == []


def test_threads_of_one_process_write_once(model, expected):
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: packs.run(Session(model, packs="write")), range(4)))
    assert results == [expected] * 4 and list(Inventory(model).faults()) == []


KILLED = """
import os, signal
from tenonnx.compiled import store
count = 0
def step(*arguments):
    global count
    count += 1
    if count == {at}:
        os.kill(os.getpid(), signal.SIGKILL)
for name in ("fsync", "replace", "fchmod"):
    def counted(*arguments, real=getattr(os, name)):
        step()
        result = real(*arguments)
        step()
        return result
    setattr(store.os, name, counted)
store.build({path!r}, progress=step)
"""


@pytest.mark.parametrize("at", range(1, 20))
def test_killed_in_the_middle_of_writing_the_model_loads(model, expected, at):
    process = start(KILLED.format(at=at, path=str(model)))
    process.communicate()
    assert process.returncode in (-signal.SIGKILL, 0)
    assert packs.run(Session(model)) == expected
    session = Session(model, packs="write")
    assert packs.kinds(session) == ["hit"] * packs.PACKED and packs.run(session) == expected
    assert [file.name for file in model.parent.iterdir() if file.name.endswith(".part")] == []


def test_a_reader_meets_a_writer_at_any_moment(model, expected):
    """Readers while packs come and go: always the right results."""
    code = (
        "from tenonnx.compiled import store; from tenonnx.compiled.prune import prune\n"
        "for _ in range(15): store.build({0!r}); prune({0!r}, everything=True)"
    ).format(str(model))
    writer = start(code)
    rounds = 0
    while writer.poll() is None:
        assert packs.run(Session(model)) == expected
        rounds += 1
        time.sleep(0.001)
    assert writer.returncode == 0 and rounds


# ---- Pruning


def test_prune_keeps_what_some_host_uses(model):
    store.build(model)
    store.build(model, architecture="aarch64")
    removed = prune(model)
    assert removed.verdicts == [] and removed.kept == 2 * packs.PACKED and removed.freed == 0


def test_prune_for_this_host_removes_the_rest(model, expected):
    store.build(model)
    store.build(model, architecture="aarch64")
    removed = prune(model, host_only=True)
    assert removed.kept == packs.PACKED and removed.freed > packs.PACKED * 4096
    assert [file.name for file in model.parent.glob("*.packs")] == ["m.onnx.x86_64.packs"]
    assert [device.architecture for device in load(model).devices] == ["x86_64"]
    session = Session(model)
    assert packs.kinds(session) == ["hit"] * packs.PACKED and packs.run(session) == expected


def test_prune_removes_stale_damaged_duplicate_and_unmatched_packs_and_shrinks_the_file(model, expected):
    store.build(model)
    size = packs.side(model).stat().st_size

    def change(made):
        made.compiled_tensors.add().CopyFrom(made.compiled_tensors[5])  # a duplicate
        made.compiled_tensors[0].source_digest = b"\1" * 32  # stale
        made.compiled_tensors[1].source_name = "gone"
        made.compiled_tensors[2].metadata_props[0].value = "f16.9"  # a layout of no version known here
        made.compiled_tensors[3].metadata_props[1].value = "00" * 32  # damaged

    packs.edit(model, change)
    removed = prune(model)
    assert [verdict.entry for verdict in removed.verdicts] == [0, 1, 2, 3, 6] and removed.kept == 2
    assert packs.side(model).stat().st_size == size - 4 * 4096
    assert list(Inventory(model).faults()) == []
    session = Session(model)
    assert packs.kinds(session) == ["hit", "hit"] and packs.run(session) == expected


def test_prune_deletes_what_a_killed_writer_left(model):
    store.build(model)
    (model.parent / ".m.onnx.x86_64.packs.part").write_bytes(b"half")
    (model.parent / "m.onnx.x86_64_v3.packs").write_bytes(b"that no entry names")
    (model.parent / "m.onnx.notes.packs").write_bytes(b"not ours")
    prune(model)
    assert sorted(file.name for file in model.parent.glob("*packs*")) == ["m.onnx.notes.packs", "m.onnx.x86_64.packs"]
    assert sorted(file.name for file in model.parent.glob(".*")) == []


def test_a_session_goes_on_when_its_packs_are_pruned(model, expected):
    session = Session(model, packs="write")
    prune(model, everything=True)
    assert packs.run(session) == expected


# ---- Verifying


def test_verify_finds_a_pack_that_does_not_decode_to_its_source(model):
    """A payload that was sealed wrong: only decoding it tells."""
    from tests.runtime.test_packs_loading import seal_again

    store.build(model)
    with packs.side(model).open("r+b") as stream:
        stream.seek(100)
        stream.write(b"\x3c")
    packs.edit(model, lambda made: seal_again(made, model.parent, 0))
    (fault,) = Inventory(model).faults()
    assert fault.source == "a" and "does not decode" in fault.message


def test_verify_finds_stale_packs_and_changed_payloads(model):
    store.build(model)
    weights = model.parent / "weights.bin"
    data = bytearray(weights.read_bytes())
    data[5] ^= 1
    weights.write_bytes(data)
    with packs.side(model).open("r+b") as stream:
        stream.seek(4096)
        stream.write(b"\x3c\x3c")
    messages = [(fault.source, fault.message.split(":")[0]) for fault in Inventory(model).faults()]
    assert messages[:2] == [("a", "stale"), ("b", "its payload is not what was written")]
    assert {source for source, _ in messages} == {"a", "b"}
