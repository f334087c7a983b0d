"""A model of ours as stock onnx checks it and stock onnxruntime runs it, with the same results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from tenonnx import Session, convert, writable
from tenonnx.convert.portable import portable
from tenonnx.errors import OptionError, UnsupportedError
from tenonnx.schema import files
from tenonnx.schema.messages import from_onnx
from tests.gguf_files import write_llama
from tests.stock import empty_caches, stock

IDS = np.array([[3, 7, 1, 0, 9], [5, 5, 2, 8, 4]])


def feeds(model: Any, batch: int = 2) -> dict[str, np.ndarray]:
    given = {
        "input_ids": IDS[:batch],
        "position_ids": np.broadcast_to(np.arange(5), (batch, 5)),
        "position": np.array(0, np.int64),
        "logit_rows": np.array([1, 4]),
    }
    return {**given, **empty_caches(model, batch, 8)}


def run(model: onnx.ModelProto | bytes | str, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    content = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    session = onnxruntime.InferenceSession(content, options)
    return dict(zip([value.name for value in session.get_outputs()], session.run(None, given), strict=True))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "m.gguf", format="Q4_0", tied=True, vocabulary="bpe")


@pytest.mark.parametrize("weights", ["float32", "float16", "nbits"])
def test_stock_onnx_checks_it_and_stock_onnxruntime_runs_it(source: Path, tmp_path: Path, weights: str) -> None:
    model, _ = convert.from_gguf(source)
    report = convert.convert(source, tmp_path / "m.onnx", portable=weights)
    assert report.copied_bytes == 0
    made = onnx.load(report.path)
    onnx.checker.check_model(made, full_check=weights != "nbits")
    assert {entry.domain for entry in made.opset_import} == {"", "com.microsoft"} if weights == "nbits" else {""}
    assert not made.functions
    expected = run(stock(model, [source]), feeds(model))
    found = run(str(report.path), feeds(model))
    tolerance = {"float32": 1e-6, "float16": 5e-3, "nbits": 1e-4}[weights]
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=tolerance * np.abs(value).max(), err_msg=name)


def test_products_are_matmulnbits_where_that_is_exact(source: Path, tmp_path: Path) -> None:
    ops = [node.op_type for node in onnx.load(convert.convert(source, tmp_path / "n.onnx", portable="nbits").path).graph.node]
    assert ops.count("MatMulNBits") > 10
    assert "MatMul" not in ops
    other = write_llama(tmp_path / "o.gguf", format="Q4_1", tied=True)
    ops = [node.op_type for node in onnx.load(convert.convert(other, tmp_path / "o.onnx", portable="nbits").path).graph.node]
    assert "MatMul" in ops  # Q4_1 has a minimum, which no zero point is


@pytest.mark.parametrize("format", ["Q4_0", "Q8_0"])
def test_nbits_decode_to_the_same_weights(format: str) -> None:
    from tenonnx.convert.nbits import BITS, packed
    from tenonnx.structs import catalogue

    rows, columns = 3, 64
    values = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)
    payload = catalogue[format].encode(values)
    codes, scales = packed(format, payload, rows, columns)
    x = parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        g (float[{columns}, {columns}] x, uint8[{", ".join(map(str, codes.shape))}] codes, float[{scales.size}] scales)
            => (float[{columns}, {rows}] y)
        {{
            y = com.microsoft.MatMulNBits<K = {columns}, N = {rows}, bits = {BITS[format]}, block_size = 32>(x, codes, scales)
        }}"""
    )
    y = run(x, {"x": np.eye(columns, dtype=np.float32), "codes": codes, "scales": scales})["y"]
    np.testing.assert_allclose(y.T, catalogue[format].decode(payload, (rows, columns)), rtol=1e-6, atol=0)


def test_aliases_stay_and_are_obeyed_here(source: Path, tmp_path: Path) -> None:
    report = convert.convert(source, tmp_path / "m.onnx", portable="float32")
    model = files.load(report.path)
    given = feeds(convert.from_gguf(source)[0])
    expected = run(str(report.path), given)
    caches = {name: writable(array.copy()) for name, array in given.items() if "cache" in name}
    found = Session(report.path, threads=2).run({**given, **caches})
    np.testing.assert_allclose(found["logits"], expected["logits"], rtol=0, atol=1e-4 * np.abs(expected["logits"]).max())
    for name, cache in caches.items():
        assert found[f"{name}.updated"] is cache.array
    assert sum(value.alias_of != "" for value in model.graph.output) == len(caches)


UPDATE = """<ir_version: 10, opset_import: ["": 24, "tenonnx": 1]>
g (float[%s] cache, float[%s] rows, int64%s position) => (float[%s] updated)
{ updated = tenonnx.CacheUpdate<axis = %d, batch_axis = %d>(cache, rows, position) }"""


@pytest.mark.parametrize(
    ("dims", "axis", "batch_axis", "position"),
    [
        ((2, 3, 5, 4), -2, 0, 1),
        ((2, 3, 5, 4), 2, 0, [1, 3]),
        ((5, 3), 0, 1, 2),
        ((3, 2, 5), -1, 1, [0, 3]),
        ((5, 2, 3), 0, 1, [3, 1]),
        ((5, 2), 0, 1, [0, 2]),
    ],
)
def test_updates_along_any_axis(dims: tuple[int, ...], axis: int, batch_axis: int, position: int | list[int]) -> None:
    rows_dims = list(dims)
    rows_dims[axis] = 2
    spell = lambda sizes: ", ".join(map(str, sizes))  # noqa: E731
    scalar = isinstance(position, int)
    kind = "" if scalar else f"[{dims[batch_axis]}]"
    text = UPDATE % (spell(dims), spell(rows_dims), kind, spell(dims), axis, batch_axis)
    model = portable(from_onnx(parser.parse_model(text)), Path())
    random = np.random.default_rng(4)
    cache, rows = random.standard_normal(dims).astype(np.float32), random.standard_normal(rows_dims).astype(np.float32)
    stock_model = onnx.ModelProto.FromString(model.SerializeToString())
    onnx.checker.check_model(stock_model, full_check=True)
    found = run(stock_model, {"cache": cache, "rows": rows, "position": np.array(position)})["updated"]
    expected = cache.copy()
    for row in range(dims[batch_axis]):
        start = position if scalar else position[row]
        place: list[Any] = [slice(None)] * len(dims)
        place[batch_axis] = row
        source = tuple(place)
        place[axis] = slice(start, start + 2)
        expected[tuple(place)] = rows[source]
    np.testing.assert_array_equal(found, expected)


def test_what_has_no_portable_form_is_named(source: Path, tmp_path: Path) -> None:
    text = UPDATE % ("2, 3, 5, 4", "2, 3, 1, 4", "", "2, 3, 5, 4", 2, 0)
    with pytest.raises(UnsupportedError, match="PagedCacheUpdate has no portable form"):
        portable(from_onnx(parser.parse_model(text.replace("CacheUpdate", "PagedCacheUpdate"))), Path())
    with pytest.raises(OptionError, match="float32, float16, nbits"):
        convert.convert(source, tmp_path / "m.onnx", portable="int3")
