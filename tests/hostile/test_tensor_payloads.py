"""Tensors whose bytes, dims or element type lie about each other."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import helper

from tenonnx import dtypes
from tenonnx.errors import PayloadError, TenonnxError
from tenonnx.schema.external import DataRoot
from tenonnx.schema.messages import StructProto, TensorProto, from_onnx
from tenonnx.schema.payload import struct_payload, tensor_array


@pytest.mark.parametrize("scalar", dtypes.SCALARS, ids=lambda scalar: scalar.name)
@pytest.mark.parametrize("external_data", [False, True], ids=["inline", "external"])
@pytest.mark.parametrize("dims", [[], [0], [1], [5], [3, 3], [2, 0, 4]], ids=str)
def test_raw_data_is_exactly_its_elements(tmp_path, scalar, dims, external_data):
    size = -(-int(np.prod(dims)) * scalar.bits // 8)
    for wrong in (0, 1, -1, 64):
        if size + wrong < 0:
            continue
        tensor = TensorProto(name="w", data_type=scalar.number, dims=dims)
        if external_data:
            (tmp_path / "payload.bin").write_bytes(bytes(size + wrong))
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value="payload.bin")
        else:
            tensor.raw_data = bytes(size + wrong)
        if wrong:
            with pytest.raises(PayloadError, match=rf"'w': dims .* of {scalar.name} take {size} bytes, found {size + wrong}"):
                tensor_array(tensor, DataRoot(tmp_path))
        else:
            found = tensor_array(tensor, DataRoot(tmp_path))
            assert found.shape == tuple(dims) and found.dtype == scalar.numpy and not found.flags.writeable


@pytest.mark.parametrize("scalar", dtypes.SCALARS, ids=lambda scalar: scalar.name)
def test_typed_fields_hold_every_element_type(scalar):
    values = np.array([0, 1, 1, 0, 1]).astype(scalar.numpy)
    tensor = from_onnx(helper.make_tensor("w", scalar.number, [5], values))
    assert not tensor.HasField("raw_data")
    found = tensor_array(tensor, DataRoot(None))
    assert found.dtype == scalar.numpy and found.tobytes() == values.tobytes()


@pytest.mark.parametrize("scalar", dtypes.SCALARS, ids=lambda scalar: scalar.name)
@pytest.mark.parametrize("dims", [[4], [11], [2**40], [5, 5], [0]], ids=str)
def test_typed_fields_of_another_length(scalar, dims):
    tensor = from_onnx(helper.make_tensor("w", scalar.number, [8], np.zeros(8).astype(scalar.numpy)))
    tensor.dims[:] = dims
    with pytest.raises(PayloadError, match=r"'w'.* does not fit|'w'.*take"):
        tensor_array(tensor, DataRoot(None))


def test_values_of_typed_and_packed_fields():
    half = TensorProto(data_type=10, dims=[2], int32_data=[0x3C00, 0xC000])
    assert tensor_array(half, DataRoot(None)).tolist() == [1, -2]
    nibbles = TensorProto(data_type=22, dims=[3], raw_data=b"\xf1\x07")
    assert tensor_array(nibbles, DataRoot(None)).astype(int).tolist() == [1, -1, 7]
    sixes = TensorProto(data_type=27, dims=[4], raw_data=np.uint32(1 | 2 << 6 | 3 << 12 | 4 << 18).tobytes()[:3])
    expected = np.array([1, 2, 3, 4], np.uint8).view(ml_dtypes.float6_e2m3fn)
    assert tensor_array(sixes, DataRoot(None)).tobytes() == expected.tobytes()


@pytest.mark.parametrize("kind", [1, 6, 10, 22, 27, 8])
@pytest.mark.parametrize(
    "dims",
    [
        [-1],
        [-1, -4],
        [4, -1],
        [2**62, 4],
        [2**32, 2**32],
        [4194305, 4194305, 211106198978564],
        [0, 2**62, 2**62],
        [1] * 65,
        [2**63 - 1],
    ],
    ids=lambda dims: str(dims[:3]),
)
@pytest.mark.parametrize("field", ["raw_data", "typed", "none"])
def test_dims_that_no_memory_has(dims, kind, field):
    tensor = TensorProto(name="w", data_type=kind, dims=dims)
    if field == "raw_data":
        tensor.raw_data = b"\0" * 4
    elif field == "typed":
        tensor.float_data.extend([0] * 4)
        tensor.int32_data.extend([0] * 4)
    with pytest.raises(PayloadError, match="'w'"):
        tensor_array(tensor, DataRoot(None))


@pytest.mark.parametrize("dims", [[0, 2**62], [2**40, 0, 2**40], [0, 2**63 - 1]], ids=str)
def test_no_elements_of_dims_that_no_memory_has(dims):
    """No byte is missing, and still no array of this shape exists."""
    for tensor in (TensorProto(name="w", data_type=1, dims=dims, raw_data=b""), TensorProto(name="w", data_type=1, dims=dims)):
        with pytest.raises(PayloadError, match="more elements than memory can address"):
            tensor_array(tensor, DataRoot(None))


@pytest.mark.parametrize("kind", [0, 29, 99, -1, 2**31 - 1])
@pytest.mark.parametrize("field", ["raw_data", "float_data", "external_data"])
def test_an_element_type_that_is_none(tmp_path, kind, field):
    tensor = TensorProto(name="w", data_type=kind, dims=[1])
    if field == "raw_data":
        tensor.raw_data = b"\0"
    elif field == "float_data":
        tensor.float_data.append(1)
    else:
        (tmp_path / "weights.bin").write_bytes(b"\0")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="weights.bin")
    with pytest.raises(TenonnxError, match="'w'"):
        tensor_array(tensor, DataRoot(tmp_path))


def test_strings():
    good = TensorProto(name="w", data_type=8, dims=[2], string_data=["é".encode(), b""])
    assert tensor_array(good, DataRoot(None)).tolist() == ["é", ""]
    for bad in (
        TensorProto(name="w", data_type=8, dims=[1], string_data=[b"\xff"]),
        TensorProto(name="w", data_type=8, dims=[2], string_data=[b"a"]),
        TensorProto(name="w", data_type=8, dims=[1], raw_data=b"a"),
    ):
        with pytest.raises(PayloadError, match="'w': its data does not fit"):
            tensor_array(bad, DataRoot(None))


def test_strings_in_another_file(tmp_path):
    tensor = TensorProto(name="w", data_type=8, dims=[1], data_location=TensorProto.EXTERNAL)
    (tmp_path / "weights.bin").write_bytes(b"text")
    tensor.external_data.add(key="location", value="weights.bin")
    with pytest.raises(TenonnxError, match="no fixed width"):
        tensor_array(tensor, DataRoot(tmp_path))


def test_a_bool_that_is_neither():
    with pytest.raises(PayloadError, match="BOOL byte of 2; expected 0 or 1"):
        tensor_array(TensorProto(name="w", data_type=9, dims=[3], raw_data=b"\0\x01\x02"), DataRoot(None))


def test_a_segment():
    tensor = TensorProto(name="w", data_type=2, dims=[2], raw_data=b"ab")
    tensor.segment.begin = 1
    with pytest.raises(PayloadError, match="one segment of a larger tensor"):
        tensor_array(tensor, DataRoot(None))


def test_no_payload_at_all():
    with pytest.raises(PayloadError, match="'w': its data does not fit"):
        tensor_array(TensorProto(name="w", data_type=1, dims=[1]), DataRoot(None))
    assert tensor_array(TensorProto(data_type=1, dims=[0]), DataRoot(None)).shape == (0,)
    assert struct_payload(StructProto(), DataRoot(None)).size == 0
