"""Summaries, types and elements as lines of text: 80 columns, coloured where the terminal shows colours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.text import Text

from tenonnx.inspection.bitmap import BITS_PER_ROW, TIMES, BitMap, colour, letter, rows, unwrapped
from tenonnx.inspection.machine import memory
from tenonnx.inspection.values import Element
from tenonnx.structs.physical import Node

WIDTH = 80
_MAX_RULER_ROWS = 48
_MAX_VALUES = 256  # of one field that are printed


def size(bits: int) -> str:
    """A size in bytes, and in bits where it ends within a byte."""
    return f"{bits // 8:,} bytes" if bits % 8 == 0 else f"{bits:,} bits"


# ---- Types


def type_lines(title: str, node: Node) -> Iterator[Text]:
    """A type: its fields as a tree, then a ruler that shows for each bit the letter and colour of its field."""
    dims, element = unwrapped(node)
    times = "".join(f"{dimension:,} {TIMES} " for dimension in dims)
    yield Text(f"{title}: {times}{size(element.bits)}" + (f", {size(node.bits)} in all" if dims else ""), style="bold")
    yield Text()
    listed = rows(element)
    names = max((len(row.guide) + len(row.name) for row in listed), default=5)
    names, types = min(max(names, 5), 34), min(max((len(row.type) for row in listed), default=4), 26)
    yield Text(f"     {'field':{names}}  {'type':{types}}  {'first bit':>9}  {'bits':>6}", style="dim")
    for row in listed:
        key = Text("   ") if row.leaf is None or row.offset is None else _key(row.leaf)
        offset, bits = ("", "") if row.offset is None else (f"{row.offset:,}", f"{row.bits:,}")
        every = f"  every {row.every:,}" if row.every else ""
        name = f"{row.guide}{_clipped(row.name, names - len(row.guide))}"
        yield Text.assemble(" ", key, f" {name:{names}}  {_clipped(row.type, types):{types}}  {offset:>9}  {bits:>6}{every}")
    yield Text()
    yield from _ruler(BitMap(element))


def _key(leaf: int) -> Text:
    return Text(f" {letter(leaf)} ", style=f"black on {colour(leaf)}")


def _ruler(bits: BitMap) -> Iterator[Text]:
    """Eight bytes a line, each from its least significant bit; lines like the one before are counted, not repeated."""
    if not bits.owner.size:
        return
    yield Text("  byte  " + "0      7 " * min(8, -(-bits.owner.size // 8)), style="dim")
    before, alike, printed = None, 0, 0
    for begin in range(0, bits.owner.size, BITS_PER_ROW):
        owners = bits.owner[begin : begin + BITS_PER_ROW]
        if before is not None and np.array_equal(owners, before):
            alike += 1
            continue
        if alike:
            yield _alike(alike)
        if printed == _MAX_RULER_ROWS:
            break
        printed, before, alike = printed + 1, owners, 0
        line = Text(f"{begin // 8:6}  ")
        for first in range(0, owners.size, 8):
            for leaf in owners[first : first + 8].tolist():
                line.append(letter(leaf), style=f"black on {colour(leaf)}")
            line.append(" ")
        yield line
        shown = begin + owners.size
    else:
        if alike:
            yield _alike(alike)
        shown = bits.owner.size
    if bits.total > shown:
        yield Text(f"        … {size(bits.total - shown)} more", style="dim")


def _alike(count: int) -> Text:
    return Text(f"        … {count} {'line' if count == 1 else 'lines'} alike: {8 * count} bytes", style="dim")


# ---- Elements


def element_lines(element: Element) -> Iterator[Text]:
    """The bytes of one element, each digit in the colour of its bits, then its fields and what it stands for."""
    yield Text(f"{element.title}: {size(element.node.bits)}", style="bold")
    if element.payload is not None:
        yield from _bytes(element)
    places = {name: place for place, name in enumerate(element.fields)}
    width = min(max(map(len, places), default=0), 30)
    for name, array in element.fields.items():
        yield from _field(_key(places[name]), f"{_clipped(name, width):{width}}", array)
    if element.decoded is not None:
        yield from _field(Text(" = "), f"{'decoded':{width}}", element.decoded)


def _bytes(element: Element) -> Iterator[Text]:
    owner = BitMap(element.node).owner
    payload = element.payload[: owner.size // 8].tolist() if element.payload is not None else []
    for begin in range(0, len(payload), 16):
        line = Text(f"{begin:6}  ")
        for place, byte in enumerate(payload[begin : begin + 16], begin):
            for digit, bit in ((byte >> 4, 8 * place + 4), (byte & 15, 8 * place)):
                line.append(f"{digit:x}", style=f"black on {colour(int(owner[bit]))}")
            line.append(" ")
        yield line
    hidden = element.node.bits // 8 - len(payload)
    if hidden:
        yield Text(f"        … {hidden:,} bytes more", style="dim")


def _field(key: Text, name: str, array: np.ndarray) -> Iterator[Text]:
    lead = 6 + len(name)
    flat = array.reshape(-1)
    texts = [_number(value) for value in flat[:_MAX_VALUES]]
    if flat.size > _MAX_VALUES:
        texts.append(f"… {flat.size - _MAX_VALUES:,} more")
    line = Text.assemble(" ", key, f" {name} ")
    start = True
    for text in texts:
        if not start and len(line) + len(text) + 1 > WIDTH:
            yield line
            line, start = Text(" " * lead), True
        line.append(text if start else f" {text}")
        start = False
    yield line


def _number(value: Any) -> str:
    if value.dtype.kind in "biu" or "int" in value.dtype.name:
        return str(int(value))
    return str(value) if value.dtype.kind == "c" else f"{float(value):.6g}"


# ---- Models


def summary_lines(found: dict[str, Any], file_bytes: int | None) -> Iterator[Text]:
    """What a model is, in one screen: values whose names differ by numbers alone share a line."""
    total = sum(group["bytes"] for group in found["weights"])
    stored = f"{bytes_text(file_bytes)}; " if file_bytes is not None else ""
    yield Text(f"{found['name']}: {stored}weights {bytes_text(total)}", style="bold")
    opsets = ", ".join(f"{domain} {version}" for domain, version in found["opsets"].items())
    yield Text(f"  IR {found['ir_version']}; {opsets}")
    nodes = ", ".join(f"{name} {count:,}" for name, count in list(found["nodes"].items())[:5])
    yield Text(
        f"  {sum(found['nodes'].values()):,} nodes" + (f": {nodes}, …" if len(found["nodes"]) > 5 else f": {nodes}" * bool(nodes))
    )
    caches = [value for value in found["inputs"] if "access" in value]
    yield from _section("inputs", _grouped([value for value in found["inputs"] if "access" not in value]))
    yield from _section("caches (READ_WRITE)", _grouped(caches))
    yield from _section("memory", list(_memory(found, total)))
    yield from _section("outputs", _grouped(found["outputs"]))
    groups = [
        (group["format"], f"{group['count']:>7,}  {bytes_text(group['bytes']):>12}  {group['file'] or 'in the model'}")
        for group in found["weights"]
    ]
    yield from _section("weights", groups)
    yield from _section("types", [_type(declared) for declared in found["types"]])
    yield from _section("metadata", [(key, _clipped(" ".join(text.split()), 46)) for key, text in found["metadata"].items()])


def _memory(found: dict[str, Any], weights: int) -> Iterator[tuple[str, str]]:
    """What the caches take, and whether weights and caches fit; what a run allocates besides is the plan's to say."""
    each, context = found["cache_bytes_per_token"], found["metadata"].get("tenonnx.context_length", "")
    if each is None:
        return
    yield "a token", f"{each:,} bytes of caches"
    if context.isascii() and context.isdecimal() and len(context) < 10:
        free = memory()
        wanted = weights + each * int(context)
        fits = "fit" if wanted <= free.available else "do not fit"
        yield f"a context of {int(context):,}", f"{bytes_text(each * int(context))}; with the weights {bytes_text(wanted)}"
        yield "", f"these {fits} the {bytes_text(free.available)} that {free.limit}"


def bytes_text(count: int) -> str:
    """Bytes as people read them."""
    return f"{count:,} bytes" if count < 10_000 else f"{count / 1e6:,.2f} MB" if count < 1e9 else f"{count / 1e9:,.2f} GB"


def _type(declared: dict[str, Any]) -> tuple[str, str]:
    bits, uses = declared["bits"], declared["values"]
    used = f"  {uses:,} {'value' if uses == 1 else 'values'}" if uses else ""
    return f"{declared['index']:>3} {declared['name']}", ("invalid" if bits is None else size(bits)) + used


def _grouped(values: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """(name, type) of values; those alike but for the numbers in their names are one line."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for value in values:
        key = _starred(value["name"]), value["type"], _starred(value.get("alias_of", ""))
        groups.setdefault(key, []).append(value)
    lines = []
    for (name, kind, other), members in groups.items():
        # An aliased output has the type of the cache that it is, which is listed above.
        told = f"is {other if len(members) > 1 else members[0]['alias_of']}, updated in place" if other else kind
        lines.append((f"{name} {TIMES} {len(members)}" if len(members) > 1 else members[0]["name"], told))
    return lines


def _starred(name: str) -> str:
    return re.sub(r"\d+", "*", name)


def _section(title: str, lines: list[tuple[str, str]]) -> Iterator[Text]:
    if not lines:
        return
    yield Text(title, style="bold")
    width = min(max(len(left) for left, _ in lines), 34)
    for left, right in lines:
        yield Text(f"  {_clipped(left, width):{width}}  {right}")


def _clipped(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"
