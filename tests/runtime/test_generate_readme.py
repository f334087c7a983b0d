"""The README's example is no longer than it says, and runs."""

import re
from pathlib import Path

import pytest

from tenonnx import text
from tenonnx.errors import TenonnxError

README = Path(__file__).parents[2] / "README.md"


def test_the_readme_example_writes_through_its_own_caches():
    try:
        text.known("smollm2-135m").path  # noqa: B018 -- pulls it
    except TenonnxError as error:
        pytest.skip(str(error))
    code = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)[1]
    assert sum(1 for line in code.splitlines() if line) <= 15
    names = {}
    exec(compile(code, str(README), "exec"), names)
    assert names["tokenizer"].decode(names["new"][0]) and names["position"] == 5 + 7
    assert all(
        cache[:, :, : names["position"]].any() and not cache[:, :, names["position"] :].any()
        for cache in names["caches"].values()
    )
