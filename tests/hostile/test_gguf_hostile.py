"""Damaged and malicious GGUF files: each is refused with an error of the tree, in no time and with no memory to speak of."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenonnx import convert
from tenonnx.convert import gguf
from tenonnx.errors import PayloadError, TenonnxError, UnsupportedError
from tests import families
from tests.gguf_files import split_parts, write_llama

Read = Callable[[bytes], gguf.Gguf]
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32}
HUGE = [2**31, 2**32, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read_bytes(data: bytes) -> gguf.Gguf:
        path = tmp_path / "hostile.gguf"
        path.write_bytes(data)
        return gguf.read(path)

    return read_bytes


def text(value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def file(tensors: int, entries: int, *body: bytes, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, entries) + b"".join(body)


def entry(key: bytes | str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: bytes | str, dims: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


@pytest.mark.parametrize("length", HUGE)
def test_a_length_in_a_file_of_43_bytes(read: Read, length: int) -> None:
    key = file(0, 1, struct.pack("<Q", length)).ljust(43, b"\0")
    assert len(key) == 43
    with pytest.raises(PayloadError, match="past the end"):
        read(key)
    with pytest.raises(PayloadError, match="past the end"):
        read(file(0, 1, entry("k", 8, struct.pack("<Q", length))))


@pytest.mark.parametrize("count", HUGE)
def test_counts_that_no_file_could_hold(read: Read, count: int) -> None:
    for data in (
        file(count, 0),
        file(0, count),
        *(file(0, 1, entry("k", 9, struct.pack("<IQ", kind, count)) + b"\0" * 64) for kind in range(13)),
        file(0, 1, entry("k", 9, struct.pack("<IQIQ", 9, 1, 9, count)) + b"\0" * 64),
        file(0, 1, entry("k", 9, struct.pack("<IQIQ", 9, 1, 8, count)) + b"\0" * 64),
    ):
        with pytest.raises(PayloadError):
            read(data)


def test_arrays_nested_without_end(read: Read) -> None:
    with pytest.raises(PayloadError, match="deep"):
        read(file(0, 1, entry("k", 9, struct.pack("<IQ", 9, 1) * 100_000)))


@pytest.mark.parametrize(
    "dims", [[4194305, 4194305, 211106198978564], [2**32, 2**32], [2**63, 2], [2**64 - 1] * 4, [32, 2**59], [2**62, 4]]
)
@pytest.mark.parametrize("kind", [0, 1, 8, 12])
def test_dims_whose_product_wraps(read: Read, dims: list[int], kind: int) -> None:
    with pytest.raises(PayloadError):
        read(file(1, 0, tensor("t", dims, kind)) + b"\0" * 4096)


def test_blocks_whose_bytes_wrap(read: Read) -> None:
    # blocks * 18 is 56 modulo 2^64
    with pytest.raises(PayloadError, match="truncated"):
        read(file(1, 0, tensor("t", [32, 5124095576030431008], 2)) + b"\0" * 4096)


@pytest.mark.parametrize("offset", [4096, 2**63, 2**64 - 32, 2**64 - 4096])
def test_offsets_past_the_file(read: Read, offset: int) -> None:
    with pytest.raises(PayloadError, match="truncated"):
        read(file(1, 0, tensor("t", [4], 0, offset)) + b"\0" * 256)


def test_the_last_byte_of_a_tensor(read: Read) -> None:
    data = file(1, 0, tensor("t", [8], 0))
    data += b"\0" * (-len(data) % 32) + b"\0" * 32
    assert read(data).tensors["t"].nbytes == 32
    with pytest.raises(PayloadError, match="truncated"):
        read(data[:-1])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no GGUF"),
        (b"GG", "no GGUF"),
        (b"GGML" + bytes(60), "no GGUF"),
        (b"GGUF", "header"),
        (file(0, 2, entry("k", 4, bytes(4)), entry("k", 4, bytes(4))), "'k' stands twice"),
        (file(2, 0, tensor("t", [1]), tensor("t", [1])) + bytes(64), "'t' stands twice"),
        (file(0, 1, entry(b"\xff", 4, bytes(4))), "UTF-8"),
        (file(0, 1, entry("k", 8, text(b"\xed\xa0\x80"))), "UTF-8"),  # a surrogate
        (file(0, 1, entry("k", 9, struct.pack("<IQ", 8, 2) + text("a") + text(b"\xc3"))), "string 1 of .*UTF-8"),
        (file(1, 0, tensor(b"\xfe", [1])), "UTF-8"),
        (file(0, 1, entry("k", 13, bytes(8))), "kind 13"),
        (file(0, 1, entry("k", 9, struct.pack("<IQ", 99, 1)) + bytes(8)), "kind 99"),
        (file(0, 1, entry("k", 7, b"\2")), "boolean"),
        (file(1, 0, tensor("t", [1] * 5)), "5 dimensions"),
        (file(1, 0, text("t"), struct.pack("<I", 2**32 - 1), bytes(64)), "dimensions"),
        (file(1, 0, tensor("t", [33], 2)) + bytes(64), "do not divide"),
        (file(1, 0, tensor("t", [], 2)) + bytes(64), "do not divide"),
        (file(1, 0, tensor("t", [1], 0, 4)) + bytes(64), "alignment"),
        (file(0, 1, entry("general.alignment", 4, struct.pack("<I", 0))), "power of two"),
        (file(0, 1, entry("general.alignment", 4, struct.pack("<I", 48))), "power of two"),
        (file(0, 1, entry("general.alignment", 6, struct.pack("<f", 32))), "expected an integer"),
        (file(0, 1, entry("general.alignment", 7, b"\1")), "expected an integer"),
        (file(0, 1, entry("general.alignment", 10, struct.pack("<Q", 2**63))), None),
    ],
)
def test_single_faults(read: Read, data: bytes, message: str | None) -> None:
    if message is None:
        assert read(data).tensors == {}
        return
    with pytest.raises(PayloadError, match=message):
        read(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (file(0, 0, version=1), "version 1"),
        (file(0, 0, version=4), "version 4"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (file(1, 0, tensor("strange", [32], 4)) + bytes(64), "'strange' has type number 4; known types are F32"),
    ],
)
def test_what_is_not_supported(read: Read, data: bytes, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        read(data)


@pytest.mark.parametrize("vocabulary", ["bpe", "spm", None])
def test_truncation_at_every_byte(tmp_path: Path, vocabulary: str | None) -> None:
    path = write_llama(tmp_path / "m.gguf", layers=1, hidden=32, ffn=32, vocabulary=vocabulary, format="Q4_0")
    header = min(t.offset for t in gguf.read(path).tensors.values())
    size = path.stat().st_size
    for length in [*range(size - 1, header, -997), *range(header, -1, -1 if vocabulary is None else -7)]:
        os.truncate(path, length)
        with pytest.raises(PayloadError):
            gguf.read(path)


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("seeds")
    options = {"layers": 1, "hidden": 32, "ffn": 32, "format": "Q4_0"}
    files = {
        "yarn": write_llama(folder / "yarn.gguf", metadata=YARN, rope_factors=np.ones(4), tied=False, **options),
        "bpe": write_llama(folder / "bpe.gguf", vocabulary="bpe", **options),
        "spm": write_llama(folder / "spm.gguf", vocabulary="spm", **options),
        "gemma3": families.write(folder / "gemma3.gguf", "gemma3", layers=2),
    }
    return {name: path.read_bytes() for name, path in files.items()}


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), name=st.sampled_from(["yarn", "yarn", "gemma3", "bpe", "spm"]))
def test_random_damage_never_leaves_the_error_tree(
    data: st.DataObject, name: str, seeds: dict[str, bytes], tmp_path: Path
) -> None:
    damaged = bytearray(seeds[name])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, min(len(damaged) - 1, 12_000)))
        value = data.draw(st.sampled_from([b"\0", b"\xff", b"\x7f", b"\x80", b"\xff" * 8, b"\0" * 8, b"\0\0\0\0\0\0\xf0\x7f"]))
        damaged[place : place + len(value)] = value
    path = tmp_path / "damaged.gguf"
    path.write_bytes(damaged)
    try:
        convert.from_gguf(path)
    except TenonnxError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"architecture": "mamba"}, UnsupportedError, "'mamba'; this version converts llama"),
        (
            {"without": ["blk.1.ffn_up.weight"]},
            PayloadError,
            r"no tensor 'blk.1.ffn_up.weight'; expected one of shape \[96, 64\]",
        ),
        ({"without": ["token_embd.weight"]}, PayloadError, "no tensor 'token_embd.weight'"),
        ({"extra": {"blk.0.attn_q.weight": np.zeros((32, 64), np.float32)}}, PayloadError, r"\[32, 64\]; expected \[64, 64\]"),
        ({"extra": {"blk.0.attn_norm.weight": np.zeros((1, 64), np.float32)}}, PayloadError, r"\[1, 64\]; expected \[64\]"),
        (
            {"extra": {"blk.0.attn_q_norm.weight": np.zeros(16, np.float32)}},
            UnsupportedError,
            "'blk.0.attn_q_norm.weight' is none",
        ),
        ({"extra": {"blk.7.attn_q.weight": np.zeros((64, 64), np.float32)}}, UnsupportedError, "'blk.7.attn_q.weight' is none"),
        (
            {"format": "I8"},
            UnsupportedError,
            "'token_embd.weight' has type I8; this version runs .*Q4_1, .*NVFP4, Q1_0: quantize",
        ),
        ({"rope_factors": np.ones(5)}, PayloadError, "rope_freqs"),
        ({"rope_factors": np.array([1, 0, 1, 1, 1, 1, 1, 1])}, PayloadError, "not positive"),
        ({"rope_factors": np.full(8, 1e-42)}, PayloadError, "rope turns"),
        ({"metadata": {"rope.scaling.attn_factor": float("nan")}}, PayloadError, "gain nan"),
        ({"metadata": YARN | {"rope.scaling.yarn_beta_fast": float("inf")}}, PayloadError, "beta inf"),
        ({"metadata": YARN | {"rope.scaling.original_context_length": 0}}, PayloadError, "context of 0"),
        ({"rope_factors": np.full(8, np.nan)}, PayloadError, "not positive"),
        ({"metadata": {"block_count": None}}, PayloadError, "llama.block_count"),
        ({"metadata": {"block_count": 2**31 - 1}}, PayloadError, "blk.2.attn_norm.weight"),
        ({"metadata": {"block_count": 2**32 - 1}}, PayloadError, "block count is 4294967295"),
        ({"metadata": {"block_count": 0}}, PayloadError, "block count is 0"),
        ({"metadata": {"block_count": "two"}}, PayloadError, "expected an integer"),
        ({"metadata": {"feed_forward_length": 0}}, PayloadError, "feed forward length is 0"),
        ({"vocab": 0}, PayloadError, "vocabulary is 0"),
        ({"metadata": {"attention.head_count": 0}}, PayloadError, "head count is 0"),
        ({"metadata": {"attention.head_count_kv": 3}}, PayloadError, "4 heads over 3"),
        ({"metadata": {"attention.head_count_kv": [2, 1]}}, PayloadError, "expected an integer"),
        ({"metadata": {"rope.dimension_count": 7}}, PayloadError, "7 rotated"),
        ({"metadata": {"rope.dimension_count": 18}}, PayloadError, "18 rotated"),
        ({"metadata": {"rope.freq_base": 1.0}}, PayloadError, "rope base"),
        ({"metadata": {"rope.freq_base": float("nan")}}, PayloadError, "rope base"),
        ({"metadata": {"rope.scaling.type": "longrope"}}, UnsupportedError, "longrope"),
        ({"metadata": {"rope.scaling.factor": -1.0}}, PayloadError, "scaling factor"),
        ({"metadata": {"attention.layer_norm_rms_epsilon": float("nan")}}, PayloadError, "epsilon"),
        ({"metadata": {"attention.scale": float("inf")}}, PayloadError, "scale"),
        ({"metadata": {"expert_count": 8}}, UnsupportedError, "mixture of experts"),
        ({"vocabulary": "bpe", "pre": "unheard-of"}, UnsupportedError, "'unheard-of'; known are default"),
    ],
)
def test_models_that_do_not_fit_their_architecture(
    tmp_path: Path, options: dict, error: type[TenonnxError], message: str
) -> None:
    path = write_llama(tmp_path / "m.gguf", **options)
    with pytest.raises(error, match=message):
        convert.from_gguf(path)


def test_parts_missing_or_mixed_up(tmp_path: Path) -> None:
    write_llama(tmp_path / "m.gguf", split=5)
    write_llama(tmp_path / "n.gguf", split=5, layers=1)
    parts, others = split_parts(tmp_path / "m.gguf", 4), split_parts(tmp_path / "n.gguf", 3)
    with pytest.raises(PayloadError, match="is one of 4 parts but not named"):
        gguf.read(parts[0].rename(tmp_path / "renamed.gguf"))
    (tmp_path / "renamed.gguf").rename(parts[0])
    kept = parts[2].read_bytes()
    parts[2].write_bytes(parts[1].read_bytes())
    with pytest.raises(PayloadError, match="not part 3 of 4"):
        gguf.read(parts[0])
    parts[2].write_bytes(others[2].read_bytes())
    with pytest.raises(PayloadError, match="not part 3 of 4"):
        gguf.read(parts[0])
    parts[2].unlink()
    with pytest.raises(PayloadError, match=r"m-00003-of-00004.gguf: is missing"):
        gguf.read(parts[0])
    parts[2].write_bytes(kept)
    assert len(gguf.read(parts[0]).tensors) == 20


def test_what_is_no_file(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.gguf", tmp_path):
        with pytest.raises(PayloadError):
            gguf.read(path)
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(PayloadError, match="regular file"):
        gguf.read(tmp_path / "pipe.gguf")
    (tmp_path / "loop.gguf").symlink_to("loop.gguf")
    with pytest.raises(PayloadError):
        gguf.read(tmp_path / "loop.gguf")
