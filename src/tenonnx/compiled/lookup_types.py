"""The generic layouts as structured types: codes of 4 bits as places in a table; ``native/kernels/lookup.hpp`` has the bytes."""

from __future__ import annotations

from tenonnx.compiled.decoder_text import Sizes
from tenonnx.layouts import Layout
from tenonnx.layouts.layout import generic
from tenonnx.structs.builder import bits, structure
from tenonnx.structs.physical import Array, Node, Structure
from tenonnx.structs.scalars import f16, f32

_ENTRIES = 16
_TABLES = {"lut": "", "lut16": "FLOAT16", "lut32": "FLOAT"}  # whose element type each block has, by kernel

# Of every 32 columns, column i is the low half of byte i and column i + 16 the high one.
_DECODER = """({inputs}) => (decoded) {{
  half_shape = Constant<value_ints = [{rows}, {blocks}, {subs}, 1, 16]>()
  low = Reshape({low}, half_shape)
  high = Reshape({high}, half_shape)
  joined = Concat<axis = 3>(low, high)
  code_shape = Constant<value_ints = [{rows}, {blocks}, {group}]>()
  bytes = Reshape(joined, code_shape)
  places = Cast<to = 6>(bytes)
  last = Constant<value_ints = [-1]>()
  scales = Unsqueeze({scale}, last)
  minima = Unsqueeze({minimum}, last)
  entries = Cast<to = 1>({table})
  looked_up = {look_up}
  scaled = Mul(looked_up, scales)
  values = Add(scaled, minima)
  shape = Constant<value_ints = [{rows}, {columns}]>()
  decoded = Reshape(values, shape)
}}"""


def known(layout: Layout) -> bool:
    """Whether a layout is one of these."""
    return layout.kernel in _TABLES and layout.name == generic(layout.columns, _TABLES[layout.kernel]).name


def node(layout: Layout, rows: int, columns: int) -> Node:
    """The physical type of a packed [rows, columns] matrix."""
    entries = {"": None, "FLOAT16": f16[_ENTRIES], "FLOAT": f32[_ENTRIES]}[_TABLES[layout.kernel]]
    codes = Array(bits(low=4, high=4)[16], layout.columns // 32)
    table = {} if entries is None else {"table": entries}
    groups = Array(Array(structure("", scale=f32, minimum=f32, **table, codes=codes), columns // layout.columns), rows)
    if entries is not None:
        return groups
    whole: Structure = structure("", table=f32[_ENTRIES], groups=groups)
    return whole


def decoder(layout: Layout, sizes: Sizes) -> str:
    """The text of the decoder of a packed matrix."""
    shared = not _TABLES[layout.kernel]
    lead = "groups_" if shared else ""
    names = {name: f"{lead}{name}" for name in ("scale", "minimum")}
    names |= {"low": f"{lead}codes_low", "high": f"{lead}codes_high", "table": "table"}
    order = ("table", "scale", "minimum", "low", "high") if shared else ("scale", "minimum", "table", "low", "high")
    look_up = "Gather(entries, places)" if shared else "GatherElements<axis = 2>(entries, places)"
    return _DECODER.format(
        inputs=", ".join(names[name] for name in order),
        rows=sizes.rows,
        columns=sizes.columns,
        blocks=sizes.blocks,
        subs=layout.columns // 32,
        group=layout.columns,
        look_up=look_up,
        **names,
    )
