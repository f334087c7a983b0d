"""``tenonnx convert --paged``: pages of that many tokens per layer, and logits as the architecture's formula has them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from tenonnx import Session, check, cli
from tenonnx.cache import Uniform
from tenonnx.schema.files import load
from tenonnx.schema.messages import ValueInfoProto
from tests.gguf_files import write_llama
from tests.models import spec_example
from tests.oracle.llama import Llama

IDS = np.array([3, 7, 1, 0, 9, 22, 5, 60, 61, 40, 12, 8])


def convert(*arguments, code=0):
    result = CliRunner().invoke(cli.app, ["convert", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


@pytest.fixture
def llama(tmp_path):
    return write_llama(tmp_path / "m.gguf", head=32, value_head=16)


@pytest.mark.parametrize("tokens", [1, 5, 16, 256])
def test_each_layer_has_a_table_for_k_and_one_for_v_of_pages_of_so_many_tokens(llama, tokens):
    convert(llama, llama.with_name("m.onnx"), "--paged", tokens)
    model = load(llama.with_name("m.onnx"))
    assert check(model) == []
    for kind, size in (("key", 32), ("value", 16)):
        for layer in range(2):
            name = f"{kind}_pages.{layer}"
            table = next(value for value in model.graph.input if value.name == name)
            held = table.type.sequence_type.elem_type.quantized_tensor_type
            assert [dim.dim_value for dim in held.shape.dim] == [2, tokens, size]
            assert table.access == ValueInfoProto.READ_WRITE
            output = next(value for value in model.graph.output if value.name == f"{name}.updated")
            assert output.alias_of == name and output.type == table.type
    assert not any("cache" in value.name for value in model.graph.input)


@pytest.mark.parametrize("tokens", [1, 5, 256])
def test_logits_over_pages_are_those_of_the_formula_for_a_prompt_and_for_single_steps(llama, tokens):
    convert(llama, llama.with_name("m.onnx"), "--paged", tokens)
    session = Session(llama.with_name("m.onnx"), threads=1)
    cache = session.new_cache(len(IDS), Uniform("F16"))
    expected = Llama(llama, np.float64, cache=np.float16).logits(IDS)
    found = []
    for begin, end in ((0, 7), (7, 8), (8, 9), (9, 12)):
        given = {"input_ids": IDS[None, begin:end], "position_ids": np.arange(begin, end)[None]}
        found.append(session.run(given | {"logit_rows": np.arange(end - begin)}, cache=cache)["logits"][0])
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=0, atol=3e-4 * np.abs(expected).max())
    assert len(cache.pages) == -(-len(IDS) // tokens)


def test_weights_stay_where_they_lie_or_are_copied_as_with_dense_caches(llama, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    told = json.loads(convert(llama, other / "m.onnx", "--paged", 16, "--copy", "--json"))
    beside = json.loads(convert(llama, llama.with_name("m.onnx"), "--paged", 16, "--json"))
    assert (told["weight_files"], beside["weight_files"]) == (["m.onnx.data"], ["m.gguf"])
    assert told["weight_bytes"] == beside["weight_bytes"] > 0


@pytest.mark.parametrize("tokens", [-1, 257, 2**31])
def test_a_page_size_that_kernels_do_not_take_is_a_usage_error_and_nothing_is_written(llama, tokens):
    assert "expected 1 to 256" in convert(llama, llama.with_name("m.onnx"), "--paged", tokens, code=2)
    assert not llama.with_name("m.onnx").exists()


def test_paged_caches_of_another_source_or_for_stock_onnxruntime_are_refused(llama, tmp_path):
    from tenonnx import save

    save(spec_example(), tmp_path / "example.onnx")
    for arguments in ((tmp_path / "example.onnx",), (llama, "--portable", "float32")):
        told = convert(arguments[0], tmp_path / "out.onnx", "--paged", 16, *arguments[1:], code=1)
        assert "leave out --paged" in told
        assert not (tmp_path / "out.onnx").exists()
