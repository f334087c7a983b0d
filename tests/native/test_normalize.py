import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from tests.native.kernels import ISAS, call
from tests.native.layouts import shapes, views
from tests.oracle import normalize as oracle

isas = pytest.mark.parametrize("isa", ISAS)
WIDTHS = st.sampled_from([1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 576])


@isas
@given(st.data())
def test_rms_norm_with_and_without_residual(isa, data):
    width = data.draw(WIDTHS)
    shape = (*data.draw(shapes(0, 2)), width)
    x, residual, y, total = (data.draw(views(shape, np.float32, unit_last=True)) for _ in range(4))
    rng = np.random.default_rng(0)
    x[...], residual[...] = rng.normal(size=(2, *shape)) * 3
    scale = rng.normal(size=width).astype(np.float32)
    call("rms_norm", [x, scale], [y], floats=[1e-5], threads=2, isa=isa)
    np.testing.assert_allclose(y, oracle.rms_norm(x, scale, 1e-5), rtol=2e-6)
    call("rms_norm", [x, scale, residual], [y, total], floats=[1e-5], threads=2, isa=isa)
    assert np.array_equal(total, x + residual)
    np.testing.assert_allclose(y, oracle.rms_norm(x + residual, scale, 1e-5), rtol=2e-6)
    alone = np.zeros_like(y)
    call("rms_norm", [total, scale], [alone], floats=[1e-5], isa=isa)
    assert np.array_equal(alone, y), "the fused kernel differs from its parts"


@isas
def test_a_row_is_the_same_bits_in_any_company(isa):
    rows = np.random.default_rng(1).normal(size=(37, 577)).astype(np.float32)
    scale = np.ones(577, np.float32)
    for name, extra, floats in (("rms_norm", [scale], [1e-6]), ("softmax", [], [])):
        together, alone = np.zeros_like(rows), np.zeros_like(rows)
        call(name, [rows, *extra], [together], floats=floats, threads=2, isa=isa)
        for i in range(37):
            call(name, [rows[i : i + 1], *extra], [alone[i : i + 1]], floats=floats, isa=isa)
        assert np.array_equal(together, alone)


def test_norms_in_place():
    x = np.random.default_rng(1).normal(size=(5, 40)).astype(np.float32)
    scale, residual = np.ones(40, np.float32), np.ones((5, 40), np.float32)
    expected = oracle.rms_norm(x + residual, scale, 1e-5)
    call("rms_norm", [x, scale, residual], [x, residual], floats=[1e-5])
    np.testing.assert_allclose(x, expected, rtol=2e-6)


@isas
@given(st.data())
def test_softmax(isa, data):
    shape = (*data.draw(shapes(0, 2)), data.draw(WIDTHS))
    x, y = (data.draw(views(shape, np.float32, unit_last=True)) for _ in range(2))
    x[...] = np.random.default_rng(0).normal(size=shape) * data.draw(st.sampled_from([1, 50]))
    x[..., 1:2] = -np.inf
    call("softmax", [x], [y], threads=2, isa=isa)
    np.testing.assert_allclose(y, oracle.softmax(x), rtol=4e-6, atol=1e-38)


def test_rms_norm_agrees_with_the_reference_evaluator():
    rng = np.random.default_rng(2)
    x, scale = rng.normal(size=(2, 3, 64)).astype(np.float32), rng.normal(size=64).astype(np.float32)
    node = onnx.helper.make_node("RMSNormalization", ["x", "s"], ["y"], axis=-1, epsilon=1e-5)
    expected = ReferenceEvaluator(node).run(None, {"x": x, "s": scale})[0]
    y = np.zeros_like(x)
    call("rms_norm", [x, scale], [y], floats=[1e-5])
    np.testing.assert_allclose(y, expected, rtol=3e-6)


@isas
def test_rope_table_to_a_million_positions(isa):
    positions = np.array([[0, 1, 2, 1023, 4096], [-7, 99_991, 524_287, 999_999, 1_000_000]], np.int64)
    inverse = (10000.0 ** -(np.arange(33) / 33)).astype(np.float32)
    cos, sin = np.zeros((2, 2, 5, 33), np.float32)
    call("rope_table", [positions, inverse], [cos, sin], floats=[1.5], threads=2, isa=isa)
    angle = (positions.astype(np.float32)[..., None] * inverse).astype(np.float64)
    np.testing.assert_allclose(cos, 1.5 * np.cos(angle), rtol=3e-7, atol=2e-7)
    np.testing.assert_allclose(sin, 1.5 * np.sin(angle), rtol=3e-7, atol=2e-7)


@isas
@given(st.data())
def test_rotary(isa, data):
    b, heads, n = (data.draw(st.integers(1, 5)) for _ in range(3))
    head = data.draw(st.sampled_from([2, 6, 16, 30, 64, 80]))
    rotary_dim = data.draw(st.sampled_from([0, 2, head - head % 4, head]))
    interleaved, flat = data.draw(st.booleans()), data.draw(st.booleans())
    rotated = rotary_dim or head
    rng = np.random.default_rng(3)
    cos, sin = (data.draw(views((b, n, rotated // 2), np.float32, unit_last=True)) for _ in range(2))
    cos[...], sin[...] = rng.normal(size=(2, b, n, rotated // 2))
    shape = (b, n, heads * head) if flat else (b, heads, n, head)
    x, y = (data.draw(views(shape, np.float32, unit_last=True)) for _ in range(2))
    x[...] = rng.normal(size=shape)
    heads_first = x.reshape(b, n, heads, head).transpose(0, 2, 1, 3) if flat else x
    expected = oracle.rotary(heads_first, cos, sin, interleaved, rotated)
    expected = expected.transpose(0, 2, 1, 3).reshape(shape) if flat else expected
    ints = [int(interleaved), heads, rotary_dim]
    call("rotary", [x, cos, sin], [y], ints, threads=2, isa=isa)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    call("rotary", [x, cos, sin], [x], ints, threads=2, isa=isa)
    assert np.array_equal(x, y), "in place differs"


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rotary_dim", [0, 8])
def test_rotary_agrees_with_the_reference_evaluator(interleaved, rotary_dim):
    rng = np.random.default_rng(4)
    x = rng.normal(size=(2, 5, 3 * 16)).astype(np.float32)
    cos, sin = rng.normal(size=(2, 2, 5, (rotary_dim or 16) // 2)).astype(np.float32)
    attributes = {"interleaved": interleaved, "num_heads": 3, "rotary_embedding_dim": rotary_dim}
    node = onnx.helper.make_node("RotaryEmbedding", ["x", "c", "s"], ["y"], **attributes)
    expected = ReferenceEvaluator(node).run(None, {"x": x, "c": cos, "s": sin})[0]
    y = np.zeros_like(x)
    call("rotary", [x, cos, sin], [y], [interleaved, 3, rotary_dim])
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


F = np.zeros((2, 3, 8), np.float32)
TABLE, IDS = np.zeros((2, 3, 4), np.float32), np.zeros((2, 3), np.int64)


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "ints", "floats", "text"),
    [
        ("rms_norm", [F, F[0, 0, :7]], [F], [], [1e-5], "scale is"),
        ("rms_norm", [F, F[0, 0]], [F[:1]], [], [1e-5], "same dims"),
        ("rms_norm", [F, F[0, 0], F], [F], [], [1e-5], "go together"),
        ("rms_norm", [F, F[0, 0], F[:1]], [F, F], [], [1e-5], "residual"),
        ("rms_norm", [F[..., 0].T, F[0, 0, :2]], [F[..., 0].T.copy()], [], [1e-5], "unit stride"),
        ("softmax", [np.zeros((), np.float32)], [np.zeros((), np.float32)], [], [], "unit stride"),
        ("rope_table", [IDS.T, TABLE[0, 0]], [TABLE, TABLE], [], [1.0], "contiguous"),
        ("rope_table", [IDS, TABLE[0, 0, :3]], [TABLE, TABLE], [], [1.0], "output 0"),
        ("rotary", [F, TABLE, TABLE], [F], [0, 3, 0], [], "3 heads"),
        ("rotary", [F, TABLE, TABLE], [F], [0, 0, 0], [], "0 heads"),
        ("rotary", [F, TABLE, TABLE], [F], [0, 1, 10], [], "rotary_dim 10"),
        ("rotary", [F, TABLE, TABLE], [F], [0, 1, 3], [], "rotary_dim 3"),
        ("rotary", [F, TABLE[..., :3], TABLE], [F], [0, 1, 0], [], "cosines or sines"),
    ],
)
def test_validation_names_what_does_not_fit(name, inputs, outputs, ints, floats, text):
    with pytest.raises(ValueError, match=text):
        call(name, inputs, outputs, ints, floats)
