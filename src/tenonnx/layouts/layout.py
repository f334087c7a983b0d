"""Compute layouts: what kernels stream."""

from __future__ import annotations

from dataclasses import dataclass

ROWS = 8  # of one interleaved group; missing rows of the last group are zeros


@dataclass(frozen=True)
class Layout:
    """Weights [rows, columns] in blocks; ``native/kernels/packed.hpp`` and ``lookup.hpp`` have the bytes.

    ``arguments`` follow the rows and columns as integer arguments of the layout's kernels.
    """

    name: str
    columns: int  # of one block
    block_bytes: int  # of all rows of one block
    quantized_activations: bool  # whether the matrix kernel takes INT8 rows rather than FLOAT
    rows: int = ROWS  # of one block
    head: int = 0  # bytes before the first block
    kernel: str = ""  # in the names of its kernels, where that is not ``name``
    arguments: tuple[int, ...] = ()
    version: int = 1  # goes up when the bytes of the layout change: stored packs of another version are not used
    features: tuple[str, ...] = ()  # of the processor, in archspec's names, without which no kernel reads the layout

    def nbytes(self, rows: int, columns: int) -> int:
        """Bytes of a packed [rows, columns] matrix."""
        return self.head + -(-rows // self.rows) * (columns // self.columns) * self.block_bytes

    @property
    def matmul(self) -> str:
        return f"matmul_{self.kernel or self.name}"

    @property
    def gather(self) -> str:
        return f"gather_{self.kernel or self.name}"


LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout("q4", 32, 144, True),
        Layout("q4m", 32, 160, True),
        Layout("q5", 32, 176, True),
        Layout("q5m", 32, 192, True),
        Layout("q8", 32, 272, True),
        Layout("iq4", 32, 144, True),
        Layout("fp4", 32, 136, True),
        Layout("fp4h", 32, 160, True),
        *(Layout(f"g4_{group}", group, 40 + 4 * group, True) for group in (32, 64, 128)),
        *(Layout(f"g8_{group}", group, 40 + 8 * group, True) for group in (32, 64, 128)),
        Layout("q2k", 256, 672, True),
        Layout("q3k", 256, 912, True),
        Layout("q4k", 256, 1184, True),
        Layout("q5k", 256, 1440, True),
        Layout("q6k", 256, 1680, True),
        Layout("iq4k", 256, 1104, True),
        Layout("f16", 1, 16, False),
        Layout("bf16", 1, 16, False),
        Layout("f32", 1, 32, False),
    )
}


def generic(group: int, entries: str) -> Layout:
    """The generic layout of ``group`` columns under one scale, a multiple of 32.

    ``entries`` is the element type of a table that each group has of its own, FLOAT16 or FLOAT, or "" for one table of the
    tensor.
    """
    kernel, head, table = {"": ("lut", 64, 0), "FLOAT16": ("lut16", 0, 32), "FLOAT": ("lut32", 0, 64)}[entries]
    return Layout(f"{kernel}_{group}", group, 8 + table + group // 2, False, 1, head, kernel, (group,))


def quantized_row_bytes(columns: int) -> int:
    """Bytes of one row of activations after ``quantize_rows``: INT8 codes, FLOAT scale and sum per 32, sums per 16."""
    return columns + columns // 32 * 16
