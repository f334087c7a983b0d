"""The generation loop over graphs whose inputs have other names than ours."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from tenonnx import text
from tenonnx.errors import PayloadError, UnsupportedError
from tenonnx.text.loading import Names
from tests.pure.text_fakes import FakeSession, byte_level, model, scripted


class RenamedSession:
    """A FakeSession behind a graph that takes ``ids`` and ``mask``, and gives logits for every row."""

    def __init__(self, inner: FakeSession) -> None:
        self.inner, self.masks = inner, []

    def new_cache(self, context: int, policy: Any = None) -> Any:
        return self.inner.new_cache(context)

    def run(self, feeds: dict, out: dict | None = None, cache: Any = None) -> dict:
        assert set(feeds) == {"ids", "mask"}
        self.masks.append(feeds["mask"])
        count = feeds["ids"].shape[1]
        # The number of rows differs between prompt and step: an array of another number would be refused.
        assert out is None or out["scores"].shape[1] == count
        positions = np.arange(cache.length, cache.length + count)[None]
        last = self.inner.run(
            {"input_ids": feeds["ids"], "position_ids": positions, "logit_rows": np.array([count - 1])}, cache=cache
        )["logits"]
        rows = np.zeros((1, count, last.shape[2]), np.float32)
        rows[0, -1] = last[0, 0]
        return {"scores": rows}


def test_roles_are_fed_under_the_graphs_names() -> None:
    tokens = [65, 66, 67]
    plain = model(scripted(tokens, 5))  # four bytes and the BOS
    session = RenamedSession(plain.session)
    names = Names(input_ids="ids", position_ids="", logit_rows="", attention_mask="mask", logits="scores")
    renamed = dataclasses.replace(plain, session=session, names=names)
    made = text.generate(renamed, "abcd", max_tokens=8, temperature=0, context=20)
    assert made.token_ids[:3] == tokens
    # One mask of the caches' capacity for every run: a shape that changed would be planned anew each time.
    assert {mask.shape for mask in session.masks} == {(1, 20)}
    assert all((mask == 1).all() for mask in session.masks)


def test_without_metadata_the_names_are_ours() -> None:
    assert Names.from_metadata({}).inputs == ["input_ids", "position_ids", "logit_rows"]


@pytest.mark.parametrize("spelled", ["", "{", "[]", '{"input_ids": 3}', "[" * 100_000])
def test_hostile_names(spelled: str) -> None:
    with pytest.raises(PayloadError, match=r"tenonnx\.inputs"):
        Names.from_metadata({"tenonnx.inputs": spelled})


def test_an_input_that_the_graph_lacks_is_named(tmp_path) -> None:
    from tenonnx.schema import files
    from tenonnx.schema.messages import ModelProto

    made = ModelProto(ir_version=10)
    made.graph.name = "g"
    made.graph.input.add(name="ids")
    made.metadata_props.add(key="tenonnx.inputs", value='{"input_ids": "tokens"}')
    made.metadata_props.add(key="tenonnx.tokenizer", value=byte_level())
    files.save(made, tmp_path / "m.onnx")
    with pytest.raises(UnsupportedError, match="no input tokens"):
        text.load_model(tmp_path / "m.onnx")
