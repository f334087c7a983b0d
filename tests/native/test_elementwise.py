import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from tests.native.kernels import ISAS, call
from tests.native.layouts import shapes, views
from tests.oracle import elementwise as oracle

isas = pytest.mark.parametrize("isa", ISAS)
ARITHMETIC = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
ORDER = {
    "equal": np.equal, "less": np.less, "greater": np.greater, "less_equal": np.less_equal,
    "greater_equal": np.greater_equal,
}  # fmt: skip
REALS, INTEGERS = [np.float32, np.float64, np.float16], [np.int32, np.int64]
SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-38, 3.4e38, -3.4e38, 88.72, 88.73, -87.4, -104],
    np.float32,
)


def ulps(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Distance in units of the last place of float32 there; 0 where both are NaN or the same infinity."""
    with np.errstate(all="ignore"):
        rounded = expected.astype(np.float32)
        distance = np.abs(got.astype(np.float64) - expected) / np.spacing(np.abs(rounded)).astype(np.float64)
    same = (got == rounded) | (np.isnan(got) & np.isnan(expected))
    return np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))


@isas
@pytest.mark.parametrize("name", oracle.UNARY)
def test_unary_kernels_against_float64(name, isa):
    rng = np.random.default_rng(5)
    spread = [rng.normal(size=4000), np.linspace(-110, 95, 20011), 10 ** rng.uniform(-30, 4, 999)]
    x = np.concatenate([SPECIAL, *spread]).astype(np.float32)
    limit = {"gelu_tanh": 8, "gelu_erf": 4, "softplus": 4}.get(name, 3)
    if name in ("sin", "cos"):
        x = x[np.abs(x) < 1e6]
    with np.errstate(all="ignore"):
        expected = oracle.UNARY[name](x.astype(np.float64))
    y = np.zeros_like(x)
    call(name, [x], [y], isa=isa)
    if name.startswith("gelu"):  # beyond, the float inner sum decides a result that is nothing beside x
        keep = (x > -5) & np.isfinite(x)
        assert np.all(np.abs(y[~keep & (x < 0) & np.isfinite(x)]) < 2e-5)
        x, y, expected = x[keep], y[keep], expected[keep]
        limit *= 8
    if name == "sigmoid":  # e^-x overflows in float below -88, where the value is subnormal
        x, y, expected = x[~(x < -87)], y[~(x < -87)], expected[~(x < -87)]
    distance = ulps(y, expected)
    assert distance.max() <= limit, (x[distance.argmax()], y[distance.argmax()], expected[distance.argmax()])


@isas
def test_exp_is_within_two_ulp_and_right_at_the_ends(isa):
    bits = np.random.default_rng(8).integers(0, 2**32, 400_000, np.uint32).view(np.float32)
    x = np.concatenate([bits, np.linspace(-104, 89, 400_001, dtype=np.float32)])
    with np.errstate(all="ignore"):
        expected = np.exp(x.astype(np.float64))
    y = np.zeros_like(x)
    call("exp", [x], [y], isa=isa)
    assert ulps(y, expected).max() <= 2
    call("exp", [SPECIAL], [y[: SPECIAL.size]], isa=isa)
    assert y[0] == 1 and y[2] == np.inf and y[3] == 0 and np.isnan(y[4])
    assert np.isfinite(y[10]) and y[11] == np.inf


@isas
@pytest.mark.parametrize("name", [*oracle.UNARY, "swish"])
def test_a_result_does_not_depend_on_place_or_stride(name, isa):
    floats = [1.5] if name == "swish" else []
    for value in (0.3, -0.7, 2.5, -30.0):
        x = np.full(75, value, np.float32)
        y, strided = np.zeros_like(x), np.zeros(150, np.float32)[::2]
        call(name, [x], [y], floats=floats, isa=isa)
        call(name, [np.broadcast_to(x[:1], (75,))], [strided], floats=floats, isa=isa)
        assert np.unique(np.concatenate([y, strided]).view(np.uint32)).size == 1


@given(st.data())
def test_unary_over_any_views(data):
    shape = data.draw(shapes())
    x, y = data.draw(views(shape, np.float32)), data.draw(views(shape, np.float32))
    x[...] = np.random.default_rng(0).normal(size=shape)
    call("swish", [x], [y], floats=[1.0], threads=2)
    np.testing.assert_allclose(y, oracle.swish(x.astype(np.float64), 1.0), rtol=1e-6)
    whole, negated = data.draw(views(shape, np.int64)), data.draw(views(shape, np.int64))
    whole[...] = np.random.default_rng(1).choice([-(2**63), -1, 0, 5], shape)
    for name, expected in (("neg", 0 - whole), ("abs", np.abs(whole))):
        call(name, [whole], [negated], threads=2)
        assert np.array_equal(negated, expected)
    truth, flipped = data.draw(views(shape, np.bool_)), data.draw(views(shape, np.bool_))
    truth[...] = np.random.default_rng(2).random(shape) < 0.5
    call("not", [truth], [flipped])
    assert np.array_equal(flipped, ~truth)


@isas
@given(st.data())
def test_swish_mul(isa, data):
    shape = data.draw(shapes(1))
    gate, up, y = (data.draw(views(shape, np.float32, unit_last=True)) for _ in range(3))
    gate[...], up[...] = np.random.default_rng(0).normal(size=(2, *shape)) * 4
    call("swish_mul", [gate, up], [y], floats=[1.0], threads=2, isa=isa)
    np.testing.assert_allclose(y, oracle.swish(gate.astype(np.float64), 1.0) * up, rtol=2e-6)
    separate = np.zeros(shape, np.float32)
    call("swish", [gate], [separate], floats=[1.0], isa=isa)
    assert np.array_equal(separate * up, y), "the fused kernel differs from its parts"


def operand(data, shape, dtype):
    """A view of the shape, some dims of it broadcast."""
    kept = tuple(1 if data.draw(st.booleans()) else size for size in shape)
    view = data.draw(views(kept, dtype))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    if np.dtype(dtype) == np.bool_:
        view[...] = rng.random(kept) < 0.5
    elif np.issubdtype(dtype, np.integer):
        limits = np.iinfo(dtype)
        view[...] = rng.choice(np.array([limits.min, -3, -1, 0, 2, 7, limits.max], dtype), kept)
    else:
        view[...] = rng.choice(np.array([0, -0.0, 1.5, -2.25, 300, np.inf, np.nan], dtype), kept)
    return np.broadcast_to(view, shape)


@given(st.data())
def test_binary_over_broadcast_views(data):
    shape = data.draw(shapes(0, 3))
    isa = data.draw(st.sampled_from(ISAS))
    dtype = data.draw(st.sampled_from(REALS + INTEGERS))
    a, b, y = operand(data, shape, dtype), operand(data, shape, dtype), data.draw(views(shape, dtype))
    truth = data.draw(views(shape, np.bool_))
    with np.errstate(all="ignore"):
        for name, f in ARITHMETIC.items():
            call(name, [a, b], [y], threads=2, isa=isa)
            np.testing.assert_array_equal(y, f(a, b), name)
        call("div", [a, b], [y], threads=2, isa=isa)
        if dtype in REALS:
            np.testing.assert_array_equal(y, a / b)
        else:
            unsigned, modulus = np.dtype(f"u{a.itemsize}"), 2 ** (8 * a.itemsize)
            quotients = [truncated(p, q) % modulus for p, q in zip(a.ravel(), b.ravel(), strict=True)]
            wrapped = np.array(quotients, unsigned).reshape(shape)
            np.testing.assert_array_equal(y.astype(unsigned), wrapped)
        for name, f in ORDER.items():
            call(name, [a, b], [truth], threads=2, isa=isa)
            np.testing.assert_array_equal(truth, f(a, b), name)
    p, q = operand(data, shape, np.bool_), operand(data, shape, np.bool_)
    for name, f in {"and": np.logical_and, "or": np.logical_or, "equal": np.equal}.items():
        call(name, [p, q], [truth], threads=2, isa=isa)
        np.testing.assert_array_equal(truth, f(p, q), name)


def truncated(p, q):
    """p / q rounded towards zero, of integers of any size; 0 for a division by 0."""
    p, q = int(p), int(q)
    return 0 if q == 0 else abs(p) // abs(q) * (1 if (p < 0) == (q < 0) else -1)


@pytest.mark.parametrize(
    ("op", "name", "floats", "attributes"),
    [
        ("Pow", "pow", [], {}),
        ("Swish", "swish", [1.25], {"alpha": 1.25}),
        ("Gelu", "gelu_tanh", [], {"approximate": "tanh"}),
        ("Gelu", "gelu_erf", [], {}),
        ("Softplus", "softplus", [], {}),
        ("Sigmoid", "sigmoid", [], {}),
        ("Erf", "erf", [], {}),
    ],
)
def test_agrees_with_the_reference_evaluator(op, name, floats, attributes):
    rng = np.random.default_rng(6)
    signs = 1 if op == "Pow" else rng.choice([-1, 1], 500)
    feeds = {"x": (rng.uniform(0.1, 4, 500) * signs).astype(np.float32)}
    if op == "Pow":
        feeds["z"] = rng.normal(size=500).astype(np.float32)
    node = onnx.helper.make_node(op, list(feeds), ["y"], **attributes)
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [onnx.helper.make_tensor_value_info(k, 1, [500]) for k in feeds],
        [onnx.helper.make_tensor_value_info("y", 1, [500])],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 24)])
    expected = ReferenceEvaluator(model).run(None, feeds)[0]
    y = np.zeros(500, np.float32)
    call(name, list(feeds.values()), [y], floats=floats)
    np.testing.assert_allclose(y, expected, rtol=2e-6, atol=2e-7)


F, H = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float16)


@pytest.mark.parametrize(
    ("name", "inputs", "output", "floats", "text"),
    [
        ("add", [F, H], F, [], "one type expected"),
        ("add", [F, F[:1]], F, [], "expected the output's dims"),
        ("add", [F, F], H, [], "output is FLOAT16"),
        ("add", [F.astype(np.uint8)] * 2, F, [], "no kernel for UINT8"),
        ("less", [F, F], F, [], "output is FLOAT"),
        ("and", [F, F], F, [], "no kernel for FLOAT"),
        ("pow", [H, H], H, [], "no kernel for FLOAT16"),
        ("exp", [H], H, [], "only for FLOAT"),
        ("swish", [F], F, [], "0 real arguments"),
        ("not", [F], F, [], "only for BOOL"),
        ("swish_mul", [F.T.copy().T, F], F, [1.0], "unit stride"),
        ("exp", [], F, [], "0 inputs"),
    ],
)
def test_validation_names_what_does_not_fit(name, inputs, output, floats, text):
    with pytest.raises(ValueError, match=text):
        call(name, inputs, [output], floats=floats)
