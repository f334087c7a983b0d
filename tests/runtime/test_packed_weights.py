"""Weights of every format that kernels hold packed: the same values as its decoder gives, alone and in a whole llama."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from tenonnx import Session, convert, layouts
from tenonnx.errors import CheckError, UnsupportedError
from tenonnx.layouts import Generic, layout_for
from tenonnx.structs import Format, bits, catalogue, constant, declare, f16, f32, structure, u8
from tests.gguf_files import random_blocks, write_llama
from tests.models import DOMAIN, FLOAT, INT64, Graph
from tests.oracle.llama import Llama

IDS = np.array([3, 7, 1, 0, 9, 22, 5, 60, 61, 40, 12, 8])
ROWS, COLUMNS = 19, 512
PACKED = [name for name in catalogue if layout_for(name, (ROWS, COLUMNS))]
IN_GGUF = [name for name in PACKED if name in gguf.GGMLQuantizationType.__members__ and name != "Q1_0"]  # it only names Q1_0


def model_of(fmt: Format, payload: np.ndarray) -> Any:
    """``y = x · Wᵀ`` and ``rows = W[ids]`` with W [ROWS, COLUMNS] in a format."""
    g = Graph()
    index = declare(g.model, fmt, (ROWS, COLUMNS))
    g.body.struct_initializer.add(name="W", type=index, raw_data=payload.tobytes())
    g.input("x", FLOAT, ["n", COLUMNS])
    g.input("ids", INT64, ["m"])
    g.node("StructDecode", ["W"], "decoded", domain=DOMAIN)
    g.node("Transpose", ["decoded"], "turned", perm=[1, 0])
    g.output(g.node("MatMul", ["x", "turned"], "y"), FLOAT, ["n", ROWS])
    g.output(g.node("Gather", ["decoded", "ids"], "rows"), FLOAT, ["m", COLUMNS])
    return g.model


def check(fmt: Format, payload: np.ndarray) -> None:
    weights = fmt.decode(payload.reshape(-1), (ROWS, COLUMNS))
    session = Session(model_of(fmt, payload), formats="strict")
    rng = np.random.default_rng(1)
    for n in (1, 11):
        x = rng.standard_normal((n, COLUMNS)).astype(np.float32)
        ids = np.array([0, ROWS - 1, -1, 5])
        found = session.run({"x": x, "ids": ids})
        np.testing.assert_array_equal(found["rows"], weights[ids])
        # INT8 activations are off by at most half a step; FLOAT ones only by rounding.
        layout = layout_for(fmt.name, (ROWS, COLUMNS))
        assert layout is not None
        step = np.abs(x).max() / 127 * 0.51 if layout.quantized_activations else 0
        bound = step * np.abs(weights).sum(1) + 1e-5 * (np.abs(x) @ np.abs(weights).T).max()
        assert (np.abs(found["y"] - x.astype(np.float64) @ weights.T) <= bound).all()


@pytest.mark.parametrize("name", PACKED)
def test_products_and_rows_of_packed_weights_are_those_of_the_decoder(name: str) -> None:
    like = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    fmt = catalogue[name]
    check(fmt, fmt.encode(like) if fmt.quantize else random_blocks(name, like))


@pytest.mark.parametrize("format", IN_GGUF)
def test_a_llama_of_each_format_agrees_with_the_float_model(tmp_path: Path, format: str) -> None:
    """Logits in chunks and token by token, within what INT8 activations make of these weights."""
    sizes = {"hidden": 512, "ffn": 512, "heads": 8, "kv_heads": 2}
    path = write_llama(tmp_path / "m.gguf", format=format, **sizes)
    expected = Llama(path, np.float64, cache=np.float16).logits(IDS)
    model, folder = convert.from_gguf(path)
    session = Session(model, data_root=folder, formats="strict")
    for chunk in (len(IDS), 5, 1):
        cache, parts = session.new_cache(context=16), []
        for begin in range(0, len(IDS), chunk):
            part = IDS[begin : begin + chunk]
            positions = np.arange(begin, begin + len(part))
            inputs = {"input_ids": part[None], "position_ids": positions[None], "logit_rows": np.arange(len(part))}
            parts.append(session.run(inputs, cache=cache)["logits"][0])
        error = np.concatenate(parts) - expected
        limit = 0.03 if layout_for(format, (512, 512)).quantized_activations else 1e-3
        assert np.sqrt(np.mean(error**2)) <= limit * np.sqrt(np.mean(expected**2))


# A stranger's format: codes of 3 bits, and a codebook of 8 values for each 64 of them.
BOOK3 = structure("BOOK3", d=f16, m=f32, book=f16[8], qs=bits(**{f"q{i}": 3 for i in range(8)})[8])
BOOK3_MAPPING = Generic(64, tuple(f"qs.q{i}" for i in range(8)), "book", "d", "m", entries="FLOAT16")


def book3(x: Any) -> Any:
    codes = np.stack(x.qs.leaves(), axis=2).reshape((-1, 64))
    values = np.take_along_axis(x.book.astype(np.float32), codes.astype(np.int64), axis=1)
    return x.d.astype(np.float32)[:, None] * values + x.m[:, None]


def user_format(name: str, monkeypatch: pytest.MonkeyPatch, decoder: Any = book3, block: Any = BOOK3) -> Format:
    monkeypatch.setattr(catalogue, "_added", {})
    monkeypatch.setattr(layouts.generic, "_MAPPINGS", dict(layouts.generic._MAPPINGS))
    return catalogue.add(Format(name, block, (64,), decoder))


def test_a_user_s_format_is_packed_by_its_mapping_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    fmt = user_format("BOOK3", monkeypatch)
    rng = np.random.default_rng(3)
    count = ROWS * COLUMNS // 64
    codes = {f"q{i}": rng.integers(0, 8, (count, 8)).astype(np.uint8) for i in range(8)}
    halves = {name: rng.standard_normal((count, *shape)).astype(np.float16) for name, shape in (("d", ()), ("book", (8,)))}
    payload = fmt.pack((ROWS, COLUMNS), qs=codes, m=rng.standard_normal(count).astype(np.float32), **halves)
    with pytest.raises(UnsupportedError, match="maps to no compute layout"):
        Session(model_of(fmt, payload), formats="strict").run({"x": np.zeros((1, COLUMNS), np.float32), "ids": np.array([0])})
    layouts.add(fmt, BOOK3_MAPPING)
    check(fmt, payload)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"columns": 32}, "32 columns"),
        ({"columns": 48}, "multiple of 32"),
        ({"codes": ("qs.q0", "qs.q9")}, "no leaves qs.q9"),
        ({"codes": ()}, "no leaves of codes"),
        ({"codes": ("d",)}, "more than 4 bits"),
        ({"codes": BOOK3_MAPPING.codes[::-1]}, "correct the order"),
        ({"run": 8}, "correct the order"),
        ({"run": 3}, "do not make"),
        ({"codes": BOOK3_MAPPING.codes[:7]}, "do not make"),
        ({"entries": ""}, 'entries="FLOAT16"'),
        ({"scale": "book"}, "do not make"),
        ({"minimum": ""}, "correct the order"),
        ({"table": tuple(range(17))}, "do not make"),
    ],
)
def test_a_mapping_that_is_not_the_decoder_is_refused(monkeypatch: pytest.MonkeyPatch, change: dict, message: str) -> None:
    fmt = user_format("BOOK3", monkeypatch)
    with pytest.raises(CheckError, match=message):
        layouts.add(fmt, Generic(**{**vars(BOOK3_MAPPING), **change}))
    assert layout_for("BOOK3", (8, 64)) is None


def test_a_table_may_be_a_constant_of_the_type_or_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    values = (-2.0, -0.5, 0.25, 3.0)
    block = structure("QUARTER", scale=f32, qs=bits(a=2, b=2, c=2, d=2)[16], values=constant(values, f32), spare=u8)
    fmt = user_format("QUARTER", monkeypatch, lambda x: x.scale[:, None] * x["values"][np.concatenate(x.qs.leaves(), 1)], block)
    for table in ("values", values):
        layouts.add(fmt, Generic(64, ("qs.a", "qs.b", "qs.c", "qs.d"), table, "scale", run=16))
        check(fmt, random_blocks_of(fmt))


def random_blocks_of(fmt: Format) -> np.ndarray:
    payload = np.random.default_rng(4).integers(0, 256, (ROWS * COLUMNS // 64, fmt.nbytes), np.uint8)
    payload[:, :4] = np.full(1, 0.125, np.float32).view(np.uint8)
    return payload
