"""The bit map of a type as a drawing: one row per 8 bytes, the least significant bit of each byte on the left."""

from __future__ import annotations

from xml.etree import ElementTree as xml

from tenonnx.inspection.bitmap import BITS_PER_ROW, TIMES, BitMap, colour, printable, rows, unwrapped
from tenonnx.structs.physical import Node

_CELL, _HEIGHT, _GAP = 14, 26, 6  # pixels: width of a bit, height of a row, between bytes
_LEFT, _TOP, _LINE = 76, 74, 19
_CHARACTER = 6.1  # pixels of one in the labels' size
_WIDTH = _LEFT + BITS_PER_ROW * _CELL + 7 * _GAP + 20
_MAX_ROWS = 48
_NAMES, _TYPES, _OFFSETS, _SIZES = 44, 260, 500, 580  # columns of the legend


def svg(title: str, node: Node) -> str:
    """A self-contained SVG of one element of a type, with a legend of its fields."""
    dims, element = unwrapped(node)
    bits = BitMap(element)
    shown = min(-(-bits.owner.size // BITS_PER_ROW), _MAX_ROWS)
    listed = rows(element)
    legend = _TOP + shown * _HEIGHT + 48
    height = legend + (len(listed) + 1) * _LINE + 16
    root = xml.Element("svg", xmlns="http://www.w3.org/2000/svg", width=str(_WIDTH), height=str(height))
    root.set("viewBox", f"0 0 {_WIDTH} {height}")
    root.set("font-family", "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace")
    xml.SubElement(root, "rect", width="100%", height="100%", fill="#ffffff")
    _text(root, 20, 26, title, 16, weight="bold")
    times = "".join(f"{dimension:,} {TIMES} " for dimension in dims)
    _text(
        root,
        20,
        45,
        f"{times}{bits.total:,} bits{_bytes(bits.total)}; bit 0, the least significant, on the left of each byte",
        11,
    )
    for bit in range(BITS_PER_ROW if shown else 0):
        _text(root, _x(bit) + _CELL / 2, _TOP - 6, str(bit % 8), 8, anchor="middle", fill="#777777")
    for row in range(shown):
        _row(root, bits, row)
    if bits.total > shown * BITS_PER_ROW:
        _text(root, _LEFT, _TOP + shown * _HEIGHT + 16, f"… {bits.total - shown * BITS_PER_ROW:,} bits more", 11)
    _text(root, _NAMES, legend, "field", 11, fill="#777777")
    for x, name in ((_TYPES, "type"), (_OFFSETS, "first bit"), (_SIZES, "bits")):
        _text(root, x, legend, name, 11, fill="#777777")
    for place, line in enumerate(listed):
        y = legend + (place + 1) * _LINE
        if line.leaf is not None and line.offset is not None:
            xml.SubElement(root, "rect", x="20", y=str(y - 11), width="16", height="13", fill=colour(line.leaf), stroke="#333333")
        _text(root, _NAMES, y, line.guide + line.name, 12)
        _text(root, _TYPES, y, line.type, 12)
        if line.offset is not None:
            _text(root, _OFFSETS, y, f"{line.offset:,}", 12)
            _text(root, _SIZES, y, f"{line.bits:,}" + (f" every {line.every:,}" if line.every else ""), 12)
    return xml.tostring(root, encoding="unicode") + "\n"


def _bytes(bits: int) -> str:
    return f" = {bits // 8:,} bytes" if bits % 8 == 0 else ""


def _x(bit: int) -> int:
    """The left edge of a bit within its row."""
    return _LEFT + bit * _CELL + bit // 8 * _GAP


def _row(root: xml.Element, bits: BitMap, row: int) -> None:
    begin = row * BITS_PER_ROW
    y = _TOP + row * _HEIGHT
    _text(root, _LEFT - 10, y + 16, f"byte {begin // 8}", 10, anchor="end", fill="#777777")
    for first, last, leaf in bits.runs(begin, begin + BITS_PER_ROW):
        left, right = _x(first - begin), _x(last - 1 - begin) + _CELL
        box = xml.SubElement(root, "rect", x=str(left), y=str(y), width=str(right - left), height=str(_HEIGHT - 4))
        box.set("fill", colour(leaf))
        box.set("stroke", "#333333")
        label = bits.label(first)
        xml.SubElement(box, "title").text = printable(f"{label}: bits {first} to {last - 1}")
        short = next((text for text in (label.rpartition(".")[2], label[label.find("[") :]) if _fits(text, right - left)), "")
        if short:
            _text(root, (left + right) / 2, y + 15, short, 10, anchor="middle")


def _fits(text: str, width: int) -> bool:
    return len(text) * _CHARACTER <= width - 4


def _text(
    root: xml.Element, x: float, y: float, text: str, size: int, *, anchor: str = "start", fill: str = "#111111", weight: str = ""
) -> None:
    made = xml.SubElement(root, "text", x=f"{x:g}", y=f"{y:g}", fill=fill)
    made.set("font-size", str(size))
    made.set("text-anchor", anchor)
    if weight:
        made.set("font-weight", weight)
    made.set("xml:space", "preserve")
    made.text = printable(text)
