"""Whole models from any bytes: load, check, plan. ``python -m tests.fuzz.fuzz_models --seconds 60``"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.fuzz import fuzz_structs, harness

with harness.instrumented():
    import tenonnx
    from tenonnx import convert, plan
    from tests import gguf_files

_FOLDER = Path(tempfile.mkdtemp(prefix="tenonnx-fuzz-"))


def target(data: bytes) -> None:
    path = _FOLDER / "model.onnx"
    path.write_bytes(data)
    model = tenonnx.load(path)
    if not any(found.severity == "error" for found in tenonnx.check(model, _FOLDER)):
        plan.plan(model, {"batch": 1, "sequence": 2})


def seeds() -> list[bytes]:
    """A converted llama, whose weights lie beside it, and a model of nothing but types and values."""
    path = gguf_files.write_llama(_FOLDER / "seed.gguf", layers=1, formats={"blk.0.ffn_up.weight": "Q4_0"})
    return [convert.from_gguf(path)[0].SerializeToString(), *(seed[1:] for seed in fuzz_structs.seeds() if seed[0] == 2)]


if __name__ == "__main__":
    harness.main(target, seeds())
