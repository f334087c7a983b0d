"""Cutting packs off a serialized model and putting them on, by bytes."""

import pytest

from tenonnx.schema.messages import ModelProto
from tenonnx.schema.sections import before_packs, portable

FULL = ModelProto(ir_version=10, producer_name="p")
FULL.graph.name = "g"
FULL.quantizations.add(name="behind the packs")
PACKS = ModelProto()
PACKS.devices.add(type="cpu")
PACKS.compiled_tensors.add(source_name="w", source_digest=bytes(300))


def test_a_model_without_packs_stays_the_same_object():
    data = FULL.SerializeToString()
    assert portable(data) is data and before_packs(data) is None


def test_packs_behind_the_model_are_cut_off():
    data = FULL.SerializeToString()
    assert portable(data + PACKS.SerializeToString()) == data == before_packs(data + PACKS.SerializeToString())


def test_packs_amid_the_model_are_cut_out():
    both = ModelProto.FromString(FULL.SerializeToString() + PACKS.SerializeToString()).SerializeToString()
    assert ModelProto.FromString(portable(both)) == FULL
    assert len(portable(both)) == len(FULL.SerializeToString())


def test_fields_that_nobody_knows_are_kept():
    unknown = b"\xf8\x7f\x05" + b"\xf9\x7f" + bytes(8) + b"\xfd\x7f" + bytes(4)  # a varint, 8 bytes, 4 bytes
    data = FULL.SerializeToString() + unknown
    assert portable(data + PACKS.SerializeToString() + unknown) == data + unknown


@pytest.mark.parametrize("cut", range(1, len(PACKS.SerializeToString()) - 1))
def test_a_truncated_pack_leaves_the_model_before_it(cut):
    data = FULL.SerializeToString()
    assert before_packs(data + PACKS.SerializeToString()[:cut]) == data


@pytest.mark.parametrize("junk", [b"", b"\xff", b"\xff" * 11, b"\x0b", b"\x0a\xff\xff\xff\xff\x7f", b"\x00"])
def test_what_is_no_message_has_no_packs(junk):
    assert before_packs(junk) is None and portable(junk) == junk
