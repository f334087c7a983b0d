"""Every script in examples/ runs as its docstring says, and prints what it is there to show."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SHOWN = {
    "convert_export": r"(?s)past.0.key -> present.0.key: CacheUpdate.*10 positions: .*2,048 bytes of caches, allocated once",
    "fork_ten": r"4 pages shared by 11 sequences; 12,441,600 bytes in all, 45,619,200 if each had its own",
    "kv_perplexity": r"(?s)F16 +5,898,240 +1\.000.*INT8_PAGE +3,317,760 +0\.562.*3 MB at most +2,\d{3},\d{3} ",
    "look_into_gguf": r"(?s)Q4_1 +210 tensors +66,355,200 bytes.*blk.0.attn_q.weight\[3\]: 20 bytes.*qs.lo.*stands for",
    "rgb565_image": r"(?s)^ +\.+.*@@@\nthe last pixel: \{'pixel': \{'b': \[0\], 'g': \[63\], 'r': \[31\]\}\}",
    "saved_chat": r"(?s)\nsaved \d+ tokens.*\n> And of Italy\?\n.+\n\d+ tokens were restored, \d+ are new",
    "stock_onnxruntime": r"(?s)portable.onnx: 27\d MB\n Paris",
    "thread_pool": r"(?s)The capital of France is' Paris.*the same texts from 2 threads as from 1",
    "three_bit": r"^$",  # a format, for docs/structured-types.md: nothing to see
}
NEEDS_MODEL = {"fork_ten", "kv_perplexity", "look_into_gguf", "saved_chat", "stock_onnxruntime", "thread_pool"}


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.py")))
def test_an_example_shows_what_it_is_about(name, tmp_path, request):
    if name in NEEDS_MODEL:
        request.getfixturevalue("smollm2_gguf")
    path = EXAMPLES / f"{name}.py"
    source = path.read_text(encoding="utf-8")
    assert len(source.splitlines()) < 80
    assert name == "three_bit" or f"\n    python examples/{name}.py" in source.split('"""')[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, path], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert re.search(SHOWN[name], ran.stdout), ran.stdout
    assert not ran.stderr and not any(tmp_path.iterdir()), ran.stderr
