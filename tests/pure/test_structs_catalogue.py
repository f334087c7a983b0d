"""The catalogue's formats against the gguf package, and how a model declares and recognizes them."""

from __future__ import annotations

import gguf
import numpy as np
import onnx
import pytest
from gguf.quants import dequantize, quantize

from tenonnx import structs
from tenonnx.errors import CheckError, PayloadError, ShapeError, UnsupportedError
from tenonnx.schema.messages import ModelProto, to_onnx
from tenonnx.structs import bits, catalogue, declare, f16, functions, recognize, structure
from tenonnx.structs.formats import Format
from tests.block_cases import adversarial, assert_same_bits

OCP = ("MXFP4", "NVFP4")  # where gguf differs at the edges
GGUF = [name for name in catalogue if name in gguf.GGMLQuantizationType.__members__ and name != "Q1_0"]  # it only names Q1_0
NAMES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q3_K", "IQ4_XS", "TQ1_0", "MXFP4"]


def gguf_type(name):
    return gguf.GGMLQuantizationType[name]


def test_every_format_that_gguf_decodes_and_is_no_lattice_is_there():
    lattices = {"IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M"}
    known = {kind.name for kind in gguf.quants._type_traits} | {"F32", "F16", "Q1_0"}
    assert known - lattices <= set(catalogue)
    for kind, (elements, nbytes) in gguf.GGML_QUANT_SIZES.items():
        if kind.name in catalogue:
            assert (catalogue[kind.name].elements, catalogue[kind.name].nbytes) == (elements, nbytes)


@pytest.mark.parametrize("name", [name for name in GGUF if name not in OCP])
def test_the_formula_gives_the_bits_that_gguf_gives(name):
    fmt = catalogue[name]
    blocks = adversarial(fmt)
    with np.errstate(all="ignore"):
        expected = dequantize(blocks, gguf_type(name)).reshape(-1, *fmt.block_shape)
    assert_same_bits(fmt.decode(blocks, expected.shape), expected)


@pytest.mark.parametrize("name", [name for name in GGUF if catalogue[name].quantize])
def test_encode_gives_the_bytes_that_gguf_gives(name):
    rng = np.random.default_rng(5)
    values = (rng.standard_normal((64, 256)) * 10.0 ** rng.integers(-6, 5, (64, 1))).astype(np.float32)
    values[0], values[1], values[2, ::2], values[3] = 0, 7.5, -values[2, ::2], np.round(values[3] * 4) / 4
    values[4, :128], values[4, 128:] = np.linspace(-1, 1, 128), np.arange(128)
    values[5], values[6, 1:] = -0.0, 0
    values[7] = np.tile([-8, 7.5, 0.5, -0.5, 1.5, 2.5, 3.5, -7.5], 32)  # halfway between codes
    expected = quantize(values, gguf_type(name)).reshape(-1).view(np.uint8)
    np.testing.assert_array_equal(catalogue[name].encode(values), expected)


@pytest.mark.parametrize("name", [name for name in GGUF if catalogue[name].quantize is None])
def test_what_gguf_does_not_quantize_has_no_encoder(name):
    with pytest.raises(NotImplementedError):
        quantize(np.zeros((1, 256), np.float32), gguf_type(name))
    with pytest.raises(UnsupportedError, match=rf"{name} has no encoder; compute its leaves and use pack"):
        catalogue[name].encode(np.zeros((1, 256), np.float32))


def nested(view):
    """The fields of a view as ``pack`` takes them."""
    return {name: nested(view[name]) if isinstance(view[name], structs.View) else view[name] for name in view.names}


@pytest.mark.parametrize("name", [name for name in catalogue if catalogue[name].leaves[0].path])
def test_pack_puts_leaves_back_where_a_view_found_them(name):
    fmt = catalogue[name]
    blocks = adversarial(fmt)
    constants = [leaf.path for leaf in fmt.leaves if leaf.constant is not None]
    leaves = {path: value for path, value in nested(fmt.view(blocks)).items() if path not in constants}
    shape = (
        (len(blocks), *fmt.block_shape) if len(fmt.block_shape) < 2 else (len(blocks) * fmt.block_shape[0], fmt.block_shape[1])
    )
    np.testing.assert_array_equal(fmt.pack(shape, **leaves), blocks.reshape(-1))


def test_names_are_found_in_any_case_and_unknown_ones_list_the_known():
    assert catalogue["q4_1"] is catalogue["Q4_1"] and "bf16" in catalogue and "Q9" not in catalogue
    assert set(NAMES) <= set(catalogue) and len(catalogue) == len(list(catalogue))
    with pytest.raises(UnsupportedError, match="'Q9' is no known format; known are F32, F16"):
        catalogue["Q9"]


def test_what_a_block_does_not_divide_or_fill_is_refused():
    fmt = catalogue["Q4_1"]
    with pytest.raises(ShapeError, match=r"dimension 48 of shape .* not a multiple of the block's 32"):
        fmt.array((2, 48))
    with pytest.raises(ShapeError, match="no room"):
        fmt.encode(np.float32(1))
    with pytest.raises(PayloadError, match="39 bytes are not a whole number of blocks of 20"):
        fmt.view(bytes(39))
    with pytest.raises(PayloadError, match="takes 40 bytes, found 20"):
        fmt.decode(bytes(20), (64,))
    with pytest.raises(ShapeError, match=r"expected the leaves d, m, qs.lo, qs.hi; found d, q"):
        fmt.pack((32,), d=1.0, q=2)
    with pytest.raises(ShapeError, match="no room"):
        declare(ModelProto(), fmt, ())


def declared(*requests):
    model = ModelProto(ir_version=11)
    return model, [declare(model, catalogue[name], shape) for name, shape in requests]


def test_block_type_function_and_root_are_declared_once_each():
    model, roots = declared(("Q4_1", (8, 64)), ("Q4_1", (64, 32)), ("Q4_1", (8, 64)), ("Q8_0", (8, 64)), ("F32", (7,)))
    assert [model.struct_types[root].name for root in roots] == [
        "Q4_1[8, 64]",
        "Q4_1[64, 32]",
        "Q4_1[8, 64]",
        "Q8_0[8, 64]",
        "F32[7]",
    ]
    assert roots[0] == roots[2] and len(model.struct_types) == 2 + 1 + 2 + 1
    assert [function.name for function in model.functions] == ["Q4_1", "Q8_0", "F32"]
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": 24, "tenonnx.formats": 1}
    assert [structs.nbytes(root, model.struct_types) for root in roots] == [320, 1280, 320, 544, 28]
    onnx.checker.check_function(to_onnx(model.functions[0]), *_function_context())


def _function_context():
    context = onnx.checker.C.CheckerContext()
    context.ir_version = 11
    context.opset_imports = {"": 24}
    return context, onnx.checker.C.LexicalScopeContext()


def test_another_function_of_the_same_name_is_not_overwritten():
    model = ModelProto()
    model.functions.add(name="Q4_1", domain="tenonnx.formats")
    with pytest.raises(CheckError, match=r"tenonnx\.formats\.Q4_1 of the model is not this version's decoder"):
        declare(model, catalogue["Q4_1"], (32,))
    assert not model.struct_types and not model.opset_import


@pytest.mark.parametrize("name", list(catalogue))
def test_a_known_format_is_recognized_under_any_names(name):
    fmt = catalogue[name]
    shape = (6, *fmt.block_shape) if len(fmt.block_shape) < 2 else tuple(3 * size for size in fmt.block_shape)
    model, (root,) = declared((name, shape))
    model.functions[0].name, model.functions[0].domain = "Anything", "elsewhere"
    for node in model.functions[0].node:
        node.input[:] = [f"v_{value}" for value in node.input]
        node.output[:] = [f"v_{value}" for value in node.output]
        node.name, node.doc_string = "n", "remark"
    for values in (model.functions[0].input, model.functions[0].output):
        values[:] = [f"v_{value}" for value in values]
    for declaration in model.struct_types:
        declaration.name, declaration.doc_string = "renamed", "remark"
        for number, field in enumerate(declaration.structure.field):
            field.name = f"field_{number}"
    call = model.struct_types[root].decoder.node[0]
    call.op_type, call.domain = "Anything", "elsewhere"
    found = recognize(model, root)
    assert found is not None and (found.format.name, found.shape) == (name, shape)
    assert structs.logical_shape(model, root) == list(shape)


def _rename_input(model, root):
    call = model.struct_types[root].decoder.node[0]
    call.input[0], call.input[1] = call.input[1], call.input[0]


def _negate(model, root):
    function = model.functions[0]
    function.node.add(op_type="Neg", input=[function.output[0]], output=["negated"])
    function.output[0] = "negated"


def _other_constant(model, root):
    constant = next(node for node in model.functions[0].node if node.op_type == "Constant")
    constant.attribute[0].t.raw_data = np.array([-1], np.int64).tobytes()


def _other_shape(model, root):
    model.struct_types[root].decoder.node[1].attribute[0].ints[:] = [64, 7]


def _extra_node(model, root):
    decoder = model.struct_types[root].decoder
    decoder.node.add(op_type="Neg", input=[decoder.output[0]], output=["negated"])
    decoder.output[0] = "negated"


def _other_opset(model, root):
    model.functions[0].opset_import[0].version = 23


def _standard_name_taken(model, root):
    model.functions.add(name="Mul", domain="")


def _other_block(model, root):
    model.struct_types[0].structure.field[1].type.struct_type.CopyFrom(structs.to_proto(bits(lo=3, hi=5)[32]))


def _no_decoder(model, root):
    model.struct_types[root].ClearField("decoder")


def _function_gone(model, root):
    del model.functions[:]


CHANGES = [
    _rename_input,
    _negate,
    _other_constant,
    _other_shape,
    _extra_node,
    _other_opset,
    _standard_name_taken,
    _other_block,
    _no_decoder,
    _function_gone,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__.strip("_"))
def test_a_changed_format_is_never_taken_for_the_known_one(change):
    model, (root,) = declared(("Q8_0", (6, 64)))
    assert recognize(model, root) is not None
    change(model, root)
    assert recognize(model, root) is None


TILES = Format(
    "TILES",
    structure("TILES", d=f16[2], qs=bits(lo=4, hi=4)[4]),
    (2, 4),
    lambda x: np.stack((x.qs.lo, x.qs.hi), -1).reshape(-1, 2, 4).astype(np.float32) * x.d.astype(np.float32)[..., None],
)


def test_a_block_over_several_rows_lies_at_its_place_in_the_tensor():
    d = np.arange(1, 13, dtype=np.float16).reshape(6, 2)
    codes = np.random.default_rng(0).integers(0, 16, (6, 2, 4), np.uint8)
    payload = TILES.pack((4, 12), d=d, qs={"lo": codes[:, :, ::2].reshape(6, 4), "hi": codes[:, :, 1::2].reshape(6, 4)})
    expected = np.zeros((4, 12), np.float32)
    for block in range(6):
        row, column = 2 * (block // 3), 4 * (block % 3)
        expected[row : row + 2, column : column + 4] = codes[block] * d[block].astype(np.float32)[:, None]
    np.testing.assert_array_equal(TILES.decode(payload, (4, 12)), expected)
    model = ModelProto()
    root = declare(model, TILES, (4, 12))
    assert structs.logical_shape(model, root) == [4, 12]
    assert recognize(model, root) is None  # it is in no catalogue


def test_the_logical_shape_of_a_stranger_is_inferred_from_its_decoder():
    model, (root,) = declared(("Q4_1", (6, 64)))
    _negate(model, root)
    assert recognize(model, root) is None
    assert structs.logical_shape(model, root) == [6, 64]
    assert structs.decoded_type(model, root).tensor_type.elem_type == onnx.TensorProto.FLOAT
    with pytest.raises(CheckError, match=r"struct_types\[0\]: has no decoder"):
        structs.logical_shape(model, 0)
    model.struct_types[root].decoder.input.append("more")
    with pytest.raises(
        CheckError, match=r"struct_types\[1\]: .*takes 5 inputs; expected one for each of the 4 leaves: d, m, qs.lo"
    ):
        structs.logical_shape(model, root)


def test_the_order_of_blocks_is_the_same_permutation_both_ways():
    assert functions.block_order(3, 1) == [0, 1, 2, 3]
    assert functions.block_order(3, 2) == [0, 1, 3, 2, 4]
    values = np.arange(4 * 12, dtype=np.float32).reshape(4, 12)
    np.testing.assert_array_equal(TILES._ungrid(TILES._regrid(values), (2, 3)).reshape(4, 12), values)
