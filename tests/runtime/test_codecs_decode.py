"""Decoders run by engines: known formats, strangers, every scalar type as a leaf, and decoders that cannot be run."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tenonnx import codecs, structs
from tenonnx.codecs import engines
from tenonnx.errors import CheckError, PayloadError, UnsupportedError
from tenonnx.schema.external import DataRoot
from tenonnx.schema.messages import ModelProto, StructProto
from tenonnx.structs import bits, catalogue, constant, declare, f16, functions, pad, recognize, structure, to_proto, u8
from tenonnx.structs.decoders import decoder_model
from tenonnx.structs.formats import Format
from tenonnx.structs.functions import normal_form
from tenonnx.structs.scalars import SCALARS

NAMES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0"]
rng = np.random.default_rng(0)


def model_with(root, text):
    """A model whose struct_types[0] is ``root``, decoded by the body ``text``."""
    model = ModelProto(ir_version=11)
    declaration = model.struct_types.add()
    declaration.CopyFrom(to_proto(root, "ROOT"))
    declaration.decoder.CopyFrom(functions.parse("decode", text))
    return model


def value_of(payload, type_index=0):
    return StructProto(name="w", type=type_index, raw_data=bytes(payload))


def engines_agree(model, root, leaves):
    """What onnxruntime and the reference evaluator make of the declared decoder, after checking that they agree."""
    local = functions.index(model)
    runnable = decoder_model(model.struct_types[root].decoder, structs.leaves(structs.physical(root, model.struct_types)), local)
    native, reference = engines._onnxruntime(runnable, "w")(leaves)[0], engines._reference(runnable, "w")(leaves)[0]
    np.testing.assert_array_equal(native.view(np.uint32), reference.view(np.uint32))
    return native


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(6, 64), (2, 3, 32), (32,), (0, 32), (4, 0)])
def test_view_with_formula_onnxruntime_and_reference_agree_to_the_bit(name, shape):
    model = ModelProto(ir_version=11)
    root = declare(model, catalogue[name], shape)
    payload = catalogue[name].encode(rng.standard_normal(shape).astype(np.float32))
    value = value_of(payload, root)
    found = codecs.decode(value, model)
    assert found.shape == shape and found.dtype == np.float32
    leaves = structs.view(value, struct_types=model.struct_types).leaves()
    np.testing.assert_array_equal(engines_agree(model, root, leaves).view(np.uint32), found.view(np.uint32))


def test_a_known_format_starts_no_engine(monkeypatch):
    def refuse(*_):
        raise AssertionError("an engine was started")

    monkeypatch.setitem(codecs.decode.__globals__, "runner", refuse)
    model = ModelProto(ir_version=11)
    root = declare(model, catalogue["Q4_0"], (2, 32))
    assert codecs.decode(value_of(bytes(36), root), model).shape == (2, 32)


def test_a_changed_decoder_is_run_and_not_the_known_formula():
    model = ModelProto(ir_version=11)
    root = declare(model, catalogue["Q8_0"], (2, 32))
    value = value_of(catalogue["Q8_0"].encode(rng.standard_normal((2, 32))), root)
    known = codecs.decode(value, model)
    function = model.functions[0]
    function.node.add(op_type="Neg", input=[function.output[0]], output=["negated"])
    function.output[0] = "negated"
    assert recognize(model, root) is None
    np.testing.assert_array_equal(codecs.decode(value, model), -known)


# Each block has its own codebook of eight values, and 32 codes of three bits.
CODEBOOK = Format(
    "CODEBOOK3",
    structure("CODEBOOK3", table=f16[8], codes=bits(c0=3, c1=3, c2=3, c3=3, c4=3, c5=3, c6=3, c7=3)[4]),
    (32,),
    lambda x: np.take_along_axis(
        x.table.astype(np.float32), np.stack(x.codes.leaves(), 2).reshape(-1, 32).astype(np.int64), axis=1
    ),
)


def interleaved(x):
    """Eight rows of 32 columns; a byte holds two neighbouring columns of one row, four columns of all rows come together."""
    codes = np.stack((x.qs.lo, x.qs.hi), 2).reshape(-1, 8, 8, 4).transpose(0, 2, 1, 3).reshape(-1, 8, 32)
    return codes.astype(np.float32) * x.d.astype(np.float32)[..., None] + x.m.astype(np.float32)[..., None]


INTERLEAVED = Format(
    "INTERLEAVED8X32", structure("INTERLEAVED8X32", d=f16[8], m=f16[8], qs=bits(lo=4, hi=4)[128]), (8, 32), interleaved
)


@pytest.mark.parametrize("fmt", [CODEBOOK, INTERLEAVED], ids=lambda fmt: fmt.name)
def test_a_format_of_no_catalogue_runs_by_its_decoder(fmt):
    model = ModelProto(ir_version=11)
    shape = (16, 96)
    root = declare(model, fmt, shape)
    payload = rng.integers(0, 256, fmt.blocks(shape) * fmt.nbytes, np.uint8).reshape(-1, fmt.nbytes)
    payload[:, 1:32:2] &= 0x3B  # keeps every scale finite
    value = value_of(payload.tobytes(), root)
    found = codecs.decode(value, model)
    np.testing.assert_array_equal(found, fmt.decode(payload, shape))
    leaves = structs.view(value, struct_types=model.struct_types).leaves()
    np.testing.assert_array_equal(engines_agree(model, root, leaves), found)


CAST = "(values) => (decoded) { decoded = Cast<to = 1>(values) }"


@pytest.mark.parametrize("short", [short for short, node in SCALARS.items() if not node.scalar.name.startswith("COMPLEX")])
def test_every_scalar_type_reaches_a_decoder_as_it_is(short):
    root = structs.tensor(SCALARS[short], 3)[8]  # odd rows: packed elements have no padding between them
    high = 2 if short == "boolean" else 256
    payload = rng.integers(0, high, root.nbytes, np.uint8).tobytes()
    model = model_with(root, CAST)
    with np.errstate(over="ignore"):
        expected = structs.view(payload, root).value().astype(np.float32)
    np.testing.assert_array_equal(codecs.decode(value_of(payload), model), expected)


def test_components_constants_and_padding_arrive_by_position():
    root = structure(
        "", scale=f16, low=pad(4), codes=bits(wide=20)[3], table=constant([10, 20], np.int16), rest=bits(a=65, b=7)[1], tail=u8
    )
    model = model_with(
        root,
        """(scale, low, wide, table, a, b, tail) => (decoded) {
          w = Cast<to = 1>(wide)
          t = Cast<to = 1>(table)
          bytes = Cast<to = 1>(a)
          one = ReduceSum<keepdims = 0>(bytes)
          two = ReduceSum<keepdims = 0>(t)
          sum = Add(one, two)
          decoded = Add(w, sum)
        }""",
    )
    payload = bytes(range(1, root.nbytes + 1))
    view = structs.view(payload, root)
    expected = view.codes.wide.astype(np.float32) + np.float32(int(view.rest.a.astype(int).sum()) + 30)
    np.testing.assert_array_equal(codecs.decode(value_of(payload), model), expected)
    assert [leaf.elem_type.name for leaf in structs.leaves(root)] == [
        "FLOAT16", "UINT8", "UINT32", "INT16", "UINT8", "UINT8", "UINT8",
    ]  # fmt: skip


def test_an_inline_type_brings_its_own_decoder():
    value = StructProto(name="w", type=-1, raw_data=b"\1\2")
    value.struct_type.CopyFrom(model_with(u8[2], CAST).struct_types[0])
    assert codecs.decode(value, ModelProto()).tolist() == [1.0, 2.0]


def test_a_nested_declaration_does_not_bring_its_decoder():
    model = model_with(u8[2], CAST)
    outer = model.struct_types.add()
    outer.array.dimension = 2
    outer.array.element_type.struct_type.type_index = 0
    with pytest.raises(CheckError, match="has no decoder"):
        codecs.decode(value_of(b"\1\2\3\4", 1), model)


def test_external_bytes_come_from_the_data_root(tmp_path):
    (tmp_path / "w").write_bytes(b"\0\1\2\3")
    value = StructProto(name="w", type=0)
    for key, text in (("location", "w"), ("offset", "1"), ("length", "2")):
        value.external_data.add(key=key, value=text)
    model = model_with(u8[2], CAST)
    assert codecs.decode(value, model, DataRoot(tmp_path)).tolist() == [1.0, 2.0]
    with pytest.raises(PayloadError, match="a model in memory has no folder"):
        codecs.decode(value, model)


def test_one_decoder_object_compiles_each_type_once(monkeypatch):
    made = []
    real = codecs.decode.__globals__["runner"]
    monkeypatch.setitem(codecs.decode.__globals__, "runner", lambda *arguments: made.append(1) or real(*arguments))
    decode = codecs.Decoder(model_with(u8[2], CAST))
    assert [decode(value_of(bytes([a, 0]))).tolist() for a in (3, 4)] == [[3.0, 0.0], [4.0, 0.0]]
    assert len(made) == 1


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("(a, b) => (y) { y = Add(a, b) }", CheckError, "takes 2 inputs; expected one for each of the 1 leaves"),
        ("(a) => (y, z) { y, z = Split<num_outputs = 2>(a) }", CheckError, "gives 2 outputs"),
        ("(a) => (y) { y = NoSuchOperator(a) }", UnsupportedError, "no engine runs its decoder"),
        ("(a) => (y) { y = MatMul(a, a, a) }", UnsupportedError, "struct value 'w'"),
    ],
)
def test_a_decoder_that_does_not_fit_or_run_says_so(text, error, message):
    with pytest.raises(error, match=message):
        codecs.decode(value_of(b"\1\2"), model_with(u8[2], text))


def test_a_wrong_payload_never_reaches_a_decoder():
    with pytest.raises(PayloadError, match="takes 2 bytes, found 3"):
        codecs.decode(value_of(b"\1\2\3"), model_with(u8[2], CAST))


def test_a_known_format_stays_known_through_a_stock_file(tmp_path):
    model = ModelProto(ir_version=11)
    root = declare(model, catalogue["Q4_1"], (2, 32))
    model.graph.name = "g"
    onnx.save(onnx.ModelProto.FromString(model.SerializeToString()), tmp_path / "m.onnx")
    again = ModelProto.FromString((tmp_path / "m.onnx").read_bytes())
    found = recognize(again, root)
    assert found is not None and found.format is catalogue["Q4_1"]
    assert normal_form(again.functions[0]) == catalogue["Q4_1"].normal_form
