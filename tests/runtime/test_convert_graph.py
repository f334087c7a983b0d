"""The converted graph against a forward pass from the architecture's formula, run by engines that nobody here wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from tenonnx import convert
from tenonnx.convert import architectures
from tenonnx.convert.tensor_types import TENSOR_TYPES
from tenonnx.schema.messages import ValueAliasProto, ValueInfoProto
from tenonnx.structs import catalogue, recognize
from tests.gguf_files import split_parts, write_llama
from tests.oracle.llama import Llama
from tests.stock import empty_caches, stock

IDS = np.array([3, 7, 1, 0, 9, 22, 5, 60, 61, 40, 12, 8])
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32}


class Runner:
    """Feeds tokens to a stock model through caches that it carries from call to call."""

    def __init__(self, model: Any, paths: list[Path], engine: str, batch: int = 1, max_length: int = 16) -> None:
        self.model = stock(model, paths)
        self.caches = empty_caches(model, batch, max_length)
        self.outputs = [output.name for output in self.model.graph.output]
        if engine == "reference":
            evaluator = ReferenceEvaluator(self.model)
            self.run = lambda feed: evaluator.run(None, feed)
        else:
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 3
            session = onnxruntime.InferenceSession(self.model.SerializeToString(), options)
            self.run = lambda feed: session.run(None, feed)

    def __call__(self, ids: np.ndarray, position: int, rows: np.ndarray | None = None) -> np.ndarray:
        """FLOAT[batch, rows, vocab] for ``ids`` INT64[batch, n] at ``position``."""
        batch, n = ids.shape
        feed = {
            "input_ids": ids,
            "position_ids": np.broadcast_to(np.arange(position, position + n), (batch, n)),
            "position": np.array(position, np.int64),
            "logit_rows": np.arange(n) if rows is None else rows,
        }
        values = dict(zip(self.outputs, self.run(feed | self.caches), strict=True))
        self.caches = {name: values[f"{name}.updated"] for name in self.caches}
        return values["logits"]


def assert_logits(found: np.ndarray, expected: np.ndarray) -> None:
    # K and V are rounded to FLOAT16; a last-bit difference before that may flip the rounding.
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-4 * np.abs(expected).max())


GGUF_FORMATS = sorted(size.name for size in TENSOR_TYPES.values() if size.name in catalogue)


def test_the_types_of_gguf_have_the_sizes_of_the_catalogue() -> None:
    for size in TENSOR_TYPES.values():
        if size.name in catalogue:
            assert (catalogue[size.name].elements, catalogue[size.name].nbytes) == (size.elements, size.nbytes)
    assert {kind.name: kind.value for kind in gguf.GGMLQuantizationType if kind.name in catalogue} == {
        size.name: number for number, size in TENSOR_TYPES.items() if size.name in catalogue
    }


@pytest.mark.parametrize("format", GGUF_FORMATS)
def test_every_format_of_the_catalogue_that_gguf_has_is_converted(tmp_path: Path, format: str) -> None:
    sizes = {"hidden": 256, "ffn": 256, "heads": 4, "kv_heads": 2, "layers": 1}
    path = write_llama(tmp_path / "m.gguf", format=format, **sizes)
    model, _ = convert.from_gguf(path)
    value = next(value for value in model.graph.struct_initializer if value.name == "blk.0.ffn_up.weight")
    found = recognize(model, value.type)
    assert found is not None and (found.format.name, found.shape) == (format, (256, 256))
    if format != "Q1_0":  # which the package only names
        expected = Llama(path, np.float64, cache=np.float16).logits(IDS)
        assert_logits(Runner(model, [path], "onnxruntime")(IDS[None], 0)[0], expected)


@pytest.mark.parametrize("engine", ["reference", "onnxruntime"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"format": "Q4_1"},
        {"format": "Q4_0", "formats": {"token_embd.weight": "Q8_0"}},
        {"format": "Q8_0", "tied": False},
        {"format": "BF16", "formats": {"output.weight": "F16"}, "tied": False},
        {"format": "F16", "biases": ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]},
        {"kv_heads": 4},
        {"kv_heads": 1, "layers": 1},
        {"head": 32, "value_head": 8},
        {"rope_factors": np.linspace(1, 8, 8)},
        {"metadata": {"rope.freq_base": 500.0}},
        {"metadata": {"rope.dimension_count": 8}},
        {"metadata": {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}},
        {"metadata": {"rope.scale_linear": 2.0}},
        {"metadata": {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}},
        {"metadata": YARN},
        {"metadata": YARN | {"rope.freq_base": 500_000.0, "rope.scaling.factor": 32.0}},
        {"metadata": {"attention.scale": 0.3}},
        {"metadata": {"attention.layer_norm_rms_epsilon": 0.1}},
    ],
    ids=str,
)
def test_logits_equal_the_formula(tmp_path: Path, options: dict[str, Any], engine: str) -> None:
    path = write_llama(tmp_path / "m.gguf", **options)
    model, _ = convert.from_gguf(path)
    expected = Llama(path, np.float64, cache=np.float16).logits(IDS)
    run = Runner(model, [path], engine)
    found = [run(IDS[None, start:end], start) for start, end in ((0, 5), (5, 6), (6, 7), (7, 12))]
    assert_logits(np.concatenate(found, 1)[0], expected)


def test_the_other_rope_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    halves = architectures.Architecture("llama", interleaved_rope=False)
    monkeypatch.setitem(architectures.ARCHITECTURES, "llama", halves)
    path = write_llama(tmp_path / "m.gguf", metadata={"rope.dimension_count": 12})
    model, _ = convert.from_gguf(path)
    expected = Llama(path, np.float64, cache=np.float16, interleaved=False).logits(IDS)
    assert_logits(Runner(model, [path], "onnxruntime")(IDS[None], 0)[0], expected)


def test_a_batch_and_chosen_rows(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m.gguf", format="Q4_1")
    model, _ = convert.from_gguf(path)
    batch = np.stack([IDS, IDS[::-1]])
    rows = np.array([11, 0, 4])
    found = Runner(model, [path], "onnxruntime", batch=2)(batch, 0, rows)
    oracle = Llama(path, np.float64, cache=np.float16)
    for number, ids in enumerate(batch):
        assert_logits(found[number], oracle.logits(ids)[rows])


def test_split_weights_are_found_in_their_parts(tmp_path: Path) -> None:
    write_llama(tmp_path / "m.gguf", split=3)
    parts = split_parts(tmp_path / "m.gguf", 7)
    model, folder = convert.from_gguf(parts[0])
    assert folder == tmp_path.resolve()
    whole = write_llama(tmp_path / "whole.gguf")
    assert_logits(Runner(model, parts, "onnxruntime")(IDS[None], 0)[0], Llama(whole, np.float64, cache=np.float16).logits(IDS))
    assert ranges(model) == stored(parts)


def ranges(model: Any) -> dict[str, tuple[str, int, int]]:
    """Location, offset and length of every external value."""
    external = [*model.graph.struct_initializer, *(value for value in model.graph.initializer if value.external_data)]
    entries = {value.name: {entry.key: entry.value for entry in value.external_data} for value in external}
    return {name: (entry["location"], int(entry["offset"]), int(entry["length"])) for name, entry in entries.items()}


def stored(paths: list[Path]) -> dict[str, tuple[str, int, int]]:
    return {t.name: (path.name, t.data_offset, t.n_bytes) for path in paths for t in gguf.GGUFReader(path).tensors}


def test_weights_lie_where_the_gguf_package_finds_them(smollm2_gguf: Path) -> None:
    model, folder = convert.from_gguf(smollm2_gguf)
    assert folder == smollm2_gguf.resolve().parent
    assert ranges(model) == stored([smollm2_gguf.resolve()])
    types = {value.name: model.struct_types[value.type].name for value in model.graph.struct_initializer}
    assert types["token_embd.weight"] == "Q8_0[49152, 576]"
    assert types["blk.29.ffn_down.weight"] == "Q4_1[576, 1536]"
    properties = {entry.key: entry.value for entry in model.metadata_props}
    assert model.ByteSize() - len(properties["tenonnx.tokenizer"].encode()) < 2_000_000
    assert (properties["tenonnx.architecture"], properties["tenonnx.context_length"]) == ("llama", "8192")
    assert properties["tenonnx.chat_template"].startswith("{% for message in messages %}")


def test_stock_onnx_accepts_the_graph(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m.gguf", format="Q4_1", rope_factors=np.ones(8), biases=["attn_q"], metadata=YARN)
    plain = stock(convert.from_gguf(path)[0], [path])
    onnx.checker.check_model(plain, full_check=True)
    inferred = onnx.shape_inference.infer_shapes(plain, strict_mode=True, data_prop=True)
    elements = {value.name: value.type.tensor_type.elem_type for value in inferred.graph.value_info}
    assert elements["layers.1.residual"] == onnx.TensorProto.FLOAT


def test_the_storage_contract(tmp_path: Path) -> None:
    model, _ = convert.from_gguf(write_llama(tmp_path / "m.gguf", head=32, value_head=8))
    caches = {f"{kind}_cache.{layer}" for kind in ("key", "value") for layer in range(2)}
    inputs = {value.name: value for value in model.graph.input}
    outputs = {value.name: value for value in model.graph.output}
    writable = {name for name, value in inputs.items() if value.access == ValueInfoProto.READ_WRITE}
    assert writable == caches
    assert {name: value.alias_of for name, value in outputs.items() if value.alias_of} == {f"{c}.updated": c for c in caches}
    for name in caches:
        assert inputs[name].type == outputs[f"{name}.updated"].type
    dims = [dim.dim_param or dim.dim_value for dim in inputs["value_cache.1"].type.tensor_type.shape.dim]
    assert dims == ["batch", 2, "max_length", 8]
    updates = [node for node in model.graph.node if node.op_type == "CacheUpdate"]
    assert {node.input[0] for node in updates} == caches
    for node in updates:
        (alias,) = node.output_alias
        assert (alias.output_index, alias.input_index, alias.kind) == (0, 0, ValueAliasProto.MUST_ALIAS)
        assert list(node.output) == [f"{node.input[0]}.updated"]


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_embedding_is_decoded_once(tmp_path: Path, tied: bool) -> None:
    model, _ = convert.from_gguf(write_llama(tmp_path / "m.gguf", tied=tied))
    decoded = [node.output[0] for node in model.graph.node if node.op_type == "StructDecode"]
    assert len(decoded) == len(set(decoded)) == 2 * 7 + 1 + (not tied)
    readers = [node.op_type for node in model.graph.node if "token_embd.weight.decoded" in node.input]
    assert sorted(readers) == (["Gather", "Transpose"] if tied else ["Gather"])
