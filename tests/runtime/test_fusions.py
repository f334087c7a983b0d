"""Fusions: where the condition of one holds it is made, where it does not it is not, and none changes a bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from tenonnx import OptionError, Session, convert, writable
from tenonnx.plan.fusion import FUSIONS
from tenonnx.structs import catalogue, declare
from tests.gguf_files import write_llama
from tests.models import DOMAIN, FLOAT, FLOAT16, INT64, Graph

K, N = 64, 24
FORMATS = ("Q4_1", "F32", "NF4")  # 8-bit activations, FLOAT ones, and a generic layout
IDS = np.array([[5, 1, 7, 0, 3]])


class Layers(Graph):
    """Graphs over weights of one format."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.rng = kind, np.random.default_rng(0)

    def weight(self, name: str, rows: int = N, columns: int = K) -> str:
        """The transposed weight, as MatMul takes it."""
        values = self.rng.standard_normal((rows, columns)).astype(np.float32)
        if self.kind == "F32":
            return self.constant(name, np.ascontiguousarray(values.T))
        fmt = catalogue[self.kind]
        index = declare(self.model, fmt, (rows, columns))
        self.body.struct_initializer.add(name=name, type=index, raw_data=fmt.encode(values).tobytes())
        self.node("StructDecode", [name], f"{name}.decoded", domain=DOMAIN)
        return self.node("Transpose", [f"{name}.decoded"], f"{name}.turned", perm=[1, 0])

    def product(self, x: str, name: str, rows: int = N, columns: int = K) -> str:
        return self.node("MatMul", [x, self.weight(f"{name}.weight", rows, columns)], name)

    def gate(self, gate: str, up: str, name: str) -> str:
        return self.node("Mul", [self.node("Swish", [gate], f"{name}.swish"), up], name)


def results(model: Any, feeds: dict[str, Any], fusions: Any) -> tuple[dict[str, Any], list[str]]:
    session = Session(model, threads=2, fusions=fusions)
    found = {name: np.array(array) for name, array in session.run({name: np.array(feeds[name]) for name in feeds}).items()}
    (executable,) = session._executables.values()
    return found, [step.kernel or "" for step in executable.plan.steps]


def same(model: Any, feeds: dict[str, Any]) -> dict[str, list[str]]:
    """The kernels of the plan for each choice of fusions, all of which give the same bits."""
    expected, kernels = results(model, feeds, "none")
    found = {"none": kernels}
    for choice in (*FUSIONS, "all"):
        got, found[choice] = results(model, feeds, choice)
        assert {name: array.tobytes() for name, array in got.items()} == {
            name: array.tobytes() for name, array in expected.items()
        }, choice
    return found


def x(n: int, batch: int = 1) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((batch, n, K)).astype(np.float32)


def products(kernels: list[str]) -> int:
    return sum(kernel.startswith("matmul_") for kernel in kernels)


LENGTHS = pytest.mark.parametrize("n", [1, 3, 70])
KINDS = pytest.mark.parametrize("kind", FORMATS)


@LENGTHS
@KINDS
def test_a_gated_unit_is_one_step(kind: str, n: int) -> None:
    g = Layers(kind)
    g.input("x", FLOAT, ["batch", "n", K])
    g.gate(g.product("x", "gate"), g.product("x", "up"), "y")
    g.output("y", FLOAT, ["batch", "n", N])
    kernels = same(g.model, {"x": x(n)})
    assert products(kernels["none"]) == 2 and "swish_mul" in kernels["none"]
    assert products(kernels["gate"]) == 1 and "swish_mul" not in kernels["gate"]


@LENGTHS
@KINDS
@pytest.mark.parametrize("swapped", [False, True])
def test_a_residual_is_added_in_the_product(kind: str, n: int, swapped: bool) -> None:
    g = Layers(kind)
    g.input("x", FLOAT, ["batch", "n", K])
    product = g.product("x", "product", K)
    g.node("Add", ["x", product] if not swapped else [product, "x"], "y")
    g.node("Add", ["y", g.product("y", "second", K)], "z")
    g.output("z", FLOAT, ["batch", "n", K])
    kernels = same(g.model, {"x": x(n)})
    assert kernels["none"].count("add") == 2 and "add" not in kernels["residual"]


@LENGTHS
@KINDS
def test_projections_of_the_same_activations_are_one_step(kind: str, n: int) -> None:
    g = Layers(kind)
    g.input("x", FLOAT, ["batch", "n", K])
    for name, rows in (("q", 48), ("k", 16), ("v", 9)):
        g.constant(f"{name}.bias", g.rng.standard_normal(rows).astype(np.float32))
        g.node("Add", [g.product("x", f"{name}.product", rows), f"{name}.bias"] if name != "v" else
               [f"{name}.bias", g.product("x", f"{name}.product", rows)], name)  # fmt: skip
        g.output(name, FLOAT, ["batch", "n", rows])
    kernels = same(g.model, {"x": x(n, 2)})
    assert products(kernels["none"]) == 3 and kernels["none"].count("add") == 3
    assert products(kernels["projections"]) == 1 and products(kernels["all"]) == 1 and "add" not in kernels["all"]


@pytest.mark.parametrize("n", [1, 70])
def test_a_norm_gives_8_bit_rows_where_all_readers_take_them(n: int) -> None:
    for read in (False, True):
        g = Layers("Q4_1")
        g.input("x", FLOAT, ["batch", "n", K])
        g.constant("scale", g.rng.standard_normal(K).astype(np.float32))
        g.node("RMSNormalization", ["x", "scale"], "normed", axis=-1)
        g.output(g.product("normed", "y"), FLOAT, ["batch", "n", N])
        if read:
            g.output(g.node("Neg", ["normed"], "negated"), FLOAT, ["batch", "n", K])
        kernels = same(g.model, {"x": x(n)})
        assert ("rms_norm_rows" in kernels["norm"]) == (not read) and "rms_norm_rows" not in kernels["none"]


def keys(read: bool, *, heads: int = 2, size: int = 16, rotary_dim: int = 0, kind: int = FLOAT16) -> Any:
    g = Layers("F32")
    g.input("x", FLOAT, ["batch", "n", heads * size])
    for name in ("cos", "sin"):
        g.input(name, FLOAT, ["batch", "n", (rotary_dim or size) // 2])
    g.input("cache", kind, ["batch", heads, 9, size], mutable=True)
    g.input("position", INT64, [])
    g.node("RotaryEmbedding", ["x", "cos", "sin"], "rotated", num_heads=heads, rotary_embedding_dim=rotary_dim)
    g.constant("shape", np.array([0, 0, heads, size]))
    g.node("Transpose", [g.node("Reshape", ["rotated", "shape"], "split")], "keys", perm=[0, 2, 1, 3])
    values = g.node("Cast", ["keys"], "narrow", to=kind) if kind != FLOAT else "keys"
    g.update("cache", values, "position", "updated")
    g.output("updated", kind, ["batch", heads, 9, size], alias_of="cache")
    if read:
        g.output(g.node("Neg", ["rotated"], "negated"), FLOAT, ["batch", "n", heads * size])
    return g.model


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("read, size, rotary_dim, kind", [
    (False, 16, 0, FLOAT16), (False, 16, 8, FLOAT), (True, 16, 0, FLOAT16), (False, 514, 0, FLOAT16),
])  # fmt: skip
def test_keys_are_rotated_as_they_are_written(n: int, read: bool, size: int, rotary_dim: int, kind: int) -> None:
    model, rng = keys(read, size=size, rotary_dim=rotary_dim, kind=kind), np.random.default_rng(1)
    feeds = {"x": rng.standard_normal((2, n, 2 * size)), "cos": rng.standard_normal((2, n, (rotary_dim or size) // 2))}
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    feeds |= {"sin": feeds["cos"] * 2, "position": np.array(3)}
    caches, kernels = {}, {}
    for choice in ("none", "rotary"):
        session = Session(model, fusions=choice)
        caches[choice] = np.ones((2, 2, 9, size), np.float16 if kind == FLOAT16 else np.float32)
        session.run({**feeds, "cache": writable(caches[choice])})
        (executable,) = session._executables.values()
        kernels[choice] = [step.kernel for step in executable.plan.steps]
    assert caches["none"].tobytes() == caches["rotary"].tobytes() and (caches["none"][:, :, 3 : 3 + n] != 1).any()
    assert ("rotary_update" in kernels["rotary"]) == (not read and size <= 512) and "rotary_update" not in kernels["none"]


@pytest.mark.parametrize(
    "dims, heads, reshaped, perm, cache",
    [
        ((2, 3, 32), 2, [2, 2, 3, 16], None, (2, 2, 9, 16)),  # reshaped, not transposed
        ((2, 3, 32), 2, [6, 1, 2, 16], [0, 2, 1, 3], (6, 2, 9, 16)),  # tokens as a batch
        ((2, 3, 32), 2, [2, 3, 4, 8], [0, 2, 1, 3], (2, 4, 9, 8)),  # heads split
        ((1, 3, 3, 16), 0, None, [0, 2, 1, 3], (1, 3, 9, 16)),  # heads and tokens exchanged, as many of each
        ((1, 2, 3, 16), 0, None, [0, 2, 1, 3], (1, 3, 9, 16)),
        ((2, 2, 3, 16), 0, None, [1, 0, 2, 3], (2, 2, 9, 16)),  # batch and heads exchanged
        ((1, 2, 3, 16), 0, [1, 4, 3, 8], None, (1, 4, 9, 8)),
        ((1, 2, 3, 16), 0, [1, 2, 6, 8], None, (1, 2, 9, 8)),
    ],
)
def test_keys_that_are_shown_in_another_order_are_written_by_a_step_of_their_own(
    dims: tuple[int, ...], heads: int, reshaped: list[int] | None, perm: list[int] | None, cache: tuple[int, ...]
) -> None:
    g, table = Layers("F32"), (dims[0], dims[-2], 8)
    g.input("x", FLOAT, dims)
    for name in ("cos", "sin"):
        g.input(name, FLOAT, table)
    g.input("cache", FLOAT, cache, mutable=True)
    g.input("position", INT64, [])
    shown = g.node("RotaryEmbedding", ["x", "cos", "sin"], "rotated", num_heads=heads)
    if reshaped:
        shown = g.node("Reshape", [shown, g.constant("shape", np.array(reshaped))], "reshaped")
    if perm:
        shown = g.node("Transpose", [shown], "turned", perm=perm)
    g.update("cache", shown, "position", "updated")
    g.output("updated", FLOAT, cache, alias_of="cache")
    rng = np.random.default_rng(2)
    shapes = {"x": dims, "cos": table, "sin": table}
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()} | {"position": np.array(1)}
    found = []
    for choice in ("none", "all"):
        found.append(np.zeros(cache, np.float32))
        Session(g.model, fusions=choice).run({**feeds, "cache": writable(found[-1])})
    assert found[0].tobytes() == found[1].tobytes() and found[0].any()


@pytest.mark.parametrize("width, merged", [(32, 64), (64, 32), (32, 32)])
def test_norms_of_another_width_than_the_product_stay_steps(width: int, merged: int) -> None:
    g = Layers("Q4_1")
    g.input("x", FLOAT, ["batch", "n", 2, width])
    g.constant("scale", g.rng.standard_normal(width).astype(np.float32))
    g.node("RMSNormalization", ["x", "scale"], "normed", axis=-1)
    g.node("Reshape", ["normed", g.constant("shape", np.array([0, -1, merged]))], "rows")
    g.output(g.product("rows", "y", N, merged), FLOAT, ["batch", "m", N])
    kernels = same(g.model, {"x": np.random.default_rng(0).standard_normal((1, 3, 2, width)).astype(np.float32)})
    assert ("rms_norm_rows" in kernels["all"]) == (width == merged)


def test_what_is_read_elsewhere_stays_a_step() -> None:
    g = Layers("Q4_1")
    g.input("x", FLOAT, ["batch", "n", K])
    gate, up = g.product("x", "gate", K), g.product("x", "up", K)
    g.gate(gate, up, "y")
    g.node("Add", ["x", gate], "z")
    for name in ("y", "z"):
        g.output(name, FLOAT, ["batch", "n", K])
    kernels = same(g.model, {"x": x(3)})
    assert "swish_mul" in kernels["gate"] and "add" in kernels["residual"]


def test_a_product_that_is_an_output_stays_one() -> None:
    g = Layers("Q4_1")
    g.input("x", FLOAT, ["batch", "n", K])
    g.node("Add", ["x", g.product("x", "product", K)], "y")
    for name in ("product", "y"):
        g.output(name, FLOAT, ["batch", "n", K])
    assert "add" in same(g.model, {"x": x(3)})["residual"]


def test_a_product_added_to_itself_and_sums_of_other_shapes() -> None:
    g = Layers("Q4_1")
    g.input("x", FLOAT, ["batch", "n", K])
    g.input("wide", FLOAT, [3, 1, 1, K])
    g.node("Add", [g.product("x", "one", K), "one"], "twice")
    g.node("Add", ["wide", g.product("x", "two", K)], "broadcast")
    g.output("twice", FLOAT, ["batch", "n", K])
    g.output("broadcast", FLOAT, [3, "batch", "n", K])
    wide = np.random.default_rng(0).standard_normal((3, 1, 1, K)).astype(np.float32)
    assert same(g.model, {"x": x(3), "wide": wide})["all"].count("add") == 2


def test_projections_are_not_gathered_across_other_products() -> None:
    # Keys of all layers of a decoder over one encoder's output would all be held at once.
    g = Layers("Q4_1")
    g.input("x", FLOAT, ["batch", "n", K])
    first = g.product("x", "first", K)
    last = g.product(first, "between", K)
    g.node("Add", [last, g.product("x", "late", K)], "y")
    g.output("y", FLOAT, ["batch", "n", K])
    assert products(same(g.model, {"x": x(3)})["projections"]) == 3


def test_a_cache_is_multiplied_before_it_is_updated() -> None:
    # The product reads the cache, the addend comes from the updated cache: joined, they would wait for each other.
    g = Layers("F32")
    g.input("cache", FLOAT, [4, K], mutable=True)
    g.input("values", FLOAT, [1, K])
    g.input("position", INT64, [])
    g.product("cache", "product", K)
    g.update("cache", "values", "position", "updated")
    g.node("Add", [g.node("Neg", ["updated"], "new"), "product"], "y")
    g.output("updated", FLOAT, [4, K], alias_of="cache")
    g.output("y", FLOAT, [4, K])
    found = []
    for choice in ("none", "all"):
        cache = np.random.default_rng(3).standard_normal((4, K)).astype(np.float32)
        feeds = {"cache": writable(cache), "values": np.ones((1, K), np.float32), "position": np.array(2)}
        found.append(Session(g.model, fusions=choice).run(feeds)["y"].tobytes())
    assert found[0] == found[1]


def test_a_residual_that_a_loop_carries() -> None:
    body = Layers("F32")
    body.input("i", INT64, [])
    body.input("on_in", 9, [])
    body.input("h", FLOAT, [1, 3, K])
    body.node("Identity", ["on_in"], "on_out")
    body.node("MatMul", ["h", "w"], "product")
    body.node("Add", ["h", "product"], "h_out")
    body.output("on_out", 9, [])
    body.output("h_out", FLOAT, [1, 3, K])
    g = Layers("F32")
    g.input("x", FLOAT, [1, 3, K])
    g.input("trips", INT64, [])
    g.constant("w", g.rng.standard_normal((K, K)).astype(np.float32) / K)
    g.constant("true", np.array(True))
    g.holding("Loop", ["trips", "true", "x"], "y", body=body)
    g.output("y", FLOAT, [1, 3, K])
    same(g.model, {"x": x(3), "trips": np.array(4)})
    stock = onnx.ModelProto.FromString(g.model.SerializeToString())
    expected = ReferenceEvaluator(stock).run(None, {"x": x(3), "trips": np.array(4)})[0]
    found = Session(g.model).run({"x": x(3), "trips": np.array(4)})["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("biases", [(), ("attn_q", "attn_k", "attn_v", "attn_output")])
@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "F16"])
def test_a_llama_is_the_same_bits_by_any_fusions(tmp_path: Path, kind: str, biases: tuple[str, ...]) -> None:
    model, folder = convert.from_gguf(write_llama(tmp_path / "llama.gguf", format=kind, biases=biases))
    found = {}
    for choice in ("none", *FUSIONS, "all"):
        session = Session(model, data_root=folder, fusions=choice)
        cache = session.new_cache(context=16)
        parts = []
        for begin, end in ((0, 3), (3, 4), (4, 5)):
            inputs = {"input_ids": IDS[:, begin:end], "position_ids": np.arange(begin, end)[None]}
            parts.append(session.run(inputs | {"logit_rows": np.arange(end - begin)}, cache=cache)["logits"].tobytes())
        found[choice] = b"".join(parts)
    assert set(found.values()) == {found["none"]}


@pytest.mark.parametrize("wrong", ["qkv", ["gate", "qkv"], "", 3, None])
def test_a_fusion_that_is_none(wrong: Any) -> None:
    with pytest.raises(OptionError, match="expected all, none, or some of gate, residual"):
        Session(keys(False), fusions=wrong)
