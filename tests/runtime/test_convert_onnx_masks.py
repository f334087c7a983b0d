"""A mask is dropped only when it is proved to be the causal one, for every length and content of the inputs."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import parser

from tenonnx.convert.editing import Editor
from tenonnx.convert.symbolic import Causal, Formulas, Linear, causal
from tenonnx.convert.types import known_types
from tenonnx.schema.messages import from_onnx

HEAD = """<ir_version: 10, opset_import: ["": 23]>
mask (int64[batch, n] ids, int64[batch, total] padding, float[batch, 2, past, 8] cache) => (%s[a, b, c, d] mask)
<int64 zero = {0}, int64 one = {1}, int64 minus = {-1}, int64[1] first = {0}, int64[1] second = {1}, int64[1] three = {3},
 float none = {0.0}, float unit = {1.0}, float lowest = {-3.4028234663852886e38}, float some = {-1.0},
 int64[2] leading = {0, 1}, int64[3] row_axes = {0, 1, 2}, int64[3] column_axes = {0, 1, 3}, int64[2] inner = {1, 2}>
{
    p1 = Shape<start = 2, end = 3>(cache)
    n1 = Shape<start = 1, end = 2>(ids)
    p = Squeeze(p1)
    n = Squeeze(n1)
    t = Add(p, n)
    t1 = Add(p1, n1)
    rows = Range(zero, n, one)
    queries = Add(rows, p)
    positions = Range(zero, t, one)
    i = Unsqueeze(queries, column_axes)
    j = Unsqueeze(positions, row_axes)
    seen = LessOrEqual(j, i)
    %s
}"""
PADDED = """flags = Cast<to = 9>(padding)
    spread = Unsqueeze(flags, inner)
    """

CAUSAL = {
    "less or equal": "mask = Identity(seen)",
    "greater or equal": "mask = GreaterOrEqual(i, j)",
    "not greater": "later = Greater(j, i)\n    mask = Not(later)",
    "less than the next": "next = Add(i, one)\n    mask = Less(j, next)",
    "repeated for the batch": """b1 = Shape<end = 1>(ids)
    s = Concat<axis = 0>(b1, second, n1, t1)
    mask = Expand(seen, s)""",
    "and what always holds": "all = GreaterOrEqual(j, zero)\n    mask = And(all, seen)",
    "and a bound that holds": "inside = Less(j, t)\n    mask = And(seen, inside)",
    "a lower triangle": """s = Concat<axis = 0>(t1, t1)
    ones = ConstantOfShape<value = bool[1] {1}>(s)
    square = Trilu<upper = 0>(ones)
    last = Slice(square, p1, t1, first)
    mask = Unsqueeze(last, leading)""",
    "chosen": "number = Where(seen, one, zero)\n    mask = Cast<to = 9>(number)",
}
SCORES = {
    "chosen scores": "mask = Where(seen, none, lowest)",
    "hidden times lowest": "f = Cast<to = 1>(seen)\n    h = Sub(unit, f)\n    mask = Mul(h, lowest)",
    "an upper triangle": """s = Concat<axis = 0>(n1, t1)
    full = Expand(lowest, s)
    next = Add(p, one)
    upper = Trilu(full, next)
    mask = Unsqueeze(upper, leading)""",
}
PADDING = {
    "and padding": PADDED + "mask = And(seen, spread)",
    "padding by index": """flags = Cast<to = 9>(padding)
    b1 = Shape<end = 1>(ids)
    b = Squeeze(b1)
    batches = Range(zero, b, one)
    column = Unsqueeze(batches, column_index)
    s = Concat<axis = 0>(b1, t1, second)
    bs = Expand(column, s)
    row = Unsqueeze(positions, row_index)
    js = Expand(row, s)
    both = Concat<axis = -1>(bs, js)
    picked = GatherND(flags, both)
    spread = Unsqueeze(picked, inner)
    mask = And(spread, seen)""",
}
OTHER = {
    "strictly before": "mask = Less(j, i)",
    "one more": "later = Add(i, one)\n    mask = LessOrEqual(j, later)",
    "the first rows": "k = Unsqueeze(rows, column_axes)\n    mask = LessOrEqual(j, k)",
    "a window": "near = Sub(i, one)\n    w = Greater(j, near)\n    mask = And(seen, w)",
    "or": "w = Equal(j, zero)\n    mask = Or(seen, w)",
    "everything": "s = Concat<axis = 0>(second, second, n1, t1)\n    mask = ConstantOfShape<value = bool[1] {1}>(s)",
    "nothing hidden by the mask": "mask = GreaterOrEqual(j, zero)",
    "the other padding": PADDED + "f = Not(spread)\n    mask = And(seen, f)",
    "padding alone": PADDED + "mask = And(spread, spread)",
}
OTHER_SCORES = {
    "only discouraged": "mask = Where(seen, none, some)",
    "encouraged": "mask = Where(seen, unit, lowest)",
    "turned round": "mask = Where(seen, lowest, none)",
}


def model_of(body: str, kind: str = "bool") -> onnx.ModelProto:
    text = HEAD % (kind, body)
    text = text.replace("int64[2] inner", "int64[2] column_index = {1, 2}, int64[2] row_index = {0, 2}, int64[2] inner")
    return parser.parse_model(text)


def proof(stock: onnx.ModelProto) -> Causal | None:
    model = from_onnx(stock)
    past = Linear.symbol("past")
    formulas = Formulas(Editor(model), known_types(model), {"total": past + Linear.symbol("n")})
    return causal(formulas, "mask", past)


def visible(stock: onnx.ModelProto, batch: int, n: int, past: int, padding: np.ndarray) -> np.ndarray:
    """What onnxruntime makes of the mask: BOOL[batch, 1, n, past + n], scores being visible where they are 0."""
    session = onnxruntime.InferenceSession(stock.SerializeToString())
    wanted = {value.name for value in session.get_inputs()}
    feeds = {"ids": np.zeros((batch, n), np.int64), "padding": padding, "cache": np.zeros((batch, 2, past, 8), np.float32)}
    (mask,) = session.run(None, {name: value for name, value in feeds.items() if name in wanted})
    return np.broadcast_to(mask if mask.dtype == bool else mask == 0, (batch, 1, n, past + n))


def expected(found: Causal, batch: int, n: int, past: int, padding: np.ndarray) -> np.ndarray:
    seen = np.arange(past + n)[None] <= past + np.arange(n)[:, None]
    flags = padding != 0 if found.padding else np.ones_like(padding, bool)
    return np.broadcast_to(seen[None, None] & flags[:, None, None], (batch, 1, n, past + n))


CASES = [(body, "bool", "") for body in CAUSAL.values()]
CASES += [(body, "float", "") for body in SCORES.values()]
CASES += [(body, "bool", "padding") for body in PADDING.values()]


@pytest.mark.parametrize(("body", "kind", "padding"), CASES, ids=[*CAUSAL, *SCORES, *PADDING])
def test_causal_masks_are_proved_and_are_what_the_proof_says(body: str, kind: str, padding: str) -> None:
    stock = model_of(body, kind)
    found = proof(stock)
    assert found == Causal(padding)
    for batch, n, past in ((1, 1, 0), (2, 3, 4), (2, 1, 5), (3, 4, 0)):
        flags = np.random.default_rng(n).integers(0, 2, (batch, past + n))
        assert (visible(stock, batch, n, past, flags) == expected(found, batch, n, past, flags)).all()


REST = [(body, "bool") for body in OTHER.values()] + [(body, "float") for body in OTHER_SCORES.values()]


@pytest.mark.parametrize(("body", "kind"), REST, ids=[*OTHER, *OTHER_SCORES])
def test_other_masks_are_not(body: str, kind: str) -> None:
    assert proof(model_of(body, kind)) is None


SIDES = ("i", "j", "zero", "t", "p")
comparisons = st.tuples(
    st.sampled_from(SIDES),
    st.sampled_from(("Less", "LessOrEqual", "Greater", "GreaterOrEqual")),
    st.sampled_from(SIDES),
    st.integers(-1, 1),
    st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(comparisons, min_size=1, max_size=3), st.sampled_from(("And", "Or")), st.booleans())
def test_whatever_is_proved_is_true(parts: list[tuple[str, str, str, int, bool]], joined: str, padded: bool) -> None:
    """Random comparisons, shifted, negated and joined, many of them causal: a proof is never wrong."""
    lines = [PADDED if padded else "", "m0 = And(seen, spread)" if padded else "m0 = Identity(seen)"]
    for number, (a, op, b, shift, negate) in enumerate(parts, 1):
        lines += [f"k{number} = Constant<value_int = {shift}>()", f"s{number} = Add({b}, k{number})"]
        lines += [f"c{number} = {op}({a}, s{number})"]
        source = f"c{number}"
        if negate:
            lines.append(f"d{number} = Not(c{number})")
            source = f"d{number}"
        lines.append(f"m{number} = {joined}(m{number - 1}, {source})")
    lines.append(f"mask = Identity(m{len(parts)})")
    stock = model_of("\n    ".join(lines))
    found = proof(stock)
    if found is not None:
        for batch, n, past in ((1, 1, 1), (2, 3, 2), (1, 2, 0)):
            flags = np.random.default_rng(5).integers(0, 2, (batch, past + n))
            assert (visible(stock, batch, n, past, flags) == expected(found, batch, n, past, flags)).all()
