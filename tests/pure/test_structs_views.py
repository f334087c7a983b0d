"""Views that are printed, edited and outlive what they look at; and the same bits without native code."""

from __future__ import annotations

import gc
import mmap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenonnx import structs
from tenonnx.errors import CheckError, PayloadError, ShapeError
from tenonnx.structs import bits, boolean, constant, f16, i4, native, structure, u16
from tenonnx.structs.packing import unpack

BLOCK = structure("", d=f16, qs=bits(lo=4, hi=4)[4], table=constant([1, -1], np.int8))
MIXED = structure("", d=f16, q=bits(a=3, b=13)[2], s=structs.array(i4, 4), wide=bits(big=67, rest=5)[1], flag=boolean)


def mixed(count):
    payload = bytearray(np.random.default_rng(0).integers(0, 256, MIXED.nbytes * count, np.uint8))
    payload[MIXED.nbytes - 1 :: MIXED.nbytes] = bytes(index % 2 for index in range(count))
    return payload


# ---- Printed


def test_to_dict_gives_every_field_as_python_values():
    payload = np.array([0x00, 0x3C, 0x21, 0x43, 0x65, 0x87] * 2, np.uint8)
    one = {"d": 1.0, "qs": {"lo": [1, 3, 5, 7], "hi": [2, 4, 6, 8]}, "table": [1, -1]}
    assert structs.view(payload, BLOCK[2])[1].to_dict() == one
    both = structs.view(payload, BLOCK[2]).to_dict()
    assert both == {"d": [1.0, 1.0], "qs": {"lo": [one["qs"]["lo"]] * 2, "hi": [one["qs"]["hi"]] * 2}, "table": [1, -1]}
    assert isinstance(both["qs"]["lo"][0][0], int)


def test_to_dict_of_small_scalars_gives_numbers():
    values = structs.view(b"\x1f\x28", structure("", s=structs.array(i4, 2), f=structs.array(structs.f4e2m1, 2))).to_dict()
    assert values == {"s": [-1, 1], "f": [-0.0, 1.0]} and isinstance(values["s"][0], int) and isinstance(values["f"][0], float)


def test_to_dict_of_no_element_with_dims_as_large_as_numpy_takes():
    node = structure("", s=structs.tensor(i4, 0, 2**61))
    assert structs.view(b"", node).to_dict() == {"s": []}


def test_hexdump_shows_the_bytes_of_a_field_and_dots_beside_them():
    view = structs.view(bytes(range(12)), BLOCK[2])
    assert view.hexdump() == "00000000  00 01 02 03 04 05 06 07 08 09 0a 0b"
    assert view.hexdump("d") == "00000000  00 01 ·· ·· ·· ·· 06 07"
    assert view.hexdump("qs") == view.hexdump("qs.hi") == "00000000        02 03 04 05 ·· ·· 08 09 0a 0b"
    assert view[::-1].hexdump("d") == view.hexdump("d")
    assert view[1].qs.hexdump("lo") == "00000000                          08 09 0a 0b"
    assert view[2:].hexdump() == ""


def test_hexdump_stops_at_its_limit():
    view = structs.view(bytes(6 * 10**6), BLOCK[10**6])
    lines = view.hexdump("d", limit=32).splitlines()
    assert len(lines) == 3 and lines[-1] == "… 5999964 more bytes"
    assert lines[1] == "00000010  ·· ·· 00 00 ·· ·· ·· ·· 00 00 ·· ·· ·· ·· 00 00"


@pytest.mark.parametrize("field", ["scale", "qs.mid", "table", "q"])
def test_hexdump_of_an_unknown_field_names_the_known_ones(field):
    with pytest.raises(KeyError, match=r"no field .* in its bytes; it has d, qs.lo, qs.hi"):
        structs.view(bytes(6), BLOCK).hexdump(field)


# ---- Edited


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_setting_a_field_changes_its_bits_and_no_other(data):
    payload = mixed(3)
    names = {"d": [], "q.a": [2], "q.b": [2], "s": [4], "wide.rest": [1]}
    path = data.draw(st.sampled_from(sorted(names)))
    before = {
        leaf.path: value.copy()
        for leaf, value in zip(structs.leaves(MIXED), structs.view(payload, MIXED[3]).leaves(), strict=True)
    }
    view = structs.edit(payload, MIXED[3])
    rows = data.draw(st.sampled_from([0, 1, 2, slice(None), slice(None, None, 2), slice(None, None, -1)]))
    high = {"q.a": 7, "q.b": 2**13 - 1, "wide.rest": 31}.get(path, 7)
    value = data.draw(st.integers(0, high))
    target = view[rows]
    *outer, last = path.split(".")
    for name in outer:
        target = target[name]
    target[last] = value
    after = dict(zip(before, structs.view(payload, MIXED[3]).leaves(), strict=True))
    before[path] = before[path].astype(np.float64)
    before[path][rows] = value
    for name, expected in before.items():
        np.testing.assert_array_equal(after[name].astype(expected.dtype), expected, err_msg=name)


def test_elements_of_a_leaf_are_set_by_index_and_slice():
    payload = bytearray(18)
    view = structs.edit(payload, BLOCK[3])
    view.qs.lo[1, 3] = 5
    view.qs.hi[-1] = [1, 2, 3, 4]
    view.qs.hi[:2, ::2] = 7
    view[0].qs.lo[0] = 15
    view["d"] = [1, 2, 3]
    plain = structs.view(payload, BLOCK[3])
    assert plain.qs.lo.tolist() == [[15, 0, 0, 0], [0, 0, 0, 5], [0, 0, 0, 0]]
    assert plain.qs.hi.tolist() == [[7, 0, 7, 0], [7, 0, 7, 0], [1, 2, 3, 4]]
    assert plain.d.tolist() == [1, 2, 3]
    assert view.qs.lo.shape == (3, 4) and len(view.qs.lo) == 3 and view.qs.lo.dtype == np.uint8
    np.testing.assert_array_equal(np.asarray(view.qs.lo), plain.qs.lo)
    assert view.qs.hi[2, 1] == 2 and view.to_dict() == plain.to_dict()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda view: view.qs.lo.__setitem__(3, 16), PayloadError, "its bits hold 0 to 15"),
        (lambda view: view.qs.lo.__setitem__(3, -1), PayloadError, "its bits hold 0 to 15"),
        (lambda view: view.qs.__setitem__("lo", [0.5] * 4), PayloadError, "takes unsigned integers"),
        (lambda view: view.__setitem__("qs", 1), PayloadError, "no leaf; set its fields lo, hi"),
        (lambda view: view.__setitem__("table", 1), PayloadError, "a constant of the type"),
        (lambda view: view.__setitem__("d", [1, 2]), ShapeError, r"shape \[2\] do not fit \[\]"),
        (lambda view: view.__setitem__("scale", 1), KeyError, "no field 'scale'"),
        (lambda view: view.qs.lo.__setitem__(4, 1), IndexError, "out of range"),
        (lambda view: view.qs.lo.__setitem__([0, 1], 1), IndexError, "by integers and slices"),
        (lambda view: view.qs.lo.__setitem__((0, 0), 1), IndexError, "at most one for each of 1 axes"),
    ],
)
def test_what_cannot_be_set_is_refused_and_nothing_is_written(change, error, message):
    payload = bytearray(range(6))
    with pytest.raises(error, match=message):
        change(structs.edit(payload, BLOCK))
    assert payload == bytes(range(6))


@pytest.mark.parametrize("buffer", [bytes(6), memoryview(bytes(6)), np.zeros(12, np.uint8)[::2], np.zeros((2, 3), np.uint8).T])
def test_a_buffer_that_cannot_be_written_is_refused(buffer):
    with pytest.raises(PayloadError, match="read-only or not contiguous"):
        structs.edit(buffer, BLOCK)


@pytest.mark.parametrize(
    "make", [bytearray, lambda n: memoryview(bytearray(n)), lambda n: mmap.mmap(-1, n), lambda n: np.zeros(n, np.uint8)]
)
def test_every_writable_buffer_is_written_in_place(make):
    buffer = make(6)
    structs.edit(buffer, BLOCK)["qs"]["hi"] = 9
    assert bytes(buffer[2:]) == b"\x90" * 4


def test_editing_checks_the_length_and_the_type():
    with pytest.raises(PayloadError, match="takes 6 bytes, found 7"):
        structs.edit(bytearray(7), BLOCK)
    with pytest.raises(CheckError, match="needs the type of its bytes"):
        structs.edit(bytearray(7), None)


# ---- Where the bytes live


def test_a_map_cannot_be_closed_under_a_view(tmp_path):
    path = tmp_path / "payload"
    path.write_bytes(bytes(range(12)))
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    view = structs.view(mapped, BLOCK[2])
    leaf = view[1].d
    del view
    gc.collect()
    with pytest.raises(BufferError):
        mapped.close()
    assert leaf.tobytes() == b"\x06\x07"
    del leaf
    gc.collect()
    mapped.close()


def test_a_view_keeps_a_temporary_alive():
    leaf = structs.view(bytearray(range(12)), BLOCK[2]).qs.lo, structs.view(bytearray(range(12)), BLOCK[2]).d
    gc.collect()
    bytearray(b"\xff" * 12)
    assert leaf[0].tolist() == [[2, 3, 4, 5], [8, 9, 10, 11]] and leaf[1][1].tobytes() == b"\x06\x07"


def test_bytes_that_are_not_contiguous_are_read_in_their_order():
    payload = np.arange(24, dtype=np.uint8)[::2]
    view = structs.view(payload, BLOCK[2])
    assert view.qs.lo.tolist() == (payload.reshape(2, 6)[:, 2:] & 15).tolist()
    np.testing.assert_array_equal(view.d.view(np.uint16), payload.copy().view(np.uint16)[::3])
    assert structs.view(memoryview(payload.copy()).cast("B"), u16[6]).value().tolist() == payload.copy().view(np.uint16).tolist()


# ---- Without native code


@pytest.mark.parametrize("width", [1, 3, 4, 7, 8, 11, 16, 31, 33, 64, 70])
@pytest.mark.parametrize("axes", [[(40, None)], [(3, 700), (5, 80)], [(2, 1000), (4, -90)], [(2, 64)] * 9])
def test_numpy_reads_what_the_kernel_reads(monkeypatch, width, axes):
    spread = [structs.Axis(size, width if stride is None else stride) for size, stride in axes]
    reach = sum((axis.size - 1) * abs(axis.stride) for axis in spread)
    payload = np.random.default_rng(width).integers(0, 256, reach // 4 + 40, np.uint8)
    offset = 3 + sum(-(axis.size - 1) * axis.stride for axis in spread if axis.stride < 0)
    fast = unpack(payload, offset, tuple(spread), width, "")
    monkeypatch.setattr(native, "extension", lambda: None)
    np.testing.assert_array_equal(unpack(payload, offset, tuple(spread), width, ""), fast)
