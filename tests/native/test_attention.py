import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from tests.native.kernels import ISAS, call
from tests.native.layouts import views
from tests.oracle import attention as oracle

isas = pytest.mark.parametrize("isa", ISAS)
CACHE_TYPES = [np.float32, np.float16, ml_dtypes.bfloat16]
HEADS = st.sampled_from([1, 3, 8, 15, 16, 17, 32, 33, 64, 80, 100])
HOSTILE = [-(2**63), -1, 2**62, 2**63 - 1]


def workspace_bytes(batch, heads, n, capacity, value):
    return 4 * batch * heads * n * -(-capacity // 128) * (value + 2)


def tiled(q, k, v, mask, lengths, y, ints, floats, threads, isa):
    call("attention", [q, k, v, mask, lengths], [y], ints, floats, threads, isa)


def split(q, k, v, mask, lengths, y, ints, floats, threads, isa):
    size = workspace_bytes(*q.shape[:3], k.shape[2], v.shape[3])
    workspace = np.full(size // 4, np.nan, np.float32).view(np.uint8)
    call("attention_partial", [q, k, v, mask, lengths], [workspace], ints, floats, threads, isa)
    call("attention_combine", [workspace, lengths], [y], [k.shape[2]], [], threads, isa)


both = pytest.mark.parametrize("run", [tiled, split])


@st.composite
def problems(draw, capacities=(0, 1, 5, 63, 64, 65, 127, 128, 129, 300)):
    """Arguments of attention, NaN in every key and value past the valid ones."""
    batch, kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 5))
    n, capacity = draw(st.sampled_from([1, 2, 3, 7, 13, 30])), draw(st.sampled_from(capacities))
    head, value = draw(HEADS), draw(HEADS)
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    q = draw(views((batch, kv_heads * group, n, head), np.float32, unit_last=True))
    y = draw(views((batch, kv_heads * group, n, value), np.float32, unit_last=True))
    k = draw(views((batch, kv_heads, capacity, head), draw(st.sampled_from(CACHE_TYPES)), unit_last=True))
    v = draw(views((batch, kv_heads, capacity, value), draw(st.sampled_from(CACHE_TYPES)), unit_last=True))
    q[...], k[...], v[...] = rng.normal(size=q.shape) * 2, rng.normal(size=k.shape), rng.normal(size=v.shape)
    lengths = None
    if draw(st.booleans()):
        near = [0, max(n - 1, 0), n, capacity, capacity + 5]
        length = st.sampled_from(near + HOSTILE) | st.integers(0, capacity)
        lengths = np.array([draw(length) for _ in range(batch)], np.int64)
        for row in range(batch):
            k[row, :, max(lengths[row], 0) :], v[row, :, max(lengths[row], 0) :] = np.nan, np.nan
    mask = None
    kind = draw(st.sampled_from(["none", "none", "bool", "float"]))
    if kind != "none":
        total = capacity - draw(st.sampled_from([0, 0, min(3, capacity)]))
        shape = [draw(st.sampled_from([1, size])) for size in q.shape[:3]] + [total]
        mask = rng.random(shape) < 0.7
        if kind == "float":
            mask = np.where(mask, rng.normal(size=shape), -np.inf).astype(np.float32)
        mask = np.broadcast_to(mask, (*q.shape[:3], total))
    ints = [int(draw(st.booleans())), draw(st.sampled_from([-1, -1, 0, 3, 70, 2**63 - 1]))]
    floats = [head**-0.5, draw(st.sampled_from([0.0, 0.0, 5.0]))]
    return (q, k, v, mask, lengths, y), ints, floats


@both
@isas
@given(problems())
def test_against_float64(run, isa, problem):
    (q, k, v, mask, lengths, y), ints, floats = problem
    expected = oracle.attention(q, k, v, mask, lengths, bool(ints[0]), ints[1], *floats)
    y[...] = np.nan
    run(q, k, v, mask, lengths, y, ints, floats, 2, isa)
    np.testing.assert_allclose(y, expected, rtol=2e-5, atol=5e-6)
    alone = np.full(y.shape, np.nan, np.float32)
    run(q, k, v, mask, lengths, alone, ints, floats, 1, isa)
    assert np.array_equal(alone, y), "bits depend on the number of threads"


@isas
def test_split_and_tiled_agree(isa):
    rng = np.random.default_rng(0)
    q = rng.normal(size=(2, 6, 5, 64)).astype(np.float32)
    k, v = rng.normal(size=(2, 2, 2, 900, 64)).astype(np.float16)
    lengths = np.array([900, 641], np.int64)
    results = np.zeros((2, 2, 6, 5, 64), np.float32)
    for run, y in zip((tiled, split), results, strict=True):
        run(q, k, v, None, lengths, y, [1, -1], [0.125, 0.0], 2, isa)
    np.testing.assert_allclose(results[0], results[1], rtol=2e-6, atol=3e-7)
    expected = oracle.attention(q, k, v, None, lengths, True, -1, 0.125)
    np.testing.assert_allclose(results[0], expected, rtol=2e-6, atol=3e-7)


@both
@isas
def test_a_long_prompt_of_grouped_heads_through_transposed_views(run, isa):
    rng = np.random.default_rng(1)
    n, length = 75, 411
    q = rng.normal(size=(1, n, 6, 64)).astype(np.float32).transpose(0, 2, 1, 3)
    k, v = rng.normal(size=(2, 1, 500, 2, 64)).astype(np.float16).transpose(0, 1, 3, 2, 4)
    k[:, :, length:], v[:, :, length:] = np.nan, np.nan
    y = np.zeros((1, n, 6, 64), np.float32)
    lengths = np.array([length], np.int64)
    run(q, k, v, None, lengths, y.transpose(0, 2, 1, 3), [1, -1], [0.125, 0.0], 2, isa)
    expected = oracle.attention(q, k, v, None, lengths, True, -1, 0.125)
    np.testing.assert_allclose(y.transpose(0, 2, 1, 3), expected, rtol=1e-5, atol=1e-6)


@both
@isas
@pytest.mark.parametrize("length", [128, 129, 130, 131, 132, 257, 259])
def test_a_window_that_begins_anywhere_in_a_chunk(run, isa, length):
    rng = np.random.default_rng(4)
    q, y = rng.normal(size=(1, 4, 1, 16)).astype(np.float32), np.zeros((1, 4, 1, 16), np.float32)
    k, v = rng.normal(size=(2, 1, 1, 260, 16)).astype(np.float16)
    lengths = np.array([length], np.int64)
    run(q, k, v, None, lengths, y, [1, 127], [0.25, 0.0], 1, isa)
    expected = oracle.attention(q, k, v, None, lengths, True, 127, 0.25)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


@both
@isas
@pytest.mark.parametrize("size", [256, 511, 512])
def test_large_heads(run, isa, size):
    rng = np.random.default_rng(2)
    q = rng.normal(size=(1, 5, 3, size)).astype(np.float32)
    k, v = rng.normal(size=(2, 1, 5, 70, size)).astype(np.float16)
    y = np.zeros(q.shape, np.float32)
    run(q, k, v, None, None, y, [0, -1], [size**-0.5, 0.0], 2, isa)
    np.testing.assert_allclose(y, oracle.attention(q, k, v, scale=size**-0.5), rtol=1e-5, atol=1e-6)


@both
def test_a_nan_that_is_seen_comes_out_and_one_masked_away_does_not(run):
    q, k = np.ones((1, 1, 1, 8), np.float32), np.ones((1, 1, 3, 8), np.float32)
    k[0, 0, 1] = np.nan
    v, y = np.ones((1, 1, 3, 8), np.float32), np.zeros((1, 1, 1, 8), np.float32)
    run(q, k, v, None, None, y, [0, -1], [1.0, 0.0], 1, "")
    assert np.isnan(y).all()
    for mask in (np.array([[[[True, False, True]]]]), np.array([[[[0, -np.inf, 0]]]], np.float32)):
        run(q, k, v, mask, None, y, [0, -1], [1.0, 0.0], 1, "")
        assert np.array_equal(y, np.ones_like(y))
    run(q, k, v, np.zeros((1, 1, 1, 3), np.bool_), None, y, [0, -1], [1.0, 0.0], 1, "")
    assert np.array_equal(y, np.zeros_like(y)), "a query that sees nothing gives zeros"


@both
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("lengths", [None, [9, 4]])
@pytest.mark.parametrize("kind", ["none", "bool", "float"])
@pytest.mark.parametrize("softcap", [0.0, 3.0])
def test_agrees_with_the_reference_evaluator(run, causal, lengths, kind, softcap):
    rng = np.random.default_rng(3)
    feeds = {
        "q": rng.normal(size=(2, 6, 4, 16)).astype(np.float32),
        "k": rng.normal(size=(2, 2, 12, 16)).astype(np.float32),
        "v": rng.normal(size=(2, 2, 12, 24)).astype(np.float32),
    }
    mask = None
    if kind != "none":
        mask = rng.random((2, 6, 4, 12)) < 0.8
        mask = mask if kind == "bool" else rng.normal(size=mask.shape).astype(np.float32)
        feeds["mask"] = mask
    if lengths is not None:
        feeds["lengths"] = lengths = np.array(lengths, np.int64)
    names = [name if name in feeds else "" for name in ("q", "k", "v", "mask", "past_k", "past_v", "lengths")]
    attributes = {"is_causal": causal, "scale": 0.3, **({"softcap": softcap} if softcap else {})}
    node = onnx.helper.make_node("Attention", names, ["y"], **attributes)
    types = {np.dtype(np.float32): 1, np.dtype(np.bool_): 9, np.dtype(np.int64): 7}
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [onnx.helper.make_tensor_value_info(name, types[x.dtype], x.shape) for name, x in feeds.items()],
        [onnx.helper.make_tensor_value_info("y", 1, None)],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 24)])
    expected = ReferenceEvaluator(model).run(None, feeds)[0]
    y = np.zeros(expected.shape, np.float32)
    run(feeds["q"], feeds["k"], feeds["v"], mask, lengths, y, [causal, -1], [0.3, softcap], 2, "")
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


Q, K = np.zeros((2, 4, 3, 8), np.float32), np.zeros((2, 2, 9, 8), np.float16)
WIDE = np.zeros((2, 2, 9, 513), np.float16)


@pytest.mark.parametrize(
    ("inputs", "output", "ints", "text"),
    [
        ([Q.astype(np.float16), K, K], Q, [0, -1], "q is FLOAT16"),
        ([Q[0], K, K], Q, [0, -1], "q is"),
        ([Q, K[:1], K], Q, [0, -1], "k is"),
        ([Q, K[..., :7], K], Q, [0, -1], "k is"),
        ([Q, K.astype(np.int8), K], Q, [0, -1], "k is"),
        ([Q, K, K[:, :, :8]], Q, [0, -1], "v is"),
        ([Q, K, np.zeros((2, 2, 8, 9), np.float16).transpose(0, 1, 3, 2)], Q, [0, -1], "v is"),
        ([Q[:, :3], K, K], Q[:, :3], [0, -1], "2 heads of k"),
        ([Q, K[:, :0], K[:, :0]], Q, [0, -1], "0 heads of k"),
        ([Q, K, WIDE], np.zeros((2, 4, 3, 513), np.float32), [0, -1], "up to 512"),
        ([Q, K, K, np.zeros((2, 4, 3, 10), np.bool_)], Q, [0, -1], "mask is"),
        ([Q, K, K, np.zeros((2, 1, 3, 9), np.bool_)], Q, [0, -1], "mask is"),
        ([Q, K, K, np.zeros((2, 4, 3, 9), np.float16)], Q, [0, -1], "mask is"),
        ([Q, K, K, None, np.zeros(1, np.int64)], Q, [0, -1], "lengths are"),
        ([Q, K, K, None, np.zeros(2, np.int32)], Q, [0, -1], "lengths are"),
        ([Q, K, K], Q[..., :7], [0, -1], "output is"),
        ([Q, K, K], Q, [0], "1 integer arguments"),
    ],
)
def test_validation_names_what_does_not_fit(inputs, output, ints, text):
    with pytest.raises(ValueError, match=text):
        call("attention", inputs, [output], ints, [1.0, 0.0])


def test_a_small_workspace_is_refused():
    small = np.zeros(workspace_bytes(2, 4, 3, 9, 8) - 1, np.uint8)
    with pytest.raises(ValueError, match="workspace is"):
        call("attention_partial", [Q, K, K], [small], [0, -1], [1.0, 0.0])
    with pytest.raises(ValueError, match="workspace is"):
        call("attention_combine", [small], [Q], [9])
