"""The page map of a saved cache: one cell for each page of each group of tables, coloured by format."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from tenonnx.cache.store import SavedPages, read_header
from tenonnx.inspection.bitmap import printable

if TYPE_CHECKING:
    from rich.text import Text

# From exact to coarse, for those who see no colours by a letter too.
_SHOWN = {
    "F32": ("F", "#08306b"),
    "F16": ("H", "#08519c"),
    "BF16": ("B", "#2171b5"),
    "FP8_PAGE": ("8", "#41ab5d"),
    "INT8_PAGE": ("i", "#78c679"),
    "Q8_0": ("q", "#addd8e"),
    "INT4_PAGE": ("4", "#fe9929"),
    "Q4_0": ("d", "#fec44f"),
    "MXFP4": ("m", "#fee391"),
    "INT2_PAGE": ("2", "#e31a1c"),
}
_OTHER = ("?", "#969696")
_CELLS = 64  # of a line


def read_page_map(path: str | os.PathLike[str]) -> SavedPages:
    """What a file of ``PagedCache.save`` says of its pages; none of them is read. ``PayloadError`` for another file."""
    return read_header(path)


def groups(saved: SavedPages) -> dict[str, list[str]]:
    """Tables whose pages have the same formats throughout, under a name of their own: what one row of the map stands for."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for name in saved.tables:
        rows.setdefault(tuple(page[name][0] for page in saved.pages), []).append(name)
    return {names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more": names for names in rows.values()}


def described(saved: SavedPages) -> dict[str, Any]:
    """The map as plain values, for JSON."""
    by_format: Counter[str] = Counter()
    for page in saved.pages:
        for format, nbytes, _ in page.values():
            by_format[format] += nbytes
    return {
        "tokens": saved.length,
        "page_tokens": saved.tokens,
        "pages": len(saved.pages),
        "bytes": saved.nbytes,
        "cache_bytes_by_format": dict(by_format),
        "formats": {name: [page[names[0]][0] for page in saved.pages] for name, names in groups(saved).items()},
    }


def page_lines(saved: SavedPages) -> Iterator[Text]:
    """The map in coloured cells, oldest page first."""
    from rich.text import Text

    found = described(saved)
    yield Text(f"{saved.length} tokens in {len(saved.pages)} pages of {saved.tokens}, {saved.nbytes:,} bytes")
    for name, formats in found["formats"].items():
        yield Text(f"  {name}")
        for start in range(0, len(formats), _CELLS):
            line = Text("    ")
            for format in formats[start : start + _CELLS]:
                letter, colour = _SHOWN.get(format, _OTHER)
                line.append(letter, style=f"white on {colour}")
            yield line
    for format, nbytes in found["cache_bytes_by_format"].items():
        letter, colour = _SHOWN.get(format, _OTHER)
        line = Text("  ")
        line.append(letter, style=f"white on {colour}")
        line.append(f" {format}: {nbytes:,} bytes")
        yield line


def page_svg(saved: SavedPages) -> str:
    """The map as an SVG picture."""
    found, cell, top = described(saved), 12, 24
    parts: list[str] = []
    for name, formats in found["formats"].items():
        parts.append(f'<text x="8" y="{top}">{escape(printable(name))}</text>')
        for number, format in enumerate(formats):
            x, y = 8 + number % _CELLS * cell, top + 6 + number // _CELLS * cell
            title = f"page {number}: {escape(printable(format))}"
            colour = _SHOWN.get(format, _OTHER)[1]
            parts.append(f'<rect x="{x}" y="{y}" width="11" height="11" fill="{colour}"><title>{title}</title></rect>')
        top += 24 + -(-len(formats) // _CELLS) * cell
    for place, (format, nbytes) in enumerate(found["cache_bytes_by_format"].items()):
        y = top + 16 * place
        parts.append(f'<rect x="8" y="{y - 10}" width="11" height="11" fill="{_SHOWN.get(format, _OTHER)[1]}"/>')
        parts.append(f'<text x="26" y="{y}">{escape(printable(format))}: {nbytes:,} bytes</text>')
    top += 16 * len(found["cache_bytes_by_format"])
    size = f'width="{16 + _CELLS * cell}" height="{top}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>", ""])
