"""Compute layouts as structured types: what each byte of a pack is, and a decoder that gives the source's tensor back.

A pack of a matrix [rows, columns] is an array of groups of 8 rows, each an array of blocks along the columns. A block is a
head and 1 to 8 sub-blocks of 32 columns; ``native/kernels/packed.hpp`` shows their bytes, and the table below declares them.
Rows that fill up the last group are declared like any other, hold zeros, and are sliced away by the decoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from tenonnx.compiled import lookup_types
from tenonnx.compiled.decoder_text import Sizes, decoder_text
from tenonnx.layouts import Layout
from tenonnx.layouts.layout import ROWS
from tenonnx.structs import functions
from tenonnx.structs.builder import bits, structure, tensor, to_proto
from tenonnx.structs.physical import Array, BitPacking, Node
from tenonnx.structs.scalars import bf16, f8e8m0, f16, f32, i8, u8

Fields = Mapping[str, Node]
Rows = dict[str, tuple[str, ...]]  # numbers of a row by name: the leaf that holds them, or two for columns 0..15 and 16..31

SUB = 32  # columns of a sub-block


@dataclass(frozen=True)
class LayoutType:
    """The block of 8 rows of one layout.

    ``planes`` are the bits of each plane of codes, (8,) standing for whole signed bytes. ``formula`` computes ``values`` from
    ``codes``, which are numbers of ``table`` where that is not empty, and from ``x_numbers`` for every x that ``rows`` names.
    """

    formula: str
    rows: Rows
    planes: tuple[int, ...]
    head: Fields = field(default_factory=dict)
    scales: Fields = field(default_factory=dict)
    table: tuple[float, ...] = ()

    def block(self, columns: int) -> Node:
        """The type of a block of this many columns."""
        codes: Fields = {f"plane_{number}": _plane(width) for number, width in enumerate(self.planes)}
        subs = Array(structure("", **self.scales, **codes), columns // SUB)
        return structure("", **self.head, subs=subs)


def _plane(width: int) -> Node:
    """Codes of 8 rows by 32 columns: ``width`` vectors of 32 bytes, the low half of each byte for columns 0..15."""
    if width == 8:
        return tensor(i8, 8, ROWS, 4)
    packing: BitPacking = bits(**{f"{half}{part}": width for half in ("low", "high") for part in range(4 // width)})[32 * width]
    return packing


def _of(*names: str) -> Rows:
    return {name: (f"subs.{name}",) for name in names}


def _twice(name: str, path: str = "") -> Rows:
    return {name: tuple(f"subs.{half}{path}" for half in ("first", "second"))}


def _centred(zero: int, scale: str = "scale = Identity(d_numbers)") -> str:
    return f"""
  {scale}
  zero = Constant<value_float = {zero}.0>()
  centred = Sub(codes, zero)
  values = Mul(scale, centred)"""


_AFFINE = """
  scaled = Mul(d_numbers, codes)
  values = Add(scaled, m_numbers)"""
_SMALL_AFFINE = """
  scale = Mul(d_numbers, s_numbers)
  minimum = Mul(e_numbers, t_numbers)
  scaled = Mul(scale, codes)
  values = Sub(scaled, minimum)"""
_SCALED = """
  values = Mul(d_numbers, codes)"""
_SMALL_SCALED = """
  scale = Mul(d_numbers, s_numbers)
  values = Mul(scale, codes)"""
_ZERO_OF_BLOCK = """
  centred = Sub(codes, z_numbers)
  values = Mul(d_numbers, centred)"""
_HALVED = """
  two = Constant<value_float = 2.0>()
  scale = Mul(d_numbers, two)
  values = Mul(scale, codes)"""
_SMALL = "scale = Mul(d_numbers, s_numbers)"

_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)

_D: Rows = {"d": ("d",)}
_DE: Rows = {"d": ("d",), "e": ("e",)}
_HALF, _HALVES = {"d": f16[ROWS]}, {"d": f16[ROWS], "m": f16[ROWS]}
_TWO_HALVES = {"d": f16[ROWS], "e": f16[ROWS]}
_BYTES, _PAIR = {"s": u8[ROWS], "t": u8[ROWS]}, {"first": i8[ROWS], "second": i8[ROWS]}
_NIBBLES = {"first": bits(s=4, t=4)[ROWS], "second": bits(s=4, t=4)[ROWS]}

# A layout without an entry, here or in ``lookup_types``, is packed at load and never stored.
TYPES: dict[str, LayoutType] = {
    "q4": LayoutType(_centred(8), _of("d"), (4,), scales=_HALF),
    "q4m": LayoutType(_AFFINE, _of("d", "m"), (4,), scales=_HALVES),
    "q5": LayoutType(_centred(16), _of("d"), (4, 1), scales=_HALF),
    "q5m": LayoutType(_AFFINE, _of("d", "m"), (4, 1), scales=_HALVES),
    "q8": LayoutType(_SCALED, _of("d"), (8,), scales=_HALF),
    "iq4": LayoutType(_SCALED, _of("d"), (4,), scales=_HALF, table=_IQ4),
    "fp4": LayoutType(_SCALED, _of("d"), (4,), scales={"d": f8e8m0[ROWS]}, table=_E2M1),
    "fp4h": LayoutType(_HALVED, _twice("d"), (4,), scales={"first": f16[ROWS], "second": f16[ROWS]}, table=_E2M1),
    "g4": LayoutType(_ZERO_OF_BLOCK, {**_D, "z": ("z",)}, (4,), head={"d": f32[ROWS], "z": u8[ROWS]}),
    "g8": LayoutType(_ZERO_OF_BLOCK, {**_D, "z": ("z",)}, (8,), head={"d": f32[ROWS], "z": i8[ROWS]}),
    "q2k": LayoutType(_SMALL_AFFINE, {**_DE, **_twice("s", ".s"), **_twice("t", ".t")}, (2,), _TWO_HALVES, _NIBBLES),
    "q3k": LayoutType(_centred(4, _SMALL), {**_D, **_twice("s")}, (2, 1), _HALF, _PAIR),
    "q4k": LayoutType(_SMALL_AFFINE, {**_DE, **_of("s", "t")}, (4,), _TWO_HALVES, _BYTES),
    "q5k": LayoutType(_SMALL_AFFINE, {**_DE, **_of("s", "t")}, (4, 1), _TWO_HALVES, _BYTES),
    "q6k": LayoutType(_centred(32, _SMALL), {**_D, **_twice("s")}, (4, 2), _HALF, _PAIR),
    "iq4k": LayoutType(_SMALL_SCALED, {**_D, **_of("s")}, (4,), _HALF, {"s": i8[ROWS]}, _IQ4),
}
FLOATS: dict[str, Node] = {"f16": f16, "bf16": bf16, "f32": f32}


def _type(layout: Layout) -> LayoutType | None:
    name, _, columns = layout.name.partition("_")
    return TYPES.get(name) if columns in ("", str(layout.columns)) else None


def storable(layout: Layout) -> bool:
    """Whether packs of a layout can be stored: whether it is declared as a type."""
    return layout.name in FLOATS or _type(layout) is not None or lookup_types.known(layout)


def identity(layout: Layout, columns_first: bool = False) -> str:
    """Name and version, and whether the source is the matrix's transpose: what a stored pack must have to be used."""
    return f"{layout.name}.{layout.version}" + (".transposed" if columns_first else "")


@cache
def node(layout: Layout, rows: int, columns: int) -> Node:
    """The physical type of a packed [rows, columns] matrix; the layout must be ``storable``."""
    if lookup_types.known(layout):
        return lookup_types.node(layout, rows, columns)
    kind = _type(layout)
    block = FLOATS[layout.name][ROWS] if kind is None else kind.block(layout.columns)
    return Array(Array(block, columns // layout.columns), -(-rows // ROWS))


@cache
def declaration(layout: Layout, rows: int, columns: int, columns_first: bool = False) -> bytes:
    """The serialized StructTypeProto of a packed [rows, columns] matrix; its decoder gives the source, which is
    [columns, rows] with ``columns_first``.
    """
    declared = to_proto(node(layout, rows, columns), f"tenonnx.{identity(layout, columns_first)}[{rows}, {columns}]")
    declared.decoder.CopyFrom(functions.parse("decode", _decoder(layout, rows, columns, columns_first)))
    return bytes(declared.SerializeToString(deterministic=True))


def _decoder(layout: Layout, rows: int, columns: int, columns_first: bool) -> str:
    sizes = Sizes(rows, columns, -(-rows // ROWS), columns // layout.columns, layout.columns // SUB, columns_first)
    if lookup_types.known(layout):
        return lookup_types.decoder(layout, sizes)
    kind = _type(layout)
    return decoder_text(node(layout, rows, columns), sizes, kind)
