"""Runs every hostile type and payload in a process of its own, and reports what each was answered with and what that took.

    python -m tests.hostile.limited        prints one JSON object: case → [error, message, seconds, bytes]

Bytes are the peak of what Python and NumPy allocate while a case is answered, above what the imports and the case hold.
"""

from __future__ import annotations

import json
import resource
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from tenonnx import codecs, structs
from tenonnx.check.structs import check_structs
from tenonnx.schema.messages import ModelProto, StructProto, TensorProto
from tenonnx.structs import bits, functions, structure, u8
from tenonnx.structs.scalars import SCALARS

Case = Callable[[], Any]


def refer(message: Any, index: int) -> None:
    message.struct_type.type_index = index


def chain(length: int, last: int | None = None) -> Any:
    """``length`` declarations, each an array of the next; the last refers to ``last``, or is an array of bytes."""
    model = ModelProto()
    for index in range(length):
        array = model.struct_types.add().array
        array.dimension = 1
        target = index + 1 if index + 1 < length else last
        if target is not None:
            refer(array.element_type, target)
        else:
            array.element_type.CopyFrom(structs.to_proto(u8[1]).array.element_type)
    return model


def doubling(levels: int) -> Any:
    """Each declaration holds the next one twice: 2 ** levels leaves."""
    model = ModelProto()
    for index in range(levels):
        declared = model.struct_types.add().structure
        for name in "ab":
            refer(declared.field.add(name=name).type, index + 1)
    model.struct_types.append(structs.to_proto(u8[1]))
    return model


def nested(*dimensions: int) -> Any:
    """Arrays of these dimensions, from outer to inner, of one byte."""
    model = ModelProto()
    declaration = model.struct_types.add()
    for place, dimension in enumerate(dimensions):
        declaration.array.dimension = dimension
        if place + 1 < len(dimensions):
            declaration = declaration.array.element_type.struct_type
    declaration.array.element_type.CopyFrom(structs.to_proto(u8[1]).array.element_type)
    return model


def repeated(part: Any, dimension: int) -> Any:
    """An array of ``dimension`` elements of a declaration that has no bits."""
    model = ModelProto()
    model.struct_types.append(part)
    array = model.struct_types.add().array
    array.dimension = dimension
    refer(array.element_type, 0)
    return model


def twice(kind: str) -> Any:
    """Two members of one name."""
    model = ModelProto()
    declaration = model.struct_types.add()
    byte = structs.to_proto(u8[1]).array.element_type
    if kind == "component":
        for _ in range(2):
            declaration.bit_packing.component.add(name="a", bit_width=4)
        declaration.bit_packing.dimension = 1
    else:
        declaration.structure.field.add(name="a").type.CopyFrom(byte)
        field = declaration.structure.field.add(name="a")
        if kind == "constant":
            field.constant.CopyFrom(TensorProto(data_type=2, raw_data=b"x"))
        else:
            field.type.CopyFrom(byte)
    return model


def outside(place: str) -> Case:
    """Bytes in another file, named by a value, by a constant, or within a decoder."""
    entries = [("location", "../../../../etc/passwd"), ("length", "18446744073709551615")]
    model = ModelProto()
    declaration = model.struct_types.add()
    declaration.CopyFrom(structs.to_proto(structure("", a=u8)))
    value = StructProto(name="w", type=0)
    if place == "value":
        target = value
    else:
        value.raw_data = b"x"
        if place == "constant":
            target = declaration.structure.field.add(name="c").constant
        else:
            declaration.decoder.CopyFrom(
                functions.parse("decode", "(a) => (y) { c = Constant<value = float {1}>() y = Identity(c) }")
            )
            target = declaration.decoder.node[0].attribute[0].t
        target.data_type, target.data_location = 2, TensorProto.EXTERNAL
    for key, text in entries:
        target.external_data.add(key=key, value=text)
    return lambda: codecs.decode(value, model)


def decoding(text: str) -> Case:
    """A decoder that makes much of two bytes."""
    model = ModelProto(ir_version=11)
    declaration = model.struct_types.add()
    declaration.CopyFrom(structs.to_proto(u8[2]))
    declaration.decoder.CopyFrom(functions.parse("decode", text))
    return lambda: codecs.decode(StructProto(name="w", type=0, raw_data=b"ab"), model)


def sized(model: Any, index: int = 0) -> Case:
    return lambda: structs.view(b"x", index, model.struct_types)


def cases() -> dict[str, Case]:
    """Everything hostile, by name; each case raises."""
    found: dict[str, Case] = {
        "cycle of one": sized(chain(1, last=0)),
        "cycle of two": sized(chain(2, last=0)),
        "chain of 100,000": sized(chain(100_000)),
        "chain of 4,000": sized(chain(4_000)),
        "2^40 leaves": sized(doubling(40)),
        "2^32 x 2^32": sized(nested(2**32, 2**32)),
        "dims that wrap": sized(nested(4194305, 4194305, 211106198978564)),
        "0 x 2^32 x 2^32": sized(nested(0, 2**32, 2**32)),
        "bits that wrap": sized(nested(2**61)),
        "nothing x 2^63": sized(repeated(structs.to_proto(structure("")), 2**63), 1),
        "empty packing x 2^63": sized(repeated(structs.to_proto(bits()[1]), 2**63), 1),
        "7e8 elements of one byte": lambda: structs.view(b"x", u8[700_000_000]),
        "7e8 codes of one byte": lambda: structs.view(b"x", bits(a=1)[700_000_000]),
        "decoder of Tile": decoding("(x) => (y) { r = Constant<value_ints = [1000000000]>() y = Tile(x, r) }"),
        "decoder of its payload's size": decoding("(x) => (y) { s = Cast<to = 7>(x) y = ConstantOfShape(s) }"),
        "decoder of Range": decoding(
            "(x) => (y) { a = Constant<value_int = 0>() b = Constant<value_int = 90000000000>() d = Constant<value_int = 1>() "
            "y = Range(a, b, d) }"
        ),
        "decoder of a Loop": decoding(
            "(x) => (y) { n = Constant<value_int = 9000000000>() t = Constant<value = bool {1}>() z = Cast<to = 1>(x) "
            "y = Loop(n, t, z) <body = b (int64 i, bool k, float[2] v) => (bool l, float[2] w) "
            "{ l = Identity(k) w = Identity(v) }> }"
        ),
        "decoder of a nested Tile": decoding(
            "(x) => (y) { t = Constant<value = bool {1}>() y = If(t) <then_branch = a () => (float[n] w) "
            "{ r = Constant<value_ints = [1000000000]>() h = Tile(x, r) w = Cast<to = 1>(h) }, "
            "else_branch = b () => (float[2] v) { v = Cast<to = 1>(x) }> }"
        ),
    }
    found |= {f"two of one name: {kind}": sized(twice(kind)) for kind in ("field", "constant", "component")}
    found |= {f"another file: {place}": outside(place) for place in ("value", "constant", "decoder")}
    for short, scalar in SCALARS.items():
        node = structs.tensor(scalar, 8)
        for length in (0, node.bits // 8 - 1, node.bits // 8 + 1):
            found[f"{short} in {length} bytes"] = lambda node=node, length=length: structs.view(bytes(length), node[1])
    return found


def raised(case: Case) -> tuple[str, str]:
    try:
        case()
    except Exception as error:
        return type(error).__name__, str(error)
    return "none", ""


def answer(case: Case) -> list[Any]:
    start = time.perf_counter()
    error, message = raised(case)
    seconds = time.perf_counter() - start
    tracemalloc.start()  # a second time, as tracing costs time of its own
    raised(case)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return [error, message, seconds, peak]


def main() -> None:
    prepared = cases()
    codecs.decode(*_warm())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answers = {name: answer(case) for name, case in prepared.items()}
    # What the checker makes of the same types belongs to the same limits.
    for name, model in (("chain", chain(100_000)), ("doubling", doubling(40)), ("cycle", chain(4_000, last=0))):
        answers[f"check: {name}"] = answer(lambda model=model: _found(model))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    print(json.dumps({"answers": answers, "grown": grown}))


def _warm() -> tuple[Any, Any]:
    """A value whose decoding imports what the cases will use."""
    model = ModelProto(ir_version=11)
    declaration = model.struct_types.add()
    declaration.CopyFrom(structs.to_proto(u8[2]))
    declaration.decoder.CopyFrom(functions.parse("decode", "(x) => (y) { y = Cast<to = 1>(x) }"))
    return StructProto(name="w", type=0, raw_data=b"ab"), model


def _found(model: Any) -> None:
    found = list(check_structs(model))
    raise ValueError("; ".join(f"{finding.kind} {finding.rule}" for finding in found))


if __name__ == "__main__":
    main()
