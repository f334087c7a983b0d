"""MatMulNBits and GatherBlockQuantized: packed and run natively where kernels have the layout, else as onnxruntime does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tenonnx import BindingError, Session, UnsupportedError, load, save
from tenonnx.compiled.store import build
from tests.models import FLOAT, INT64, Graph

N, DOMAIN = 24, "com.microsoft"


def weight(g: Graph, bits: int, group: int, columns: int, zero_points: bool, rng: np.random.Generator) -> list[str]:
    blocks = columns // group
    g.constant("codes", rng.integers(0, 256, (N, blocks, group * bits // 8), dtype=np.uint8))
    g.constant("scales", rng.standard_normal((N, blocks)).astype(np.float32) / 16)
    if zero_points:
        g.constant("zeros", rng.integers(0, 256, (N, -(-blocks * bits // 8)), dtype=np.uint8))
    return ["codes", "scales", *(["zeros"] if zero_points else [])]


def product(bits: int, group: int, *, zero_points: bool = False, bias: bool = False, columns: int = 0) -> Any:
    g, rng = Graph(opset=21), np.random.default_rng(bits * group + zero_points)
    columns = columns or 3 * group
    g.model.opset_import.add(domain=DOMAIN, version=1)
    g.input("x", FLOAT, ["batch", "n", columns])
    names = ["x", *weight(g, bits, group, columns, zero_points, rng)]
    if bias:
        g.constant("bias", rng.standard_normal(N).astype(np.float32))
        names += [""] * (5 - len(names)) + ["bias"]
    g.node("MatMulNBits", names, "y", domain=DOMAIN, K=columns, N=N, bits=bits, block_size=group)
    g.output("y", FLOAT, ["batch", "n", N])
    return g.model


def stock(model: Any, feeds: dict[str, Any]) -> dict[str, np.ndarray]:
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    copy.ir_version = 10
    session = onnxruntime.InferenceSession(copy.SerializeToString())
    return dict(zip([value.name for value in session.get_outputs()], session.run(None, feeds), strict=True))


def kernels(session: Session) -> set[str | None]:
    (executable,) = session._executables.values()
    return {step.kernel for step in executable.plan.steps}


@pytest.mark.parametrize("n", [1, 5, 40])
@pytest.mark.parametrize("zero_points, bias", [(False, False), (True, False), (True, True), (False, True)])
@pytest.mark.parametrize("bits, group", [(bits, group) for bits in (4, 8) for group in (32, 64, 128)])
def test_products_are_those_of_onnxruntime(bits: int, group: int, zero_points: bool, bias: bool, n: int) -> None:
    model = product(bits, group, zero_points=zero_points, bias=bias)
    x = np.random.default_rng(n).standard_normal((2, n, 3 * group)).astype(np.float32)
    session = Session(model, engine="native", threads=2)
    found, expected = session.run({"x": x})["y"], stock(model, {"x": x})["y"]
    assert f"matmul_g{bits}_{group}" in kernels(session)
    # INT8 activations are off by at most half a step of each.
    largest = np.abs(stock(model, {"x": np.eye(3 * group, dtype=np.float32)[None]})["y"][0]).sum(0) * (2 if bias else 1)
    assert (np.abs(found - expected) <= np.abs(x).max() / 127 * 0.51 * largest + 1e-4).all()


@pytest.mark.parametrize("bits, zero_points", [(4, False), (4, True), (8, True)])
def test_tied_embeddings_are_rows_of_the_packed_weight(bits: int, zero_points: bool) -> None:
    g, rng, columns = Graph(opset=21), np.random.default_rng(0), 96
    g.model.opset_import.add(domain=DOMAIN, version=1)
    g.input("ids", INT64, ["n"])
    names = weight(g, bits, 32, columns, zero_points, rng)
    g.constant("flat", np.array([N, columns * bits // 8]))
    rows = [g.node("Reshape", ["codes", "flat"], "table"), "ids", *names[1:]]
    options = {"bits": bits, "block_size": 32, "gather_axis": 0, "quantize_axis": 1}
    g.node("GatherBlockQuantized", rows, "x", domain=DOMAIN, **options)
    g.node("MatMulNBits", ["x", *names], "y", domain=DOMAIN, K=columns, N=N, bits=bits, block_size=32)
    g.output("x", FLOAT, ["n", columns])
    g.output("y", FLOAT, ["n", N])
    session, ids = Session(g.model, engine="native"), np.array([0, N - 1, 5, 5])
    found, expected = session.run({"ids": ids}), stock(g.model, {"ids": ids})
    np.testing.assert_array_equal(found["x"], expected["x"])
    np.testing.assert_allclose(found["y"], expected["y"], atol=0.03 * np.abs(expected["y"]).max())
    assert kernels(session) >= {f"gather_g{bits}_32", f"matmul_g{bits}_32"}
    with pytest.raises(BindingError, match="index 24"):
        session.run({"ids": np.array([N])})


def ordered() -> Any:
    """Columns in an order of their own."""
    model = product(4, 32)
    model.graph.node[0].input.extend(["", "order"])
    order = (np.arange(96, dtype=np.int32) // 32).tobytes()
    model.graph.initializer.add(name="order", data_type=onnx.TensorProto.INT32, dims=[96], raw_data=order)
    return model


def computed() -> Any:
    """Scales that a node makes."""
    model = product(4, 32)
    (node,) = model.graph.node
    model.graph.node.insert(0, type(node)(op_type="Neg", input=["scales"], output=["negated"]))
    model.graph.node[1].input[2] = "negated"
    return model


@pytest.mark.parametrize("model", [product(4, 16), product(4, 256), ordered(), computed()])
def test_what_no_kernel_has_is_left_to_onnxruntime(model: Any) -> None:
    columns = model.graph.input[0].type.tensor_type.shape.dim[2].dim_value
    x = np.random.default_rng(0).standard_normal((1, 3, columns)).astype(np.float32)
    session = Session(model)
    found = session.run({"x": x})["y"]
    assert None in kernels(session)
    np.testing.assert_allclose(found, stock(model, {"x": x})["y"], rtol=1e-3, atol=1e-3)
    with pytest.raises(UnsupportedError, match="has no native kernel"):
        Session(model, engine="native").run({"x": x})


def test_sizes_that_contradict_the_initializers_are_an_error_and_no_crash() -> None:
    for name, value in (("K", 128), ("N", 25), ("bits", 8), ("block_size", 64)):
        model = product(4, 32)
        next(attribute for attribute in model.graph.node[0].attribute if attribute.name == name).i = value
        with pytest.raises((UnsupportedError, ValueError)):
            Session(model).run({"x": np.zeros((1, 1, 96), np.float32)})


def test_no_pack_is_stored_of_what_one_initializer_does_not_tell(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    save(product(4, 32), path)
    with pytest.raises(UnsupportedError, match="nothing to pack"):
        build(path)
    session = Session(path, packs="write")
    assert session.run({"x": np.ones((1, 1, 96), np.float32)})["y"].shape == (1, 1, N)
    assert not load(path).compiled_tensors
