"""The GGUF reader over files made of any bytes. ``python -m tests.fuzz.fuzz_gguf --seconds 60``"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.fuzz import harness

with harness.instrumented():
    from tenonnx import convert
    from tests import gguf_files

_FOLDER = Path(tempfile.mkdtemp(prefix="tenonnx-fuzz-"))


def target(data: bytes) -> None:
    path = _FOLDER / "model.gguf"
    path.write_bytes(data)
    convert.from_gguf(path)


def seeds() -> list[bytes]:
    """A small model whole, with all its metadata and weights in several formats, and its first bytes."""
    path = gguf_files.write_llama(_FOLDER / "seed.gguf", layers=1, formats={"blk.0.ffn_up.weight": "Q4_0"}, vocabulary="bpe")
    data = Path(path).read_bytes()
    return [data[:64], data[:4096], data]


if __name__ == "__main__":
    harness.main(target, seeds())
