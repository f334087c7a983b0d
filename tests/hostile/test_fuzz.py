"""Each fuzz target answers its seeds and a hundred mutations of them; `.ci/slow` runs them longer, steered by coverage."""

from __future__ import annotations

import pytest

from tests.fuzz import fuzz_gguf, fuzz_models, fuzz_structs, harness


@pytest.mark.parametrize("fuzzer", [fuzz_structs, fuzz_gguf, fuzz_models], ids=lambda fuzzer: fuzzer.__name__.split(".")[-1])
def test_mutations_of_seeds_are_answered(fuzzer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert harness.mutate(harness.answered(fuzzer.target), fuzzer.seeds(), seconds=60, count=150) > 0
