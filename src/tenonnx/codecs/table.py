"""What this version does with each format of the catalogue: ``python -m tenonnx.codecs.table`` prints it as Markdown."""

from __future__ import annotations

from typing import NamedTuple

from tenonnx import _native
from tenonnx.layouts import layout_for
from tenonnx.structs import Format, catalogue
from tenonnx.structs.layout import leaves
from tenonnx.structs.packing import whole_bytes
from tenonnx.structs.physical import Array

_SAMPLE = (8, 256)  # a matrix that every layout's blocks divide


class Row(NamedTuple):
    """One format: its size, and how each thing is done with it."""

    format: str
    block: str
    nbytes: str
    bits: str  # per element
    view: str
    decode: str
    encode: str
    layout: str


def row(fmt: Format) -> Row:
    """The row of one format, from the format and from what the native module and the layouts have for its name."""
    layout = layout_for(fmt.name, _SAMPLE)
    native = ["native"] if _native.has_kernel(f"decode_{fmt.name}", "portable") else []
    return Row(
        fmt.name,
        " x ".join(map(str, fmt.block_shape)) or "1",
        str(fmt.nbytes),
        f"{fmt.block_type.bits / fmt.elements:.4g}",
        _view(fmt),
        ", ".join([*native, "NumPy", "ONNX"]),
        "values" if fmt.quantize else "leaves",
        layout.name if layout else "decoded at load",
    )


def _view(fmt: Format) -> str:
    """Which fields of an array of blocks are views of the payload, without a copy."""
    places = [leaf for leaf in leaves(Array(fmt.block_type, 2)) if leaf.constant is None]
    direct = [leaf.scalar is not None and whole_bytes(leaf.offset, leaf.axes, leaf.bits) for leaf in places]
    if all(direct):
        return "zero-copy"
    names = [f"`{leaf.path}`" for leaf, whole in zip(places, direct, strict=True) if whole]
    return f"unpacked; zero-copy {', '.join(names)}" if names else "unpacked"


def markdown() -> str:
    """The table of all formats as Markdown."""
    heads = ("Format", "Elements", "Bytes", "Bits each", "View", "Decode", "Encode from", "Layout")
    lines = [heads, ("---",) * len(heads), *(row(catalogue[name]) for name in catalogue)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    print(markdown())
