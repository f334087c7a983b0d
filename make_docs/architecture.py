"""The drawing of the one-way flow, from the order that the test of imports enforces."""

from __future__ import annotations

from xml.etree import ElementTree as xml

from tests.pure.test_imports import NATIVE_FROM, ORDER

# What each module is for, in few words, as the drawing says it.
PURPOSES = {
    "errors": "the tree of errors",
    "dtypes": "element types",
    "callables": "packages that are functions",
    "collection": "garbage left for later",
    "schema": "messages, files, graph index",
    "structs": "structured types, formats",
    "alias": "alias roots and chains",
    "shapes": "shapes through aliases",
    "check": "the rules",
    "layouts": "what kernels read",
    "plan": "steps, memory, proof",
    "codecs": "decode and encode",
    "cache": "dense and paged caches",
    "compiled": "packs",
    "runtime": "sessions",
    "convert": "GGUF, exports, quantize",
    "text": "tokens in and out",
    "inspection": "looking at models",
    "cli": "the command line",
}
# What a stage hands on to those below it, where it is alone in its rank.
GIVES = {
    "schema": "ModelProto, a flat graph that is indexed",
    "structs": "sizes, views, formats and decoders",
    "alias": "the owner of each value's storage",
    "shapes": "a type for every value",
    "check": "findings, or a model that keeps the rules",
    "layouts": "which format packs to which layout",
    "plan": "a frozen table of steps and storage",
    "runtime": "Session: results in the caller's storage",
    "convert": "models that declare their storage",
    "text": "a stream of text",
    "inspection": "tables and pictures",
}
_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _PER_ROW = 172, 46, 14, 26, max(map(len, ORDER))
_FONT = "system-ui, 'DejaVu Sans', sans-serif"


def svg() -> str:
    """Ranks from top to bottom, modules of one rank beside each other; each imports only from above."""
    width = 2 * 20 + _PER_ROW * _WIDTH + (_PER_ROW - 1) * _GAP_X + 170
    height = 20 + len(ORDER) * (_HEIGHT + _GAP_Y)
    root = xml.Element("svg", xmlns="http://www.w3.org/2000/svg", width=str(width), height=str(height))
    root.set("viewBox", f"0 0 {width} {height}")
    root.set("font-family", _FONT)
    xml.SubElement(root, "rect", width="100%", height="100%", fill="#ffffff")
    for rank, names in enumerate(ORDER):
        _rank(root, rank, names)
    boundary = _top(NATIVE_FROM) - _GAP_Y / 2
    line = xml.SubElement(root, "path", d=f"M20 {boundary:g}H{width - 20}", stroke="#b05000")
    line.set("stroke-dasharray", "5 4")
    beside = 20 + _PER_ROW * (_WIDTH + _GAP_X)
    _text(root, beside, boundary - 5, "above: without native code", 11, "#b05000", "start")
    _text(root, beside, boundary + 14, "below: kernels and executor", 11, "#b05000", "start")
    return xml.tostring(root, encoding="unicode") + "\n"


def _top(rank: int) -> float:
    return 20 + rank * (_HEIGHT + _GAP_Y)


def _rank(root: xml.Element, rank: int, names: tuple[str, ...]) -> None:
    middle, top = 20 + (_PER_ROW * _WIDTH + (_PER_ROW - 1) * _GAP_X) / 2, _top(rank)
    left = middle - (len(names) * _WIDTH + (len(names) - 1) * _GAP_X) / 2
    for place, name in enumerate(names):
        x = left + place * (_WIDTH + _GAP_X)
        fill = "#e3edf7" if rank < NATIVE_FROM else "#fbe9d7"
        xml.SubElement(
            root, "rect", x=f"{x:g}", y=f"{top:g}", width=str(_WIDTH), height=str(_HEIGHT), rx="5", fill=fill, stroke="#54708c"
        )
        _text(root, x + _WIDTH / 2, top + 19, name, 14, "#111111", "middle")
        _text(root, x + _WIDTH / 2, top + 36, PURPOSES[name], 10.5, "#555555", "middle")
        if name in GIVES:
            _text(root, x + _WIDTH + _GAP_X, top + 28, f"gives {GIVES[name]}", 11.5, "#333333", "start")
    if rank:
        xml.SubElement(root, "path", d=f"M{middle:g} {top - _GAP_Y + 3:g}v{_GAP_Y - 11:g}", stroke="#54708c")
        xml.SubElement(root, "path", d=f"M{middle - 5:g} {top - 9:g}l5 7l5 -7z", fill="#54708c")


def _text(root: xml.Element, x: float, y: float, text: str, size: float, fill: str, anchor: str) -> None:
    made = xml.SubElement(root, "text", x=f"{x:g}", y=f"{y:g}", fill=fill)
    made.set("font-size", f"{size:g}")
    made.set("text-anchor", anchor)
    made.text = text
