"""Every format of the catalogue by four ways that agree to the bit: NumPy, onnxruntime, the reference evaluator, and operators of
onnxruntime that decode the same blocks."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from tenonnx import structs
from tenonnx.codecs import engines, table
from tenonnx.schema.messages import ModelProto
from tenonnx.structs import catalogue, declare, functions
from tenonnx.structs.decoders import decoder_model
from tests.block_cases import adversarial, assert_same_bits


def by_engines(fmt, payload, shape):
    """What onnxruntime and the reference evaluator make of the declared decoder."""
    model = ModelProto(ir_version=11)
    root = declare(model, fmt, shape)
    places = structs.leaves(structs.physical(root, model.struct_types))
    runnable = decoder_model(model.struct_types[root].decoder, places, functions.index(model))
    leaves = structs.view(payload, root, model.struct_types).leaves()
    with np.errstate(all="ignore"):
        return engines._onnxruntime(runnable, "w")(leaves)[0], engines._reference(runnable, "w")(leaves)[0]


@pytest.mark.parametrize("name", list(catalogue))
def test_formula_onnxruntime_and_reference_agree_to_the_bit(name):
    fmt = catalogue[name]
    blocks = adversarial(fmt)
    shape = (
        (len(blocks), *fmt.block_shape) if len(fmt.block_shape) < 2 else (len(blocks) * fmt.block_shape[0], fmt.block_shape[1])
    )
    expected = fmt.decode(blocks, shape)
    for found in by_engines(fmt, blocks.reshape(-1), shape):
        assert_same_bits(found, expected)


@pytest.mark.parametrize("name", list(catalogue))
def test_a_tensor_without_elements_decodes_to_nothing(name):
    fmt = catalogue[name]
    shape = (0, *fmt.block_shape)[-max(2, len(fmt.block_shape)) :] if len(fmt.block_shape) < 2 else (0, fmt.block_shape[1])
    for found in (fmt.decode(b"", shape), *by_engines(fmt, b"", shape)):
        assert found.shape == shape and found.dtype == np.float32


@pytest.mark.parametrize("name", list(catalogue))
def test_the_decoder_passes_the_checker_of_onnx(name):
    fmt = catalogue[name]
    function = onnx.FunctionProto.FromString(fmt.function.SerializeToString())
    context = onnx.checker.C.CheckerContext()
    context.ir_version, context.opset_imports = 11, {"": functions.OPSET}
    onnx.checker.check_function(function, context, onnx.checker.C.LexicalScopeContext())
    assert function.domain == "tenonnx.formats" and list(function.input) == [leaf.path or "values" for leaf in fmt.leaves]


def ran(op, inputs, outputs, **attributes):
    """The output of one operator of onnxruntime's own domain."""
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape) for name, array in inputs
    ]
    node = helper.make_node(op, [name for name, _ in inputs], ["y"], domain="com.microsoft", **attributes)
    graph = helper.make_graph([node], "g", values, [helper.make_tensor_value_info("y", TensorProto.FLOAT, outputs)])
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, dict(inputs))[0]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_int_blocks_are_those_of_matmul_nbits(bits, group):
    rng = np.random.default_rng(group)
    rows, blocks = 6, 2
    columns = group * blocks
    fmt = catalogue[f"INT{bits}_{group}"]
    payload = fmt.encode(rng.standard_normal((rows, columns)).astype(np.float32))
    view, raw = fmt.view(payload), payload.reshape(rows * blocks, -1)
    zeros = view.zero_point.reshape(rows, blocks)
    packed = zeros if bits == 8 else zeros[:, ::2] | zeros[:, 1::2] << 4
    inputs = [
        ("a", np.eye(columns, dtype=np.float32)),
        ("b", raw[:, 5:].reshape(rows, blocks, -1).copy()),
        ("scales", view.scale.copy().reshape(rows, blocks)),
        ("zero_points", packed.astype(np.uint8).reshape(rows, -1)),
    ]
    found = ran("MatMulNBits", inputs, (columns, rows), K=columns, N=rows, bits=bits, block_size=group)
    np.testing.assert_allclose(found.T, fmt.decode(payload, (rows, columns)), rtol=1e-6, atol=1e-7)


def test_nf4_blocks_are_those_of_matmul_bnb4():
    rng = np.random.default_rng(0)
    rows, columns = 4, 128
    fmt = catalogue["NF4"]
    payload = fmt.encode(rng.standard_normal((rows, columns)).astype(np.float32))
    blocks = payload.reshape(-1, fmt.nbytes)
    inputs = [
        ("a", np.eye(columns, dtype=np.float32)),
        ("b", blocks[:, 4:].reshape(-1).copy()),
        ("absmax", fmt.view(payload).absmax.copy()),
    ]
    found = ran("MatMulBnb4", inputs, (columns, rows), K=columns, N=rows, block_size=64, quant_type=1)
    np.testing.assert_allclose(found.T, fmt.decode(payload, (rows, columns)), rtol=1e-6, atol=1e-7)


def test_the_table_has_a_row_for_each_format():
    rows = {name: table.row(catalogue[name]) for name in catalogue}
    assert rows["Q4_0"][:5] == ("Q4_0", "32", "18", "4.5", "unpacked; zero-copy `d`")
    assert (rows["Q8_0"].view, rows["Q8_0"].encode, rows["Q8_0"].layout) == ("zero-copy", "values", "q8")
    assert (rows["PCM24"].encode, rows["AWQ4_32"].block) == ("leaves", "32 x 8")
    lines = table.markdown().splitlines()
    assert len(lines) == len(catalogue) + 2 and all(line.count("|") == 9 for line in lines)
