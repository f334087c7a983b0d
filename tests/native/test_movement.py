import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from tests.native.kernels import ELEMENT_TYPES, ISAS, call
from tests.native.layouts import SIZES, shapes, surroundings, views
from tests.oracle import movement as oracle

DTYPES = list(ELEMENT_TYPES)
FLOATS = [np.dtype(t) for t in (np.float32, np.float16, np.float64, ml_dtypes.bfloat16)]
isas = pytest.mark.parametrize("isa", ISAS)


def samples(dtype, shape, seed):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=shape) * 10.0 ** rng.integers(-2, 6, size=shape)
    if np.dtype(dtype) in FLOATS:
        rare = [0.0, -0.0, np.nan, np.inf, -np.inf, 0.5, -1.5, 2.0**31, -(2.0**63), 2.0**64]
        special = rng.choice(rare, shape)
        with np.errstate(over="ignore"):
            return np.where(rng.random(shape) < 0.3, special, values).astype(dtype)
    if dtype == np.bool_:
        return values > 0
    return rng.integers(-(2**63), 2**63, size=shape).astype(dtype)


def same(got, expected):
    return np.array_equal(got.view(np.uint8).ravel(), expected.view(np.uint8).ravel()) or bool(
        np.all((got == expected) | ((got != got) & (expected != expected)))
    )


@isas
@pytest.mark.parametrize("source", DTYPES, ids=str)
@pytest.mark.parametrize("target", DTYPES, ids=str)
def test_cast_of_every_pair_of_types(source, target, isa):
    x = samples(source, (3, 271), 7)
    y = np.zeros(x.shape, target)
    call("copy", [x], [y], isa=isa)
    with np.errstate(all="ignore"):
        expected = oracle.cast(x, target)
    assert same(y, expected)
    strided = np.zeros((3, 542), target)[:, ::2]
    call("copy", [np.repeat(x, 2, axis=1)[:, ::2]], [strided], isa=isa)
    assert same(np.ascontiguousarray(strided), expected)


@pytest.mark.parametrize("target", [np.int8, np.int32, np.int64, np.uint8, np.bool_, np.float16, ml_dtypes.bfloat16])
def test_cast_agrees_with_onnxruntime_in_range(target):
    import onnxruntime as ort

    x = np.array([0.0, 0.4, 0.5, 0.9, 1.5, 2.5, 99.99, 3.0001, 6.1e-5, 5.9e-8], np.float32)
    number = ELEMENT_TYPES[np.dtype(target)]
    node = onnx.helper.make_node("Cast", ["x"], ["h"], to=number)
    back = onnx.helper.make_node("Cast", ["h"], ["y"], to=onnx.TensorProto.FLOAT)
    y = np.zeros(x.shape, target)
    call("copy", [x], [y])
    assert np.array_equal(run_ort(ort, [node, back], {"x": x})[0], y.astype(np.float32))


def run_ort(ort, nodes, feeds):
    infos = [onnx.helper.make_tensor_value_info(k, ELEMENT_TYPES[v.dtype], v.shape) for k, v in feeds.items()]
    output = onnx.helper.make_tensor_value_info(nodes[-1].output[0], onnx.TensorProto.FLOAT, None)
    graph = onnx.helper.make_graph(nodes, "g", infos, [output])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)], ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


@given(st.data())
def test_copy_between_any_views(data):
    shape = data.draw(shapes())
    source, target = data.draw(st.sampled_from(FLOATS)), data.draw(st.sampled_from(FLOATS))
    x, y = data.draw(views(shape, source)), data.draw(views(shape, target))
    x[...] = np.random.default_rng(0).integers(-99, 99, shape)
    surroundings(y).fill(77)
    expected = surroundings(y).copy()
    call("copy", [x], [y], threads=2, isa=data.draw(st.sampled_from(ISAS)))
    assert np.array_equal(y, x.astype(target))
    y[...] = 77
    assert np.array_equal(surroundings(y), expected), "bytes outside the view were written"


def test_copy_of_a_broadcast_view_and_of_many_tasks():
    x = np.broadcast_to(np.arange(300, dtype=np.float32)[:, None], (300, 1000))
    y, z = np.zeros((300, 1000), np.float32), np.zeros((1000, 300), np.float16)
    call("copy", [x], [y], threads=2)
    call("copy", [y.T], [z], threads=2)
    assert np.array_equal(y, x) and np.array_equal(z, x.T.astype(np.float16))
    again = np.zeros(x.shape, np.float64)
    call("copy", [y], [again], threads=2)
    assert np.array_equal(again, x), "one long row, cut into tasks"


@given(st.data())
def test_cache_update_writes_its_window_and_nothing_else(data):
    rank = data.draw(st.integers(2, 4))
    axis, batch_axis = data.draw(st.permutations(range(rank)))[:2]
    shape = [data.draw(st.sampled_from([1, 2, 3, 9])) for _ in range(rank)]
    shape[axis] = data.draw(st.integers(0, 9))
    n = data.draw(st.integers(0, shape[axis] + 1))
    cache = data.draw(views(tuple(shape), data.draw(st.sampled_from(FLOATS))))
    values_shape = tuple(n if i == axis else size for i, size in enumerate(shape))
    values = data.draw(views(values_shape, data.draw(st.sampled_from(FLOATS))))
    values[...] = np.random.default_rng(1).integers(-99, 99, values_shape)
    surroundings(cache).fill(5)
    places = st.sampled_from([-(2**63), -1, 0, 1, 2, 2**62, 2**63 - 1]) | st.integers(0, 9)
    scalar = data.draw(st.booleans())
    named = axis if scalar and data.draw(st.booleans()) else batch_axis  # of no meaning for a scalar: any axis will do
    rows = 1 if scalar else shape[batch_axis]
    position = np.array([data.draw(places) for _ in range(rows)], np.int64)
    if scalar:
        position = position.reshape(())
    before = surroundings(cache).copy()
    expected = oracle.cache_update(cache, values, position, axis, batch_axis)
    call("cache_update", [cache, values, position], [cache], [axis, named], threads=2)
    assert np.array_equal(cache, expected)
    cache[...] = 5
    assert np.array_equal(surroundings(cache), before), "bytes outside the cache were written"


def test_cache_update_of_a_long_prompt_in_parallel():
    cache = np.zeros((2, 3, 700, 64), np.float16)
    values = np.random.default_rng(3).normal(size=(2, 600, 3, 64)).astype(np.float32).transpose(0, 2, 1, 3)
    position = np.array([100, 7], np.int64)
    expected = oracle.cache_update(cache, values, position, 2, 0)
    call("cache_update", [cache, values, position], [cache], [2, 0], threads=2)
    assert np.array_equal(cache, expected)


def test_checks_report_the_first_value_out_of_range():
    assert call("check_position", [np.array(5, np.int64)], [], [5]) is None
    assert call("check_position", [np.array(6, np.int64)], [], [5]) == (1, 6, 0, 5, 0)
    assert call("check_position", [np.array([0, 3, -1, 9], np.int64)], [], [5]) == (1, -1, 0, 5, 2)
    assert call("check_position", [np.array([], np.int64)], [], [5]) is None
    assert call("check_position", [np.array(0, np.int64)], [], [-1]) == (1, 0, 0, -1, 0)
    for dtype in (np.int64, np.int32):
        assert call("check_indices", [np.array([[-4, 3], [0, 1]], dtype)], [], [4]) is None
        assert call("check_indices", [np.array([[-4, 3], [4, -5]], dtype)], [], [4]) == (2, 4, -4, 3, 2)
        assert call("check_indices", [np.array([-5], dtype)], [], [4]) == (2, -5, -4, 3, 0)


@given(st.data())
def test_gather_rows_of_any_view(data):
    shape = data.draw(shapes(1, 3))
    axis = data.draw(st.integers(0, len(shape) - 1))
    dtype = data.draw(st.sampled_from([np.float32, np.float16, np.int64, np.uint8]))
    x = data.draw(views(shape, dtype))
    x[...] = np.arange(x.size).reshape(shape)
    indices_shape = data.draw(shapes(0, 2))
    size = shape[axis]
    inside = st.integers(-size, size - 1) if size else st.just(0)
    wild = st.sampled_from([-(2**31), -size - 1, size, 2**31 - 1])
    count = int(np.prod(indices_shape))
    flat = data.draw(st.lists(inside | wild, min_size=count, max_size=count))
    indices = np.array(flat, data.draw(st.sampled_from([np.int64, np.int32]))).reshape(indices_shape)
    good = (indices >= -size) & (indices < size)
    expected_shape = shape[:axis] + indices_shape + shape[axis + 1 :]
    expected = np.zeros(expected_shape, dtype)
    if size:
        expected = np.take(x, np.where(good, indices, 0), axis)
        expected = np.where(good.reshape([*good.shape, *[1] * (len(shape) - axis - 1)]), expected, 0)
    y = data.draw(views(expected_shape, dtype))
    call("gather", [x, indices], [y], [axis], threads=2)
    assert np.array_equal(y, expected)


@given(st.data())
def test_concat_and_where_of_any_views(data):
    shape = data.draw(shapes(1, 3))
    axis = data.draw(st.integers(0, len(shape) - 1))
    parts = []
    for k in range(data.draw(st.integers(1, 4))):
        part_shape = list(shape)
        part_shape[axis] = data.draw(SIZES)
        part = data.draw(views(tuple(part_shape), np.float16))
        part[...] = k + np.arange(part.size).reshape(part_shape)
        parts.append(part)
    expected = np.concatenate(parts, axis)
    y = data.draw(views(expected.shape, np.float16))
    call("concat", parts, [y], [axis], threads=2)
    assert np.array_equal(y, expected)

    mask = np.random.default_rng(4).random(shape) < 0.5
    for dtype in (np.uint8, np.float16, np.float32, np.int64):
        a, b, out = (data.draw(views(shape, dtype)) for _ in range(3))
        a[...], b[...] = 1, np.broadcast_to(np.arange(shape[-1]), shape)
        call("where", [mask, a, np.broadcast_to(b[..., :1], shape) if shape[-1] else b], [out], threads=2)
        assert np.array_equal(out, np.where(mask, a, b[..., :1] if shape[-1] else b))


def test_gather_agrees_with_the_reference_evaluator():
    x, indices = np.arange(60, dtype=np.float32).reshape(3, 4, 5), np.array([[0, -1], [2, 3]], np.int64)
    node = onnx.helper.make_node("Gather", ["x", "i"], ["y"], axis=1)
    expected = ReferenceEvaluator(node).run(None, {"x": x, "i": indices})[0]
    y = np.zeros(expected.shape, np.float32)
    call("gather", [x, indices], [y], [1])
    assert np.array_equal(y, expected)


F, I64 = np.zeros((2, 3), np.float32), np.zeros((), np.int64)


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "ints", "text"),
    [
        ("copy", [F], [F[:, ::-1]], [], "negative stride"),
        ("copy", [F[::-1]], [F], [], "negative stride"),
        ("copy", [F], [np.broadcast_to(F[:1], (2, 3))], [], "repeats elements"),
        ("copy", [F], [F[:1]], [], "expected the output's dims"),
        ("copy", [F, F], [F], [], "2 inputs"),
        ("copy", [None], [F], [], "absent"),
        ("gather", [F, I64], [F[0]], [2], "axis 2"),
        ("gather", [F, I64], [F[0]], [-1], "axis -1"),
        ("gather", [F, F[0]], [F], [0], "INT64 or INT32"),
        ("gather", [F, I64], [F], [0], "replaced by the dims"),
        ("gather", [F, I64], [np.zeros(3, np.float16)], [0], "data"),
        ("concat", [F, F], [F], [0], "along axis 0"),
        ("concat", [F, F], [np.zeros((4, 4), np.float32)], [0], "differ on more"),
        ("where", [F, F, F], [F], [], "expected BOOL"),
        ("cache_update", [F, F, np.zeros(2, np.int64)], [F], [0, 0], "two axes"),
        ("cache_update", [F, F, I64], [F], [2, 0], "two axes"),
        ("cache_update", [F, F, I64], [F.T.copy().T], [1, 0], "same view"),
        ("cache_update", [F, F[:1], I64], [F], [1, 0], "values are"),
        ("cache_update", [F, F, np.zeros(3, np.int64)], [F], [1, 0], "position is"),
        ("cache_update", [F, F, np.zeros((), np.int32)], [F], [1, 0], "position is"),
        ("check_position", [F], [], [3], "position is"),
        ("check_indices", [np.zeros((3, 2), np.int64).T], [], [3], "contiguous"),
    ],
)
def test_validation_names_what_does_not_fit(name, inputs, outputs, ints, text):
    with pytest.raises(ValueError, match=text):
        call(name, inputs, outputs, ints)
