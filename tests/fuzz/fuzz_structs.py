"""Structured types and values from bytes: load, check, view, edit, decode. ``python -m tests.fuzz.fuzz_structs --seconds 60``"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from tests.fuzz import harness

with harness.instrumented():
    from tenonnx import codecs, structs
    from tenonnx.check.structs import check_structs
    from tenonnx.schema.messages import ModelProto, StructProto
    from tenonnx.structs import Node, bits, catalogue, functions, structure
    from tenonnx.structs.scalars import SCALARS

MOST_BYTES = 4096  # of a payload made to fit
MOST_ELEMENTS = 2**16
_SHORT = sorted(SCALARS)
_DECODERS = (
    "(x) => (y) { y = Cast<to = 1>(x) }",
    "(x) => (y) { f = Cast<to = 1>(x) s = Constant<value_ints = [-1, 2]>() y = Reshape(f, s) }",
    "(a, b) => (y) { c = Cast<to = 1>(a) d = Cast<to = 1>(b) y = Mul(c, d) }",
)


class Source:
    """Numbers from bytes, zeros when they are used up."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def number(self, limit: int) -> int:
        """From 0 to ``limit`` - 1."""
        size = max(1, (limit.bit_length() + 7) // 8)
        taken = self._data[self._at : self._at + size]
        self._at += size
        return int.from_bytes(taken, "little") % limit

    def rest(self) -> bytes:
        return self._data[self._at :]


def a_count(source: Source) -> int:
    return source.number(2**64) if source.number(16) == 0 else source.number(9)


def a_type(source: Source, depth: int = 0) -> Node:
    kind = source.number(4 if depth < 6 else 2)
    if kind == 0:
        return structs.tensor(SCALARS[_SHORT[source.number(len(_SHORT))]], *(a_count(source) for _ in range(source.number(3))))
    if kind == 1:
        widths = [source.number(80) if source.number(32) else source.number(2**32) for _ in range(source.number(4))]
        return bits(**{f"c{place}": width for place, width in enumerate(widths)})[a_count(source)]
    if kind == 2:
        return structs.array(a_type(source, depth + 1), a_count(source))
    return structure("", **{f"f{place}": a_type(source, depth + 1) for place in range(source.number(4))})


def built(source: Source) -> None:
    """A type from a grammar, declared, read back, and laid over bytes that fit it."""
    node = a_type(source)
    node = structure("", value=node, fill=bits(pad=-node.bits % 8)[1]) if node.bits % 8 else structure("", value=node)
    model = ModelProto(ir_version=11)
    model.struct_types.append(structs.to_proto(node))
    model.struct_types[0].decoder.CopyFrom(functions.parse("decode", _DECODERS[source.number(len(_DECODERS))]))
    list(check_structs(model))
    size = node.nbytes
    payload = (source.rest() or b"\0") * (1 + min(size, MOST_BYTES))
    looked_at(model, StructProto(name="w", type=0, raw_data=payload[: min(size, MOST_BYTES)]))


def known(source: Source) -> None:
    """Blocks of a known format: the kernel and the formula give the same values."""
    fmt = catalogue[list(catalogue)[source.number(len(catalogue))]]
    if len(fmt.block_shape) > 1:
        return
    data = source.rest()[:MOST_BYTES]
    data = np.frombuffer(data[: len(data) // fmt.nbytes * fmt.nbytes], np.uint8)
    shape = (data.size // fmt.nbytes, *fmt.block_shape)
    if codecs.native.decodes(fmt):
        np.testing.assert_array_equal(codecs.native.decode(fmt, data, shape), fmt.decode(data, shape))


def parsed(source: Source) -> None:
    """A model as it comes, and each of its values."""
    model = ModelProto()
    try:
        model.ParseFromString(source.rest())
    except DecodeError:
        return
    list(check_structs(model))
    for value in model.graph.struct_initializer:
        looked_at(model, value)


def looked_at(model: Any, value: Any) -> None:
    view = structs.view(value, struct_types=model.struct_types)
    node = structs.Types(model.struct_types).of_value(value, "value")
    if all(math.prod(leaf.shape) <= MOST_ELEMENTS for leaf in structs.leaves(node)):
        rewritten(view, node, value)
        view.hexdump(limit=256)
        if hasattr(view, "to_dict"):
            view.to_dict()
    codecs.decode(value, model)


def rewritten(view: Any, node: Node, value: Any) -> None:
    """What a view reads, packed again, is the payload."""
    packed = structs.packing.pack_leaves(
        node, [array for array, leaf in zip(view.leaves(), structs.leaves(node), strict=True) if leaf.constant is None], "value"
    )
    if packed.tobytes() != value.raw_data and not any("FLOAT" in leaf.elem_type.name for leaf in structs.leaves(node)):
        raise AssertionError("a view and its packing differ")


def target(data: bytes) -> None:
    source = Source(data)
    (built, known, parsed)[source.number(3)](source)


def seeds() -> list[bytes]:
    found = [bytes([0, *range(40)]), bytes([0, 3, 2, 1, 2, 4, 0, 4, 0, 8]), bytes([0, 2, 3, 1, 1, 5, 7, 9])]
    for place, name in enumerate(catalogue):
        fmt = catalogue[name]
        found.append(bytes([1, place, *range(min(255, 2 * fmt.nbytes))]))
        if len(fmt.block_shape) == 1:
            model = ModelProto(ir_version=11)
            root = structs.declare(model, fmt, (2, fmt.elements))
            model.graph.struct_initializer.add(name="w", type=root, raw_data=bytes(2 * fmt.nbytes))
            found.append(b"\2" + model.SerializeToString())
    return found


if __name__ == "__main__":
    harness.main(target, seeds())
