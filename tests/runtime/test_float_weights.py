"""Plain float initializers as right operands of MatMul and Gemm: packed once, and right however the graph reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from tenonnx import Session, dtypes, ledger, load, save
from tenonnx.compiled import Wanted, pack
from tenonnx.layouts import LAYOUTS
from tests.models import FLOAT, INT64, Graph

TYPES = {"FLOAT": np.float32, "FLOAT16": np.float16, "BFLOAT16": ml_dtypes.bfloat16}
RANDOM = np.random.default_rng(0)


def number(name: str) -> int:
    return dtypes.BY_NAME[name].number


def numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(dtype)


def in_onnxruntime(model: Any, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    stock = onnx.ModelProto.FromString(model.SerializeToString())
    stock.ir_version = 10
    session = onnxruntime.InferenceSession(stock.SerializeToString())
    return dict(zip([value.name for value in session.get_outputs()], session.run(None, feeds), strict=True))


def agree(model: Any, feeds: dict[str, np.ndarray], tolerance: float = 1e-5) -> Session:
    """The session, whose outputs are those of onnxruntime, with no step left to it."""
    session = Session(model, engine="native", threads=2)
    for name, expected in in_onnxruntime(model, feeds).items():
        found = session.run(feeds)[name]
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        scale = np.abs(expected.astype(np.float64)).max(initial=1)
        np.testing.assert_allclose(found.astype(np.float64), expected.astype(np.float64), rtol=0, atol=tolerance * scale)
    return session


def kernels(session: Session, feeds: dict[str, np.ndarray]) -> list[str | None]:
    plan = session._planner.plan(shapes={name: array.shape for name, array in feeds.items()})
    return [step.kernel for step in plan.steps]


def way(g: Graph, name: str, route: str) -> str:
    """A value that is the initializer [K, N] by the nodes that ``route`` names, from the last to the first."""
    for number, node in enumerate(route.split()):
        made = f"{name}.{number}"
        if node == "Transpose":
            name = g.node("Transpose", [name], made, **({"perm": [1, 0]} if number % 2 else {}))
        elif node == "Cast":
            name = g.node("Cast", [name], made, to=FLOAT)
        else:
            name = g.node("Identity", [name], made)
    return name


ROUTES = ("", "Transpose", "Identity Transpose Identity", "Transpose Transpose", "Cast", "Transpose Cast")
# onnxruntime multiplies no BFLOAT16 on a CPU.
CASES = [(kind, route) for kind in TYPES for route in ROUTES if kind != "BFLOAT16" or "Cast" in route]


@pytest.mark.parametrize("n", [1, 7, 8, 9, 130, 300])
@pytest.mark.parametrize("kind, route", CASES)
def test_products_are_those_of_onnxruntime(kind: str, route: str, n: int) -> None:
    k = 33
    g = Graph(opset=22)
    turned = route.split().count("Transpose") % 2
    g.constant("w", numbers(*((n, k) if turned else (k, n)), dtype=TYPES[kind]))
    result = "FLOAT" if "Cast" in route else kind
    g.input("x", number(result), ["b", "m", k])
    g.output(g.node("MatMul", ["x", way(g, "w", route)], "y"), number(result), ["b", "m", n])
    for rows in (1, 5, 9):
        feeds = {"x": numbers(2, rows, k, dtype=TYPES[result])}
        session = agree(g.model, feeds, 2e-3 if result == "FLOAT16" else 1e-5)
        steps = kernels(session, feeds)
        assert steps.count(f"matmul_{ {'FLOAT': 'f32', 'FLOAT16': 'f16', 'BFLOAT16': 'bf16'}[kind] }") == 1
        assert set(steps) <= {"matmul_f32", "matmul_f16", "matmul_bf16", *(["copy"] if result == "FLOAT16" else [])}


def test_products_in_bfloat16_are_rounded_once() -> None:
    g = Graph(opset=22)
    weight, x = numbers(40, 12, dtype=ml_dtypes.bfloat16), numbers(3, 40, dtype=ml_dtypes.bfloat16)
    g.constant("w", weight)
    g.input("x", number("BFLOAT16"), ["m", 40])
    g.output(g.node("MatMul", ["x", "w"], "y"), number("BFLOAT16"), ["m", 12])
    found = Session(g.model, engine="native").run({"x": x})["y"]
    exact = x.astype(np.float64) @ weight.astype(np.float64)
    np.testing.assert_allclose(found.astype(np.float64), exact, rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize("shape", [(33,), (0, 33), (2, 0, 33)])
def test_a_vector_and_no_rows_at_all(shape: tuple[int, ...]) -> None:
    g = Graph(opset=22)
    g.constant("w", numbers(33, 5))
    g.input("x", FLOAT, list(shape))
    g.output(g.node("MatMul", ["x", "w"], "y"), FLOAT, [*shape[:-1], 5])
    agree(g.model, {"x": numbers(*shape)})


@pytest.mark.parametrize("bias", [None, (), (1,), (12,), (1, 12), (5, 1), (5, 12)])
@pytest.mark.parametrize("options", [{}, {"alpha": 0.5}, {"beta": -2.0}, {"alpha": 3.0, "beta": 0.25}, {"beta": 0.0}])
@pytest.mark.parametrize("turned", [{}, {"transB": 1}, {"transA": 1}, {"transA": 1, "transB": 1}])
def test_gemm_is_that_of_the_reference(bias: tuple[int, ...] | None, options: dict[str, float], turned: dict[str, int]) -> None:
    g = Graph(opset=22)
    g.constant("b", numbers(*((12, 33) if turned.get("transB") else (33, 12))))
    left = (33, 5) if turned.get("transA") else (5, 33)
    g.input("a", FLOAT, left)
    names = ["a", "b"]
    if bias is not None:
        names.append(g.constant("c", numbers(*bias)))
    g.output(g.node("Gemm", names, "y", **options, **turned), FLOAT, [5, 12])
    feeds = {"a": numbers(*left)}
    (expected,) = ReferenceEvaluator(onnx.ModelProto.FromString(g.model.SerializeToString())).run(None, feeds)
    session = agree(g.model, feeds)
    np.testing.assert_allclose(session.run(feeds)["y"], expected, rtol=1e-4, atol=1e-4)
    assert "matmul_f32" in kernels(session, feeds)


def test_gemm_in_float16_rounds_the_sum_once() -> None:
    g = Graph(opset=22)
    a, b, c = (numbers(*shape, dtype=np.float16) for shape in ((4, 65), (65, 9), (9,)))
    g.constant("b", b), g.constant("c", c)
    g.input("a", number("FLOAT16"), ["m", 65])
    g.output(g.node("Gemm", ["a", "b", "c"], "y"), number("FLOAT16"), ["m", 9])
    exact = a.astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64)
    np.testing.assert_allclose(Session(g.model, engine="native").run({"a": a})["y"], exact, rtol=2**-10, atol=1e-5)


# ---- Several readers


def tied(kind: str, ids: int = INT64) -> Graph:
    """Rows of an embedding [N, K] by id, and products with it."""
    g = Graph(opset=22)
    g.constant("w", numbers(70, 24, dtype=TYPES[kind]))
    g.input("ids", ids, ["m"])
    g.node("Gather", ["w", "ids"], "rows")
    g.node("Transpose", ["w"], "turned")
    g.node("MatMul", ["rows", "turned"], "y")
    g.output("rows", number(kind), ["m", 24])
    g.output("y", number(kind), ["m", 70])
    return g


@pytest.mark.parametrize("kind", ["FLOAT", "FLOAT16"])
def test_a_tied_embedding_is_resident_once(kind: str) -> None:
    g = tied(kind)
    feeds = {"ids": np.array([0, 69, -1, 5])}
    session = agree(g.model, feeds, 2e-3 if kind == "FLOAT16" else 1e-5)
    assert f"gather_{'f16' if kind == 'FLOAT16' else 'f32'}" in kernels(session, feeds)
    assert session.weight_bytes == 72 * 24 * TYPES[kind]().itemsize  # 70 rows in groups of 8
    np.testing.assert_array_equal(session.run(feeds)["rows"], in_onnxruntime(g.model, feeds)["rows"])


def test_readers_that_no_packed_kernel_serves_read_what_is_stored() -> None:
    g = tied("FLOAT", ids=number("INT32"))  # Gather from packed rows takes INT64
    g.node("Transpose", ["turned"], "as_stored")
    g.output(g.node("Add", ["w", "as_stored"], "sum"), FLOAT, [70, 24])
    feeds = {"ids": np.array([3, 0], np.int32)}
    session = agree(g.model, feeds)
    assert "matmul_f32" in kernels(session, feeds) and "gather" in kernels(session, feeds)


def test_a_weight_multiplied_both_ways_is_right_both_ways() -> None:
    g = Graph(opset=22)
    g.constant("w", numbers(24, 24))
    g.input("x", FLOAT, ["m", 24])
    g.node("Transpose", ["w"], "turned")
    g.output(g.node("MatMul", ["x", "w"], "y"), FLOAT, ["m", 24])
    g.output(g.node("MatMul", ["x", "turned"], "z"), FLOAT, ["m", 24])
    feeds = {"x": numbers(3, 24)}
    session = Session(g.model)
    for name, expected in in_onnxruntime(g.model, feeds).items():
        np.testing.assert_allclose(session.run(feeds)[name], expected, rtol=1e-4, atol=1e-4)


def test_products_before_opset_13_are_left_to_onnxruntime() -> None:
    g = Graph(opset=12)
    g.constant("w", numbers(6, 4))
    g.input("x", FLOAT, ["m", 6])
    g.output(g.node("MatMul", ["x", "w"], "y"), FLOAT, ["m", 4])
    session, feeds = Session(g.model), {"x": numbers(3, 6)}
    np.testing.assert_allclose(session.run(feeds)["y"], in_onnxruntime(g.model, feeds)["y"], rtol=1e-5, atol=1e-5)
    assert kernels(session, feeds) == [None]


# ---- Threads and memory


@pytest.mark.parametrize("turned", [False, True])
def test_bits_do_not_depend_on_the_number_of_threads(turned: bool) -> None:
    g = Graph(opset=22)
    g.constant("w", numbers(257, 301))
    g.input("x", FLOAT, ["m", 257 if not turned else 301])
    right = g.node("Transpose", ["w"], "t") if turned else "w"
    g.output(g.node("MatMul", ["x", right], "y"), FLOAT, ["m", 301 if not turned else 257])
    x = numbers(11, 301 if turned else 257)
    found = {Session(g.model, threads=threads).run({"x": x})["y"].tobytes() for threads in (1, 2, 3, 5)}
    assert len(found) == 1
    alone = Session(g.model).run({"x": x[4:5]})["y"]
    assert alone.tobytes() == Session(g.model).run({"x": x})["y"][4:5].tobytes()


def mapped_bytes(path: Path) -> int:
    """Bytes of a file that this process has in memory through its maps."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0] and ":" not in line.split(" ")[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found


@pytest.mark.parametrize("turned", [False, True])
def test_of_external_weights_only_the_packed_ones_stay_in_memory(tmp_path: Path, turned: bool) -> None:
    """12 MB, packed by parts: one allocation of their size, and the file's pages are given back."""
    shape = (3000, 1000)
    g = Graph(opset=22)
    g.constant("w", numbers(*shape))
    g.input("x", FLOAT, ["m", shape[1 if turned else 0]])
    right = g.node("Transpose", ["w"], "t") if turned else "w"
    g.output(g.node("MatMul", ["x", right], "y"), FLOAT, ["m", shape[0 if turned else 1]])
    feeds = {"x": numbers(2, shape[1 if turned else 0])}
    expected = in_onnxruntime(g.model, feeds)["y"]
    outside(g.model, tmp_path / "m.onnx")
    before = ledger()["weight"]
    session = Session(tmp_path / "m.onnx")
    after = ledger()["weight"]
    assert after["allocations"] - before["allocations"] == 1
    assert after["total"] - before["total"] == session.weight_bytes == np.prod(shape) * 4
    assert mapped_bytes(tmp_path / "m.onnx.data") < 1 << 20
    np.testing.assert_allclose(session.run(feeds)["y"], expected, rtol=1e-4, atol=1e-3)
    assert mapped_bytes(tmp_path / "m.onnx.data") < 1 << 20


@pytest.mark.parametrize("columns_first", [False, True])
def test_sources_are_given_back_part_by_part(columns_first: bool) -> None:
    rows, columns = 3001, 1000
    matrix = numbers(rows, columns)
    payload = np.ascontiguousarray(matrix.T if columns_first else matrix).view(np.uint8).reshape(-1)
    released: list[int] = []
    want = Wanted(LAYOUTS["f32"], rows, columns, columns_first)
    packed = pack(payload, "F32", want, 2, lambda: released.append(1))
    assert len(released) == 2  # of 12 MB
    padded = np.zeros((3008, columns), np.float32)
    padded[:rows] = matrix
    np.testing.assert_array_equal(
        packed.view(np.float32).reshape(-1, columns, 8), padded.reshape(-1, 8, columns).transpose(0, 2, 1)
    )


def outside(model: Any, path: Path) -> None:
    """The model with its initializers in a file beside it."""
    save(model, path)
    stock = onnx.load(path)
    onnx.save(stock, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=0)
    assert load(path).graph.initializer[0].external_data
