"""What is remembered of a file holds for that state of it alone."""

import os
import time

import pytest

from tenonnx.compiled.memory import SETTLED_NS, Memory, settled
from tenonnx.schema.external import FileIdentity, map_file

pytestmark = pytest.mark.usefixtures("user_cache")


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "w.bin"
    path.write_bytes(b"content")
    time.sleep(SETTLED_NS / 1e9)
    return path


def note(path):
    memory = Memory(map_file(path))
    memory.put(b"key", b"digest")
    memory.save()


def known(path, **options):
    return Memory(map_file(path), **options).get(b"key")


def test_a_digest_is_remembered_for_the_file_as_it_is(path):
    assert known(path) is None
    note(path)
    assert known(path) == b"digest" and Memory(map_file(path)).get(b"another") is None


def test_strict_remembers_nothing(path):
    note(path)
    assert known(path, forget=True) is None and known(path) == b"digest"


@pytest.mark.parametrize("change", ["content", "mtime", "mode", "replaced"])
def test_another_state_of_the_file_is_another_file(path, change):
    note(path)
    before = path.stat()
    if change == "content":
        with path.open("r+b") as stream:
            stream.write(b"C")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif change == "mtime":
        os.utime(path)
    elif change == "mode":
        path.chmod(0o600)
    else:
        path.rename(path.with_name("old"))
        path.write_bytes(b"content")
    assert known(path) is None


def test_a_file_that_changes_while_it_is_hashed_is_not_remembered(path):
    memory = Memory(map_file(path))
    memory.put(b"key", b"digest")
    os.utime(path)
    memory.save()
    assert known(path) is None


def test_a_file_that_has_changed_since_it_was_mapped_is_not_known(path):
    file = map_file(path)
    path.chmod(0o600)
    time.sleep(SETTLED_NS / 1e9)
    note(path)
    assert known(path) == b"digest" and Memory(file).get(b"key") is None


@pytest.mark.parametrize("field", ["mtime_ns", "ctime_ns"])
def test_a_file_touched_just_now_may_change_again_unseen(field):
    now = time.time_ns()
    old = FileIdentity(1, 2, 3, now - 10 * SETTLED_NS, now - 10 * SETTLED_NS)
    assert settled(old) and not settled(old._replace(**{field: now})) and not settled(old._replace(**{field: now + 10**12}))


def test_a_file_touched_just_now_is_not_remembered(path):
    path.chmod(0o644)
    note(path)
    assert known(path) is None


def test_the_cache_does_not_grow_without_end(path, user_cache, monkeypatch):
    monkeypatch.setattr("tenonnx.compiled.memory._KEPT", 3)
    for number in range(5):
        path.chmod(0o600 + number)
        time.sleep(SETTLED_NS / 1e9)
        note(path)
    assert len(list((user_cache / "digests").iterdir())) == 3 and known(path) == b"digest"
