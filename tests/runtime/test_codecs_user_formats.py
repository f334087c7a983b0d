"""Formats that a stranger writes: decoders in NumPy, in ONNX text and as a function, and how models know them."""

from __future__ import annotations

import numpy as np
import pytest

from tenonnx import codecs, structs
from tenonnx.codecs import engines
from tenonnx.errors import CheckError, ShapeError
from tenonnx.schema.messages import ModelProto, StructProto, to_onnx
from tenonnx.structs import Format, bf16, bits, catalogue, constant, declare, f16, f32, functions, i8, recognize, structure, u8
from tenonnx.structs.catalogue import Catalogue
from tenonnx.structs.decoders import decoder_model

rng = np.random.default_rng(0)

PAIRS = structure("PAIRS", d=f16, qs=bits(lo=4, hi=4)[4], table=constant([0.5, 1, 2, 4], f32), small=i8[8], top=bf16)


def agrees(decoder, block_shape=(8,), block=PAIRS):
    """A NumPy decoder gives the same as its ONNX function in both engines, on random blocks and on none."""
    fmt = Format("USER", block, block_shape, decoder)
    for count in (5, 0):
        payload = rng.integers(0, 256, (count, fmt.nbytes), np.uint8)
        payload[:, 1] &= 0x3B  # a finite scale
        payload[:, -1] &= 0x3F
        shape = (count, *block_shape)
        expected = fmt.decode(payload, shape)
        model = ModelProto(ir_version=11)
        root = declare(model, fmt, shape)
        places = structs.leaves(structs.physical(root, model.struct_types))
        runnable = decoder_model(model.struct_types[root].decoder, places, functions.index(model))
        leaves = structs.view(payload.reshape(-1), root, model.struct_types).leaves()
        np.testing.assert_array_equal(engines._onnxruntime(runnable, "w")(leaves)[0], expected)
        np.testing.assert_array_equal(engines._reference(runnable, "w")(leaves)[0], expected)


def f(array):
    return array.astype(np.float32)


def wide(x):
    """Eight codes as INT32."""
    return np.concatenate((x.qs.lo, x.qs.hi), axis=1).astype(np.int32)


DECODERS = {
    "arithmetic": lambda x: (f(wide(x)) - 8) * f(x.d)[:, None] / 2 + -f(x.small),
    "reflected": lambda x: 8 - 2 * f(wide(x)),
    "powers": lambda x: np.exp(f(x.small) / 64) * 0 + f(wide(x)) ** 2 + np.sqrt(f(wide(x))),
    "bits": lambda x: f(np.concatenate(((x.qs.lo | x.qs.hi << 4) & 0x7F ^ 1, ~x.qs.hi >> 2), axis=1)),
    "comparison": lambda x: np.where((wide(x) >= 8) | (x.small == 0), f(x.small), np.float32(-1)),
    "order": lambda x: sum(
        f(test) * 2**place
        for place, test in enumerate((wide(x) < 8, wide(x) <= 8, wide(x) > 8, wide(x) >= 8, wide(x) == 8, wide(x) != 8))
    ),
    "logic": lambda x: np.where(np.logical_and(x.small > 3, np.logical_not(x.small <= 9)), f(x.small), f(wide(x))),
    "minimum": lambda x: np.minimum(np.maximum(f(x.small), -3), np.abs(f(wide(x)) - 7)),
    "table": lambda x: x.table[wide(x) & 3],
    "take": lambda x: np.take(x.table, (wide(x) & 3).astype(np.uint8)),
    "along": lambda x: np.take_along_axis(f(x.small), (wide(x) & 7).astype(np.int64), axis=1),
    "slices": lambda x: np.concatenate((f(x.small)[:, :3], f(x.small)[:, 7:2:-1]), axis=1),
    "reversed": lambda x: f(x.small)[:, ::-1],
    "integers": lambda x: f(x.small) + f(x.small)[:, 2][..., None] + f(x.small)[:, -1, None],
    "stack": lambda x: f(np.stack(x.qs.leaves(), axis=-1)).reshape(-1, 8),
    "transposed": lambda x: np.transpose(f(x.small).reshape(-1, 4, 2), (0, 2, 1)).reshape((-1, 8)),
    "sum": lambda x: f(x.small) - np.sum(f(x.small), axis=1, keepdims=True) + f(wide(x).sum(axis=1))[:, None],
    "unsigned": lambda x: f(np.concatenate((x.qs.lo - x.qs.hi, x.qs.lo * 99), axis=1)),
    "bfloat16": lambda x: f(x.top)[:, None] + f(x.small),
    "by name": lambda x: f(x["small"]) * x["table"][3],
}  # fmt: skip


@pytest.mark.parametrize("decoder", DECODERS.values(), ids=DECODERS)
def test_what_numpy_computes_the_traced_function_computes(decoder):
    agrees(decoder)


def test_blocks_of_no_axis_and_of_two():
    agrees(lambda x: f(x.d), ())
    agrees(lambda x: f(x.small).reshape(-1, 2, 4) * f(x.d).reshape(-1, 1, 1), (2, 4))
    agrees(lambda values: f(values) * 2, (), f16)


@pytest.mark.parametrize(
    ("decoder", "message"),
    [
        (lambda x: x.q, r"has no field 'q'; it has d, qs, table, small, top"),
        (lambda x: x.qs.mid, r"USER.qs has no field 'mid'; it has lo, hi"),
        (lambda x: x.small, r"gives int8\[-1, 8\]; expected float32\[-1, 8\]"),
        (lambda x: f(x.d), r"gives float32\[-1\]"),
        (lambda x: np.zeros(8, np.float32), "gives array"),
        (lambda x: f(x.small) * f(x.d), "could not be broadcast"),
        (lambda x: np.tan(f(x.small)), r"numpy.tan, which has no ONNX operator here"),
        (lambda x: np.fft.fft(f(x.small)), r"numpy.fft, which has no ONNX operator"),
        (lambda x: f(x.small)[0], "selects among its blocks"),
        (lambda x: f(x.small).reshape(13, 8), "give the first axis as -1"),
        (lambda x: f(x.small).reshape(len(x.small), 8), "the number of blocks is not known"),
        (lambda x: f(x.small << 1), "cast it to an unsigned type first"),
        (lambda x: f(x.small) + np.zeros(8, np.complex64), "expected float32"),
        (lambda x: f(x.small) if x.d > 0 else 1, "choose with numpy.where"),
        (lambda x: np.arange(16, dtype=np.float32)[x.qs.lo], "is a constant of the block type"),
        (lambda x: np.take(np.arange(16, dtype=np.float32), x.qs.lo), "is a constant of the block type"),
    ],
)
def test_a_decoder_that_cannot_be_traced_says_why(decoder, message):
    fmt = Format("USER", PAIRS, (8,), decoder)
    with pytest.raises(CheckError, match=f"(?s)decoder of USER.*({message})"):
        _ = fmt.function


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Format("", PAIRS, (8,), f), "expected a name"),
        (lambda: Format("X", 3, (8,), f), "expected a name and a block type"),
        (lambda: Format("X", u8[0], (8,), f), "no bits"),
        (lambda: Format("X", u8[1], (0,), f), r"block shape \(0,\)"),
        (lambda: Format("X", bits(a=3)[1], (), f), "not whole bytes"),
        (lambda: Format("X", u8[1], (1,), "(a, b) => (y) { y = Add(a, b) }").function, "takes 2 inputs; expected one for each"),
        (lambda: Format("X", u8[1], (1,), "y = a").function, "is no ONNX text"),
    ],
)
def test_what_is_no_format_is_refused_where_it_is_made_or_asked_for(build, message):
    with pytest.raises(CheckError, match=message):
        build()


TEXT = """(d, lo, hi) => (decoded) {
  axis = Constant<value_ints = [1]>()
  packed = Concat<axis = 1>(lo, hi)
  codes = Cast<to = 1>(packed)
  wide = Cast<to = 1>(d)
  scale = Unsqueeze(wide, axis)
  decoded = Mul(codes, scale)
}"""
BLOCK = structure("PLAIN4", d=f16, qs=bits(lo=4, hi=4)[4])


class Scripted:
    """What onnxscript makes of a decorated function, as far as a format asks."""

    def to_function_proto(self):
        return to_onnx(functions.parse("other_name", TEXT))

    def __call__(self, *_):
        raise AssertionError("an onnxscript function is not called")


@pytest.mark.parametrize("decoder", [TEXT, functions.parse("any", TEXT), to_onnx(functions.parse("any", TEXT)), Scripted()])
def test_a_decoder_in_onnx_decodes_like_the_same_in_numpy(decoder):
    fmt = Format("PLAIN4", BLOCK, (8,), decoder)
    same = Format("PLAIN4", BLOCK, (8,), lambda x: f(np.concatenate((x.qs.lo, x.qs.hi), 1)) * f(x.d)[:, None])
    payload = rng.integers(0, 256, (4, fmt.nbytes), np.uint8)
    payload[:, 1] &= 0x3B
    np.testing.assert_array_equal(fmt.decode(payload, (2, 16)), same.decode(payload, (2, 16)))
    assert (fmt.function.domain, fmt.function.name) == ("tenonnx.formats", "PLAIN4")


def codebook(x):
    return np.take_along_axis(f(x.table), np.stack(x.codes.leaves(), 2).reshape(-1, 32).astype(np.int64), axis=1)


def to_codebook(values):
    """Eight levels between the extremes of each block, and the nearest of them for each value."""
    ends = values.min(axis=1), values.max(axis=1)
    table = np.linspace(*ends, 8, axis=1).astype(np.float16)
    nearest = np.abs(values[:, :, None] - f(table)[:, None, :]).argmin(axis=2).reshape(-1, 4, 8)
    return {"table": table, "codes": {f"c{place}": nearest[:, :, place] for place in range(8)}}


def codebook3():
    block = structure("CODEBOOK3", table=f16[8], codes=bits(c0=3, c1=3, c2=3, c3=3, c4=3, c5=3, c6=3, c7=3)[4])
    return Format("CODEBOOK3", block, (32,), codebook, to_codebook)


def test_a_format_of_three_bits_is_declared_encoded_looked_at_and_decoded():
    fmt = codebook3()
    values = rng.standard_normal((4, 64)).astype(np.float32)
    payload = fmt.encode(values)
    assert payload.size == fmt.blocks(values.shape) * 28
    model = ModelProto(ir_version=11)
    root = declare(model, fmt, values.shape)
    value = StructProto(name="w", type=root, raw_data=payload.tobytes())
    found = codecs.decode(value, model)
    assert np.abs(found - values).max() <= np.ptp(values.reshape(-1, 32), axis=1).max() / 14 + 1e-3
    np.testing.assert_array_equal(found, fmt.decode(payload, values.shape))
    view = structs.view(value, struct_types=model.struct_types)
    assert view.codes.c7.max() <= 7 and view[0].table.shape == (8,)


def test_wrong_leaves_from_an_encoder_are_named():
    fmt = Format("X", BLOCK, (8,), TEXT, lambda values: {"d": values[:, 0], "qs": {"lo": values}})
    with pytest.raises(ShapeError, match=r"X: expected the leaves d, qs.lo, qs.hi; found d, qs.lo"):
        fmt.encode(np.zeros(8))


def test_a_format_that_is_added_is_found_by_name_and_recognized(monkeypatch):
    fmt, own = codebook3(), Catalogue()
    monkeypatch.setitem(recognize.__globals__["Recognizer"]._recognize.__globals__, "catalogue", own)
    model = ModelProto(ir_version=11)
    root = declare(model, fmt, (2, 32))
    assert recognize(model, root) is None
    assert own.add(fmt) is fmt and own.add(fmt) is fmt
    found = recognize(model, root)
    assert found is not None and found.format is fmt and found.shape == (2, 32)
    assert own["codebook3"] is fmt and list(own)[-1] == "CODEBOOK3" and len(own) == len(catalogue) + 1
    model.functions[0].node.add(op_type="Neg", input=list(model.functions[0].output), output=["negated"])
    model.functions[0].output[:] = ["negated"]
    assert recognize(model, root) is None
    with pytest.raises(CheckError, match="'CODEBOOK3' is known already"):
        own.add(codebook3())
    with pytest.raises(CheckError, match="'Q4_K' is known already"):
        own.add(Format("Q4_K", BLOCK, (8,), TEXT))
    with pytest.raises(CheckError, match="decoder of BROKEN"):
        own.add(Format("BROKEN", BLOCK, (8,), lambda x: x.d))
    assert "BROKEN" not in own
