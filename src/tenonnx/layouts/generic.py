"""Formats that are fast as data: a mapping names the leaves that make up a generic layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tenonnx.errors import CheckError
from tenonnx.layouts.layout import Layout
from tenonnx.layouts.layout import generic as generic_layout
from tenonnx.structs import Format

ENTRIES = 16  # of a table; codes have at most 4 bits


class Operands(NamedTuple):
    """What a generic packer takes; ``groups`` of columns under one scale, G in a row."""

    codes: np.ndarray  # UINT8[N, K]
    table: np.ndarray  # FLOAT[16], or FLOAT[N, G, 16]
    scale: np.ndarray | None  # FLOAT[N, G]; None: 1
    minimum: np.ndarray | None  # FLOAT[N, G]; None: 0


@dataclass(frozen=True)
class Generic:
    """``value = scale · table[code] + minimum`` over the leaves of a block of ``columns`` elements, a multiple of 32.

    ``codes`` are the paths of leaves that hold codes of at most 4 bits: elements are a run of ``run`` codes of the first, a
    run of the second, …, and so on from the first again (one leaf holds them in order). ``table`` is a tuple of at most 16
    numbers, a constant of the type, or, where each block has its own, a leaf whose element type ``entries`` names: FLOAT16 or
    FLOAT. ``scale`` and ``minimum`` are leaves with one number, or "" for 1 and 0.
    """

    columns: int
    codes: tuple[str, ...]
    table: str | tuple[float, ...]
    scale: str = ""
    minimum: str = ""
    run: int = 1
    entries: str = ""

    @property
    def layout(self) -> Layout:
        return generic_layout(self.columns, self.entries)

    def operands(self, fmt: Format, payload: np.ndarray, shape: Sequence[int]) -> Operands:
        """The parts of a packed matrix of ``shape`` [N, K] of this format, unpacked."""
        view, rows, groups = fmt.view(payload), shape[0], shape[1] // self.columns
        leaves = dict(zip((leaf.path for leaf in fmt.leaves), view.leaves(), strict=True))

        def numbers(path: str) -> np.ndarray | None:
            return np.ascontiguousarray(leaves[path].reshape(rows, groups), np.float32) if path else None

        parts = [leaves[path].reshape(rows * groups, -1, self._run) for path in self.codes]
        codes = np.ascontiguousarray(np.stack(parts, axis=2), np.uint8).reshape(shape)
        return Operands(codes, self._table(leaves, rows, groups), numbers(self.scale), numbers(self.minimum))

    @property
    def _run(self) -> int:
        return self.run if len(self.codes) > 1 else self.columns

    def _table(self, leaves: dict[str, np.ndarray], rows: int, groups: int) -> np.ndarray:
        values = np.asarray(leaves[self.table] if isinstance(self.table, str) else self.table, np.float32)
        table = np.zeros((rows, groups, ENTRIES) if self.entries else ENTRIES, np.float32)
        table[..., : values.shape[-1]] = values.reshape(*table.shape[:-1], -1)
        return table


def decoded(operands: Operands, columns: int) -> np.ndarray:
    """FLOAT[N, K]: what the kernels of a generic layout make of the operands, each step rounded as they do."""
    codes = operands.codes.reshape(len(operands.codes), -1, columns)
    tables = np.broadcast_to(operands.table, (*codes.shape[:2], ENTRIES))
    if operands.scale is not None:
        tables = tables * operands.scale[..., None]
    if operands.minimum is not None:
        tables = tables + operands.minimum[..., None]
    return np.take_along_axis(tables, codes.astype(np.intp), axis=2).reshape(operands.codes.shape)


_MAPPINGS = {
    "NF4": Generic(64, ("qs.hi", "qs.lo"), "values", "absmax"),
    "BITNET": Generic(128, ("qs.q0", "qs.q1", "qs.q2", "qs.q3"), (-1, 0, 1, 2), "scale", run=32),
    "Q1_0": Generic(128, ("qs.sign",), (-1, 1), "d"),
}


def mapping(format_name: str) -> Generic | None:
    """How a format maps to a generic layout, or None."""
    return _MAPPINGS.get(format_name)


def add(fmt: Format, generic: Generic) -> None:
    """Let matrices of a user's format, once ``structs.catalogue.add`` knows it, repack to a generic layout at load.

    Raises ``CheckError`` for leaves that do not fit, and where the mapping and the format's own decoder give other values.
    """
    where, leaves = f"format {fmt.name!r}", {leaf.path: leaf for leaf in fmt.leaves}
    if fmt.block_shape != (generic.columns,) or generic.columns % 32:
        raise CheckError(
            f"{where}: a generic layout takes blocks of one row and a multiple of 32 columns; "
            f"the mapping says {generic.columns}, the block is {list(fmt.block_shape)}"
        )
    named = (*generic.codes, generic.scale, generic.minimum, generic.table if isinstance(generic.table, str) else "")
    unknown = [path for path in named if path and path not in leaves]
    if unknown or not generic.codes:
        raise CheckError(f"{where} has no leaves {', '.join(unknown) or 'of codes'}; it has {', '.join(leaves)}")
    wide = [path for path in generic.codes if leaves[path].bits > 4]
    if wide:
        raise CheckError(f"{where}: codes {', '.join(wide)} have more than 4 bits; a generic layout has a table of {ENTRIES}")
    if isinstance(generic.table, str) and leaves[generic.table].constant is None:
        found = leaves[generic.table].elem_type.name
        if generic.entries not in ("FLOAT16", "FLOAT") or (generic.entries, found) == ("FLOAT16", "FLOAT"):
            raise CheckError(f'{where}: each block has a table of {found}; say entries="{found}"')
    _compare(fmt, generic, where)
    _MAPPINGS[fmt.name] = generic


def _compare(fmt: Format, generic: Generic, where: str) -> None:
    """Both ways of decoding blocks of random bytes."""
    shape = (64, generic.columns)
    payload = np.random.default_rng(0).integers(0, 256, shape[0] * fmt.nbytes, np.uint8)
    with np.errstate(all="ignore"):
        expected = fmt.decode(payload, shape)
        try:
            found = decoded(generic.operands(fmt, payload, shape), generic.columns)
        except ValueError as error:
            raise CheckError(f"{where}: its leaves do not make {list(shape)} values by this mapping: {error}") from error
    if not np.array_equal(found, expected, equal_nan=True):
        row, column = np.argwhere(~((found == expected) | (np.isnan(found) & np.isnan(expected))))[0]
        raise CheckError(
            f"{where}: the mapping gives {found[row, column]} for element {column} of a block, its decoder "
            f"{expected[row, column]}; correct the order of codes, the table, the scale or the minimum"
        )
