"""Quantized models: the same graph over the decoded weights, bytes as the gguf package makes them, nothing else touched."""

import json
from importlib import import_module

import gguf
import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from tenonnx import Session, check, cli, convert, load, text
from tenonnx.errors import CheckError, PayloadError, ShapeError, UnsupportedError
from tenonnx.schema.external import DataRoot
from tenonnx.schema.payload import struct_payload
from tenonnx.structs import Format, catalogue, f16, i8, structure
from tests.gguf_files import write_llama

RNG = np.random.default_rng(5)
ANY = TensorProto.FLOAT


def matrix(*dims):
    return RNG.normal(0, 0.2, dims).astype(np.float32)


def save(path, nodes, weights, inputs, outputs, kind=ANY):
    """A model of stock onnx; inputs and outputs are names with dims."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, elem, dims) for name, elem, dims in inputs],
        [helper.make_tensor_value_info(name, kind, dims) for name, dims in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def products(path):
    """A model with every way of reading a matrix: look-up, tied head, MatMul, and Gemm either way round, with bias and not."""
    weights = {
        "table": matrix(48, 64),
        "up": matrix(64, 96),
        "gate": matrix(32, 96),
        "gate_bias": matrix(32),
        "down": matrix(32, 64),
        "scaled": matrix(64, 64),
    }
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["x"]),
        helper.make_node("MatMul", ["x", "up"], ["a"]),
        helper.make_node("Gemm", ["a", "gate", "gate_bias"], ["b"], transB=1, name="gate"),
        helper.make_node("Gemm", ["b", "down"], ["c"]),
        helper.make_node("Gemm", ["c", "scaled"], ["d"], alpha=0.5),
        helper.make_node("Transpose", ["table"], ["head"], perm=[1, 0]),
        helper.make_node("MatMul", ["d", "head"], ["y"]),
    ]
    save(path, nodes, weights, [("ids", TensorProto.INT64, ["n"])], [("y", ["n", 48])])
    return weights


# Whether the rows of a matrix are already those of one output.
ROWS = {"table": True, "up": False, "gate": True, "down": False, "scaled": False}


def in_rows(name, weight):
    return np.ascontiguousarray(weight if ROWS[name] else weight.T)


def stock_result(path, weights, feeds):
    """onnxruntime's result for the model at ``path`` with other weights."""
    model = onnx.load(path)
    for position, tensor in enumerate(model.graph.initializer):
        if tensor.name in weights:
            model.graph.initializer[position].CopyFrom(numpy_helper.from_array(weights[tensor.name], tensor.name))
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)[0]


def bytes_of(path, name):
    value = next(value for value in load(path).graph.struct_initializer if value.name == name)
    return struct_payload(value, DataRoot(path.parent))


def test_the_graph_computes_what_it_did_from_the_rounded_weights(tmp_path):
    weights = products(tmp_path / "in.onnx")
    report = convert.quantize(tmp_path / "in.onnx", {"*": "BF16"}, tmp_path / "out.onnx")
    feeds = {"ids": np.array([3, 0, 47, 3])}
    rounded = {name: weights[name].astype(ml_dtypes.bfloat16).astype(np.float32) for name in ROWS}
    found = Session(tmp_path / "out.onnx").run(feeds)["y"]
    np.testing.assert_allclose(found, stock_result(tmp_path / "in.onnx", rounded, feeds), rtol=0, atol=1e-5)
    assert [row.name for row in report.weights] == list(ROWS) and not report.skipped
    assert check(load(tmp_path / "out.onnx"), tmp_path) == []


def test_products_and_look_ups_run_on_the_packed_bytes(tmp_path):
    products(tmp_path / "in.onnx")
    convert.quantize(tmp_path / "in.onnx", dict.fromkeys(("table", "up", "gate", "down"), "Q8_0"), tmp_path / "out.onnx")
    assert Session(tmp_path / "out.onnx", formats="strict").run({"ids": np.array([3, 1])})["y"].shape == (2, 48)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q8_0"])
def test_payloads_and_errors_are_those_of_the_gguf_package(tmp_path, name):
    weights = products(tmp_path / "in.onnx")
    report = convert.quantize(tmp_path / "in.onnx", {"*": name}, tmp_path / "out.onnx")
    kind = gguf.GGMLQuantizationType[name]
    assert len(report.weights) == len(ROWS)
    for row in report.weights:
        rows = in_rows(row.name, weights[row.name])
        expected = gguf.quants.quantize(rows, kind)
        assert np.array_equal(bytes_of(tmp_path / "out.onnx", row.name), expected.reshape(-1))
        error = gguf.quants.dequantize(expected, kind).astype(np.float64) - rows
        assert row.shape == rows.shape and row.nbytes == expected.nbytes
        np.testing.assert_allclose(row.max_abs, np.abs(error).max(), rtol=1e-6)
        np.testing.assert_allclose(row.rms, np.sqrt((error**2).mean()), rtol=1e-6)
        np.testing.assert_allclose(row.relative, np.sqrt((error**2).sum() / (rows.astype(np.float64) ** 2).sum()), rtol=1e-6)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 9), st.sampled_from(["F16", "F32", "BF16"]))
def test_matrices_of_any_size(tmp_path_factory, inner, outer, rows, name):
    folder = tmp_path_factory.mktemp("sizes")
    weights = {"w": matrix(inner, outer)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    save(folder / "in.onnx", nodes, weights, [("x", ANY, ["n", inner])], [("y", ["n", outer])])
    convert.quantize(folder / "in.onnx", {"w": name}, folder / "out.onnx")
    x = matrix(rows, inner)
    dtype = {"F16": np.float16, "F32": np.float32, "BF16": ml_dtypes.bfloat16}[name]
    found = Session(folder / "out.onnx").run({"x": x})["y"]
    np.testing.assert_allclose(found, x @ weights["w"].astype(dtype).astype(np.float32), rtol=0, atol=2e-4)


@pytest.mark.parametrize(
    "given",
    [{}, {"alpha": 0.5}, {"beta": 2.0}, {"transA": 1}, {"transB": 1}, {"transB": 1, "beta": 0.0}, {"alpha": 3.0, "transB": 1}],
)
@pytest.mark.parametrize("bias", [None, (), (48,), (1, 48), (5, 1), (5, 48)])
def test_every_kind_of_gemm(tmp_path, given, bias):
    weights = {"w": matrix(48, 32) if given.get("transB") else matrix(32, 48)}
    weights |= {} if bias is None else {"c": matrix(*bias)}
    x = matrix(32, 5) if given.get("transA") else matrix(5, 32)
    nodes = [helper.make_node("Gemm", ["x", *weights], ["y"], **given)]
    save(tmp_path / "in.onnx", nodes, weights, [("x", ANY, list(x.shape))], [("y", [5, 48])])
    convert.quantize(tmp_path / "in.onnx", {"w": "F32"}, tmp_path / "out.onnx")
    found = Session(tmp_path / "out.onnx").run({"x": x})["y"]
    np.testing.assert_allclose(found, stock_result(tmp_path / "in.onnx", {}, {"x": x}), rtol=0, atol=1e-5)


def test_weights_are_encoded_in_chunks_of_whole_blocks(tmp_path, monkeypatch):
    weights = products(tmp_path / "in.onnx")
    whole = convert.quantize(tmp_path / "in.onnx", {"*": "Q8_0"}, tmp_path / "whole.onnx")
    for chunk in (1, 200, 6000):
        monkeypatch.setattr(import_module("tenonnx.convert.quantize"), "_CHUNK", chunk)
        parts = convert.quantize(tmp_path / "in.onnx", {"*": "Q8_0"}, tmp_path / "parts.onnx")
        for name in weights.keys() & ROWS.keys():
            assert np.array_equal(bytes_of(tmp_path / "whole.onnx", name), bytes_of(tmp_path / "parts.onnx", name))
        for one, other in zip(whole.weights, parts.weights, strict=True):
            np.testing.assert_allclose([one.rms, one.max_abs, one.relative], [other.rms, other.max_abs, other.relative])


def test_a_float16_model_stays_one(tmp_path):
    weights = {"w": matrix(64, 48).astype(np.float16), "e": matrix(20, 64).astype(np.float16)}
    nodes = [helper.make_node("Gather", ["e", "ids"], ["x"]), helper.make_node("MatMul", ["x", "w"], ["y"])]
    half = TensorProto.FLOAT16
    save(tmp_path / "in.onnx", nodes, weights, [("ids", TensorProto.INT64, ["n"])], [("y", ["n", 48])], kind=half)
    report = convert.quantize(tmp_path / "in.onnx", {"*": "F16"}, tmp_path / "out.onnx")
    feeds = {"ids": np.array([4, 19])}
    found = Session(tmp_path / "out.onnx").run(feeds)["y"]
    assert found.dtype == np.float16 and {row.max_abs for row in report.weights} == {0.0}
    np.testing.assert_allclose(found, stock_result(tmp_path / "in.onnx", {}, feeds), rtol=0, atol=2e-3)


def test_a_body_reads_the_decoded_weight(tmp_path):
    weights = {"w": matrix(32, 32)}
    out = helper.make_tensor_value_info("r", ANY, ["n", 32])
    then = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["r"])], "then", [], [out])
    other = helper.make_graph([helper.make_node("Identity", ["x"], ["r"])], "else", [], [out])
    nodes = [helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)]
    inputs = [("x", ANY, ["n", 32]), ("c", TensorProto.BOOL, [])]
    save(tmp_path / "in.onnx", nodes, weights, inputs, [("y", ["n", 32])])
    convert.quantize(tmp_path / "in.onnx", {"*": "F32"}, tmp_path / "out.onnx")
    x = matrix(2, 32)
    session = Session(tmp_path / "out.onnx")
    np.testing.assert_allclose(session.run({"x": x, "c": np.array(True)})["y"], x @ weights["w"], atol=1e-5)
    np.testing.assert_array_equal(session.run({"x": x, "c": np.array(False)})["y"], x)


def test_new_names_keep_clear_of_those_in_use(tmp_path):
    weights = {"w": matrix(32, 32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["w.decoded"]),
        helper.make_node("Add", ["w.decoded", "x"], ["w.transposed"]),
    ]
    save(tmp_path / "in.onnx", nodes, weights, [("x", ANY, ["n", 32])], [("w.transposed", ["n", 32])])
    convert.quantize(tmp_path / "in.onnx", {"w": "F32"}, tmp_path / "out.onnx")
    x = matrix(3, 32)
    np.testing.assert_allclose(Session(tmp_path / "out.onnx").run({"x": x})["w.transposed"], x @ weights["w"] + x, atol=1e-5)


# ---- Which weights


def test_the_last_pattern_that_matches_decides(tmp_path):
    products(tmp_path / "in.onnx")
    patterns = {"*": "Q4_0", "[ug]*": "Q8_0", "gate": "F16"}
    report = convert.quantize(tmp_path / "in.onnx", patterns, tmp_path / "out.onnx")
    assert {row.name: row.after for row in report.weights} == {
        "table": "Q4_0",
        "up": "Q8_0",
        "gate": "F16",
        "down": "Q4_0",
        "scaled": "Q4_0",
    }


def test_rows_that_blocks_do_not_divide_are_skipped_by_a_pattern_and_refused_by_name(tmp_path):
    weights = {"odd": matrix(33, 8), "even": matrix(8, 32)}
    nodes = [helper.make_node("MatMul", ["x", "odd"], ["a"]), helper.make_node("MatMul", ["a", "even"], ["b"])]
    nodes += [helper.make_node("Transpose", ["even"], ["t"]), helper.make_node("MatMul", ["b", "t"], ["y"])]
    save(tmp_path / "in.onnx", nodes, weights, [("x", ANY, ["n", 33])], [("y", ["n", 8])])
    report = convert.quantize(tmp_path / "in.onnx", {"*": "Q8_0"}, tmp_path / "out.onnx")
    assert [row.name for row in report.weights] == ["even"]
    [(name, reason)] = report.skipped
    assert name == "odd" and "33" in reason and "32" in reason
    for pattern in ("odd", "od*"):
        with pytest.raises(ShapeError, match=r"odd.*33"):
            convert.quantize(tmp_path / "in.onnx", {pattern: "Q8_0"}, tmp_path / "none.onnx")
    convert.quantize(tmp_path / "in.onnx", {"*": "Q8_0", "odd": "F16"}, tmp_path / "both.onnx")
    assert not (tmp_path / "none.onnx").exists() and not (tmp_path / "none.onnx.data").exists()


@pytest.mark.parametrize(
    "targets, error, found",
    [
        ({"gats": "Q8_0"}, CheckError, "gate"),
        ({"blk.*": "Q8_0"}, CheckError, "no weight"),
        ({}, CheckError, "no pattern"),
        ({"*": "Q9"}, UnsupportedError, "Q9"),
        ({"*": "Q4_K"}, UnsupportedError, "no encoder"),
        ({"*": "nowhere:format"}, CheckError, "nowhere"),
        ({"*": "numpy:float32"}, CheckError, "Format"),
        ({"*": ("Q8_0", b"")}, CheckError, "matches 5"),
        ({"up": ("Q8_0", b"123")}, PayloadError, "123|found 3"),
        ({"up": ("Q8_0", {"d": np.zeros(192)})}, ShapeError, "qs"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_written(tmp_path, targets, error, found):
    products(tmp_path / "in.onnx")
    with pytest.raises(error, match=found):
        convert.quantize(tmp_path / "in.onnx", targets, tmp_path / "out.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]


def test_values_that_are_not_finite_are_refused_and_leave_nothing(tmp_path):
    weights = {"w": matrix(32, 32)}
    weights["w"][5, 7] = np.inf
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    save(tmp_path / "in.onnx", nodes, weights, [("x", ANY, ["n", 32])], [("y", ["n", 32])])
    with pytest.raises(PayloadError, match="not finite"):
        convert.quantize(tmp_path / "in.onnx", {"*": "Q8_0"}, tmp_path / "out.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]


def test_a_weight_that_the_graph_returns_keeps_its_name(tmp_path):
    weights = {"w": matrix(32, 32)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    save(tmp_path / "in.onnx", nodes, weights, [("x", ANY, ["n", 32])], [("y", ["n", 32]), ("w", [32, 32])])
    with pytest.raises(CheckError, match="no weight"):
        convert.quantize(tmp_path / "in.onnx", {"w": "Q8_0"}, tmp_path / "out.onnx")


# ---- Values packed by the caller, and formats of his own


def test_packed_leaves_and_bytes_are_taken_as_they_are(tmp_path):
    weights = products(tmp_path / "in.onnx")
    rows = in_rows("up", weights["up"])
    own = catalogue["Q8_0"].encode(rows * 0.5)  # as a calibration might choose
    blocks = catalogue["Q8_0"].view(own)
    for values in (own, own.tobytes(), {"d": blocks.d, "qs": blocks.qs}):
        report = convert.quantize(tmp_path / "in.onnx", {"up": ("Q8_0", values)}, tmp_path / "out.onnx")
        assert np.array_equal(bytes_of(tmp_path / "out.onnx", "up"), own)
        np.testing.assert_allclose(report.weights[0].relative, 0.5, atol=0.01)


def encode_tiles(x):
    scale = (np.abs(x).max(axis=(1, 2)) / 127).astype(np.float16)
    codes = np.rint(x / scale[:, None, None]).clip(-127, 127).astype(np.int8)
    return {"scale": scale, "codes": codes.reshape(-1, 8, 4)}


def test_a_format_of_the_user_s_own_runs_by_its_decoder(tmp_path):
    tiles = Format(
        "TILES",
        structure("TILES", scale=f16, codes=i8[4][8]),
        (4, 8),
        lambda x: x.scale.astype(np.float32)[:, None, None] * x.codes.reshape(-1, 4, 8).astype(np.float32),
        encode_tiles,
    )
    weights = products(tmp_path / "in.onnx")
    report = convert.quantize(tmp_path / "in.onnx", {"*": tiles}, tmp_path / "out.onnx")
    assert all(row.after == "TILES" and 0 < row.relative < 0.02 for row in report.weights)
    feeds = {"ids": np.array([1, 40])}
    found = Session(tmp_path / "out.onnx").run(feeds)["y"]
    expected = stock_result(tmp_path / "in.onnx", weights, feeds)
    assert np.abs(found - expected).max() < 0.03 * np.abs(expected).max()
    with pytest.raises(UnsupportedError, match="no compute layout"):
        Session(tmp_path / "out.onnx", formats="strict").run(feeds)


# ---- Files


def test_weights_of_a_gguf_stay_there_unless_they_change(tmp_path):
    source = write_llama(tmp_path / "in.gguf", format="F16", formats={"token_embd.weight": "Q8_0"}, vocabulary="bpe")
    report = convert.quantize(source, {"blk.*": "Q8_0"}, tmp_path / "out.onnx")
    model = load(tmp_path / "out.onnx")
    files = {value.name: value.external_data[0].value for value in model.graph.struct_initializer}
    assert files.pop("token_embd.weight") == "in.gguf" and set(files.values()) == {"out.onnx.data"}
    assert {(row.before, row.after) for row in report.weights} == {("F16", "Q8_0")}
    again = convert.quantize(tmp_path / "out.onnx", {"*": "Q4_0"}, tmp_path / "four.onnx")
    assert {row.before for row in again.weights} == {"Q8_0"} and len(again.weights) == len(report.weights) + 1
    for name in ("out.onnx", "four.onnx"):
        assert len(text.generate(str(tmp_path / name), "hello", max_tokens=3, temperature=0).token_ids) == 3
        assert check(load(tmp_path / name), tmp_path) == []


def test_weights_elsewhere_are_copied_only_when_asked(tmp_path):
    products(tmp_path / "in.onnx")
    model = onnx.load(tmp_path / "in.onnx")
    onnx.save(model, tmp_path / "in.onnx", save_as_external_data=True, location="in.data", size_threshold=0)
    out = tmp_path / "other" / "out.onnx"
    out.parent.mkdir()
    with pytest.raises(PayloadError, match=r"in\.data"):
        convert.quantize(tmp_path / "in.onnx", {"up": "Q8_0"}, out)
    convert.quantize(tmp_path / "in.onnx", {"up": "Q8_0"}, out, copy=True)
    feeds = {"ids": np.array([2])}
    beside = tmp_path / "beside.onnx"
    convert.quantize(tmp_path / "in.onnx", {"up": "Q8_0"}, beside)
    assert np.array_equal(Session(out).run(feeds)["y"], Session(beside).run(feeds)["y"])
    assert beside.with_name("beside.onnx.data").stat().st_size < out.with_name("out.onnx.data").stat().st_size


@pytest.mark.parametrize("out", ["in.onnx", "in"])
def test_a_model_is_not_written_over_its_own_files(tmp_path, out):
    products(tmp_path / "in.onnx")
    onnx.save(
        onnx.load(tmp_path / "in.onnx"), tmp_path / "in.onnx", save_as_external_data=True, location="in.data", size_threshold=0
    )
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for copy in (False, True):
        with pytest.raises(PayloadError, match="would replace"):
            convert.quantize(tmp_path / "in.onnx", {"up": "Q8_0"}, tmp_path / out, copy=copy)
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_a_model_in_memory_is_left_as_it_is(tmp_path):
    products(tmp_path / "in.onnx")
    model = load(tmp_path / "in.onnx")
    before = model.SerializeToString(deterministic=True)
    convert.quantize(model, {"*": "Q8_0"}, tmp_path / "out.onnx")
    assert model.SerializeToString(deterministic=True) == before


# ---- The command


def test_the_command_prints_a_row_per_weight(tmp_path, monkeypatch):
    products(tmp_path / "in.onnx")
    arguments = ["quantize", str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx"), "--weights", "*=q8_0", "--weights", "up=Q4_K"]
    refused = CliRunner().invoke(cli.app, arguments)
    assert refused.exit_code == 1 and refused.stderr.startswith("error: Q4_K has no encoder") and refused.stderr.count("\n") == 1
    result = CliRunner().invoke(cli.app, arguments[:-2], env={"COLUMNS": "400"})
    lines = result.stdout.splitlines()
    assert result.exit_code == 0 and [line.split()[0] for line in lines[:-1]] == ["weight", *ROWS]
    assert all(len(line) <= 80 for line in lines[:-1]) and "Q8_0" in lines[1] and "%" in lines[1]
    shown = json.loads(CliRunner().invoke(cli.app, [*arguments[:-2], "--json"]).stdout)
    assert [row["name"] for row in shown["weights"]] == list(ROWS) and shown["skipped"] == []
    usage = CliRunner().invoke(cli.app, [*arguments[:3], "--weights", "Q8_0"])
    assert usage.exit_code == 2 and "PATTERN=FORMAT" in usage.stderr


def test_a_format_is_found_in_the_working_directory(tmp_path, monkeypatch):
    products(tmp_path / "in.onnx")
    code = (
        "from tenonnx.structs import Format, f16\nhalf = Format('HALF', f16, (), lambda x: x.astype('float32'), lambda x: [x])\n"
    )
    (tmp_path / "my_formats.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    for name in ("my_formats:half", "my_formats.py:half"):
        result = CliRunner().invoke(cli.app, ["quantize", "in.onnx", "out.onnx", "--weights", f"*={name}"])
        assert result.exit_code == 0 and "HALF" in result.stdout, result.output
    (tmp_path / "broken.py").write_text("1 / 0")
    result = CliRunner().invoke(cli.app, ["quantize", "in.onnx", "out.onnx", "--weights", "*=broken:half"])
    assert result.exit_code == 1 and "ZeroDivisionError" in result.stderr
