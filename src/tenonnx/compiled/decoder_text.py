"""The decoder of a pack as text: rows are taken out of their groups, codes out of their planes."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from tenonnx.structs.layout import Leaf, leaves
from tenonnx.structs.physical import Node

_TAKE_ROWS = """
  padded_shape = Constant<value_ints = [{padded}, {columns}]>()
  padded = Reshape(values, padded_shape)
  first_row = Constant<value_ints = [0]>()
  last_row = Constant<value_ints = [{rows}]>()
  taken = Slice(padded, first_row, last_row, first_row)
  decoded = {source}(taken)
}}"""
_FLOATS = """({name}) => (decoded) {{
  wide = Cast<to = 1>({name})
  values = Transpose<perm = [0, 2, 1]>(wide)"""


class Sizes(NamedTuple):
    """Of a packed matrix: its shape, its groups of rows, blocks in a row, and sub-blocks in a block."""

    rows: int
    columns: int
    groups: int
    blocks: int
    subs: int
    columns_first: bool = False  # whether the source is stored as [columns, rows]

    @property
    def padded(self) -> int:
        """Rows with those that fill up the last group."""
        return 8 * self.groups


class Kind(Protocol):
    """What a decoder needs of a layout's type."""

    @property
    def formula(self) -> str: ...
    @property
    def rows(self) -> dict[str, tuple[str, ...]]: ...
    @property
    def planes(self) -> tuple[int, ...]: ...
    @property
    def table(self) -> tuple[float, ...]: ...


def name_of(leaf: Leaf) -> str:
    """The input of a decoder that a leaf is bound to."""
    return leaf.path.replace(".", "_") or "elements"


def decoder_text(node: Node, sizes: Sizes, kind: Kind | None) -> str:
    """The decoder of a matrix of groups of 8 rows; ``kind`` None stands for plain floats."""
    take_rows = _TAKE_ROWS.format(
        padded=sizes.padded, columns=sizes.columns, rows=sizes.rows, source="Transpose" if sizes.columns_first else "Identity"
    )
    inputs = [name_of(leaf) for leaf in leaves(node)]
    if kind is None:
        return _FLOATS.format(name=inputs[0]) + take_rows
    parts = max(len(paths) for paths in kind.rows.values())
    lines = [f"({', '.join(inputs)}) => (decoded) {{"]
    for name, paths in kind.rows.items():
        lines += _numbers(name, paths, sizes)
    lines += _codes(kind, inputs, sizes, parts)
    return "\n  ".join(lines) + kind.formula + take_rows


def _numbers(name: str, paths: tuple[str, ...], sizes: Sizes) -> list[str]:
    """Numbers of rows as FLOAT [rows, blocks, sub-blocks, parts, 1], a head's with 1 sub-block."""
    of_head = not paths[0].startswith("subs.")
    subs, order = (1, "0, 2, 1") if of_head else (sizes.subs, "0, 3, 1, 2")
    shape = f"{sizes.padded}, {sizes.blocks}, {subs}, 1, 1"
    lines = [f"{name}_shape = Constant<value_ints = [{shape}]>()"]
    made = []
    for number, path in enumerate(paths):
        source, part = path.replace(".", "_"), f"{name}_part_{number}"
        lines.append(f"{part}_wide = Cast<to = 1>({source})")
        lines.append(f"{part}_rows = Transpose<perm = [{order}]>({part}_wide)")
        lines.append(f"{part} = Reshape({part}_rows, {name}_shape)")
        made.append(part)
    joined = f"Concat<axis = 3>({', '.join(made)})" if len(made) > 1 else f"Identity({made[0]})"
    return [*lines, f"{name}_numbers = {joined}"]


def _codes(kind: Kind, inputs: list[str], sizes: Sizes, parts: int) -> list[str]:
    """``codes`` as FLOAT [rows, blocks, sub-blocks, parts, columns]."""
    lines, planes = [], []
    for number, width in enumerate(kind.planes):
        plane = f"subs_plane_{number}"
        found = [name for name in inputs if name == plane or name.startswith(f"{plane}_")]
        lines += _plane(plane, found, width, sizes)
        planes.append(f"{plane}_codes")
    shape = f"{sizes.padded}, {sizes.blocks}, {sizes.subs}, {parts}, {32 // parts}"
    lines.append(f"code_shape = Constant<value_ints = [{shape}]>()")
    whole = planes[0]
    if len(planes) > 1:
        lines.append(f"above = Constant<value_int = {2 ** kind.planes[0]}>()")
        lines.append("above_32 = Cast<to = 6>(above)")
        lines.append(f"high_bits = Mul({planes[1]}, above_32)")
        lines.append(f"places = Add({planes[0]}, high_bits)")
        whole = "places"
    lines.append(f"by_part = Reshape({whole}, code_shape)")
    if kind.table:
        lines.append(f"table = Constant<value_floats = [{', '.join(str(float(value)) for value in kind.table)}]>()")
        return [*lines, "codes = Gather(table, by_part)"]
    return [*lines, "codes = Cast<to = 1>(by_part)"]


def _plane(plane: str, components: list[str], width: int, sizes: Sizes) -> list[str]:
    """One plane as INT32 [rows, blocks, sub-blocks, 32]."""
    lead = f"{sizes.groups}, {sizes.blocks}, {sizes.subs}"
    target = f"{sizes.padded}, {sizes.blocks}, {sizes.subs}, 32"
    if width == 8:  # [groups, blocks, subs, vector, row, column]
        lines = [f"{plane}_rows = Transpose<perm = [0, 4, 1, 2, 3, 5]>({plane})"]
    else:
        # Component (half, part) of vector v has columns 16 * half + 4 * (v * parts + part) and the 3 after.
        parts = 4 // width
        lines = [f"{plane}_shape = Constant<value_ints = [{lead}, 1, {width}, 8, 4]>()"]
        lines += [f"{name}_vectors = Reshape({name}, {plane}_shape)" for name in components]
        lines.append(f"{plane}_joined = Concat<axis = 3>({', '.join(f'{name}_vectors' for name in components)})")
        lines.append(f"{plane}_split = Constant<value_ints = [{lead}, 2, {parts}, {width}, 8, 4]>()")
        lines.append(f"{plane}_halves = Reshape({plane}_joined, {plane}_split)")
        lines.append(f"{plane}_rows = Transpose<perm = [0, 6, 1, 2, 3, 5, 4, 7]>({plane}_halves)")
    lines.append(f"{plane}_target = Constant<value_ints = [{target}]>()")
    lines.append(f"{plane}_bytes = Reshape({plane}_rows, {plane}_target)")
    return [*lines, f"{plane}_codes = Cast<to = 6>({plane}_bytes)"]
