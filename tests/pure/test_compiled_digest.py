"""Digests: equal for equal content however it is stored, different for anything else."""

import hashlib
import math
import struct

import ml_dtypes
import numpy as np
import onnx
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from tenonnx import dtypes
from tenonnx.compiled.digest import Sources, digest
from tenonnx.errors import UnsupportedError
from tenonnx.schema.external import DataRoot
from tenonnx.schema.messages import ModelProto, StructProto, TensorProto
from tenonnx.structs import array, bits, catalogue, declare, f16, structure, to_proto

WHOLE = [scalar for scalar in dtypes.SCALARS if scalar.bits % 8 == 0]
DIMS = [(), (0,), (1,), (3,), (2, 0, 3), (5, 7), (1, 2, 3, 4)]


def tensor_digest(tensor, root=None, algorithm="blake3"):
    return Sources(ModelProto(), DataRoot(root), algorithm).digest(tensor)


def raw(elem_type, dims, data, name="w"):
    return TensorProto(name=name, data_type=elem_type, dims=dims, raw_data=data)


def external(folder, elem_type, dims, data, offset):
    (folder / "w.bin").write_bytes(b"\1" * offset + data)
    tensor = TensorProto(name="elsewhere", data_type=elem_type, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, text in (("location", "w.bin"), ("offset", str(offset)), ("length", str(len(data)))):
        tensor.external_data.add(key=key, value=text)
    return tensor


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("scalar", WHOLE, ids=lambda scalar: scalar.name)
def test_a_tensor_is_its_type_dims_and_little_endian_content(scalar, dims):
    data = np.random.default_rng(0).bytes(math.prod(dims) * scalar.bits // 8)
    if scalar.name == "BOOL":
        data = bytes(byte & 1 for byte in data)
    written = struct.pack("<iQ", scalar.number, len(dims)) + b"".join(struct.pack("<q", dim) for dim in dims) + data
    tensor = raw(scalar.number, dims, data)
    assert tensor_digest(tensor) == blake3(written).digest()
    assert tensor_digest(tensor, algorithm="sha256") == hashlib.sha256(written).digest()


@pytest.mark.parametrize(
    "dtype", [np.float32, np.int8, np.uint16, np.int32, np.int64, np.float64, np.bool_, np.float16, np.complex64, np.uint64]
)
def test_typed_fields_and_raw_data_are_one(dtype, tmp_path):
    values = (np.arange(15) % 2).astype(dtype).reshape(3, 5)
    elem_type = helper.np_dtype_to_tensor_dtype(values.dtype)
    typed = TensorProto.FromString(helper.make_tensor("other", elem_type, values.shape, values.reshape(-1)).SerializeToString())
    assert not typed.raw_data
    inline = raw(elem_type, values.shape, values.tobytes())
    outside = external(tmp_path, elem_type, values.shape, values.tobytes(), 24)
    assert tensor_digest(typed) == tensor_digest(inline) == tensor_digest(outside, tmp_path)


@pytest.mark.parametrize("name", ["UINT4", "INT4", "FLOAT4E2M1", "UINT2", "INT2"])
@pytest.mark.parametrize("count", [1, 3, 4, 5])
def test_bits_that_pad_the_last_byte_do_not_count(name, count, tmp_path):
    scalar = dtypes.BY_NAME[name]
    size = -(-count * scalar.bits // 8)
    used = count * scalar.bits % 8
    clean = bytearray(np.random.default_rng(count).bytes(size))
    clean[-1] &= 0xFF >> (-used % 8)
    dirty = bytearray(clean)
    dirty[-1] |= 0xFF & ~(0xFF >> (-used % 8))
    expected = blake3(struct.pack("<iQq", scalar.number, 1, count) + clean).digest()
    typed = TensorProto(data_type=scalar.number, dims=[count], int32_data=list(dirty))
    for tensor in (raw(scalar.number, [count], bytes(clean)), raw(scalar.number, [count], bytes(dirty)), typed):
        assert tensor_digest(tensor) == expected
    assert tensor_digest(external(tmp_path, scalar.number, [count], bytes(dirty), 3), tmp_path) == expected


def test_another_dtype_shape_or_value_is_another_digest():
    zeros = bytes(24)
    tensors = [raw(1, [6], zeros), raw(6, [6], zeros), raw(1, [2, 3], zeros), raw(1, [3, 2], zeros), raw(1, [6, 1], zeros)]
    tensors += [raw(1, [6], bytes(23) + b"\x80"), raw(1, [0, 6], b""), raw(1, [6, 0], b"")]
    assert len({tensor_digest(tensor) for tensor in tensors}) == len(tensors)


@given(st.binary(min_size=4, max_size=64).filter(lambda data: len(data) % 4 == 0), st.data())
def test_any_flipped_bit_shows(data, draw):
    bit = draw.draw(st.integers(0, 8 * len(data) - 1))
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    first, second = (raw(6, [len(data) // 4], bytes(content)) for content in (data, flipped))
    assert tensor_digest(first) != tensor_digest(second)


def test_typed_bfloat16_is_its_raw_data():
    values = np.array([1.5, -2, 0], ml_dtypes.bfloat16)
    stock = onnx.helper.make_tensor("w", onnx.TensorProto.BFLOAT16, [3], values.astype(np.float32))
    typed = TensorProto.FromString(stock.SerializeToString())
    assert np.array_equal(numpy_helper.to_array(stock), values)
    assert tensor_digest(typed) == tensor_digest(raw(16, [3], values.tobytes()))


# ---- Structured values


def struct_value(model, format, shape, payload, name="w"):
    return StructProto(name=name, type=declare(model, catalogue[format], shape), raw_data=payload)


def test_a_structured_value_is_the_same_in_another_model_under_other_names_and_indices():
    payload = bytes(range(40))
    plain, crowded = ModelProto(), ModelProto()
    declare(crowded, catalogue["Q8_0"], (32,))
    first, second = struct_value(plain, "Q4_1", (2, 32), payload), struct_value(crowded, "Q4_1", (2, 32), payload, "renamed")
    assert first.type != second.type
    crowded.struct_types[second.type].name = "mine"
    crowded.struct_types[second.type].doc_string = "words"
    assert Sources(plain, DataRoot(None)).digest(first) == Sources(crowded, DataRoot(None)).digest(second)


def test_a_structured_value_of_another_type_shape_or_decoder_is_another():
    model = ModelProto()
    values = [
        struct_value(model, "Q4_0", (2, 32), bytes(36)),
        struct_value(model, "Q4_0", (1, 64), bytes(36)),
        struct_value(model, "Q4_0", (64,), bytes(36)),
        StructProto(type=-1, raw_data=bytes(36), struct_type=to_proto(array(structure("b", d=f16, q=bits(lo=4, hi=4)[16]), 2))),
        StructProto(type=-1, raw_data=bytes(36), struct_type=to_proto(array(structure("b", d=f16, q=bits(lo=2, hi=6)[16]), 2))),
        StructProto(type=-1, raw_data=bytes(36), struct_type=to_proto(f16[18])),
        StructProto(type=-1, raw_data=bytes(35) + b"\1", struct_type=to_proto(f16[18])),
    ]
    assert len({Sources(model, DataRoot(None)).digest(value) for value in values}) == len(values)


def test_a_function_that_the_decoder_calls_is_part_of_the_type():
    model, other = ModelProto(), ModelProto()
    first, second = (struct_value(each, "Q4_0", (32,), bytes(18)) for each in (model, other))
    next(node for node in other.functions[0].node if node.op_type == "Mul").op_type = "Add"
    assert Sources(model, DataRoot(None)).digest(first) != Sources(other, DataRoot(None)).digest(second)


def test_an_unknown_algorithm_is_named():
    with pytest.raises(UnsupportedError, match=r"crc32.*known are blake3, sha256"):
        digest([b""], "crc32")


@pytest.mark.parametrize("algorithm", ["blake3", "sha256"])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_pieces_and_threads_do_not_matter(algorithm, threads):
    data = np.random.default_rng(0).bytes(3_000_001)
    whole = digest([data], algorithm)
    assert (
        digest([memoryview(data)[:7], data[7:2_000_000], np.frombuffer(data, np.uint8)[2_000_000:].data], algorithm, threads)
        == whole
    )
