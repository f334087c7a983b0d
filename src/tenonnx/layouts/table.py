"""Compute layouts: what kernels stream, and which format repacks to which. Formats repack, kernels don't multiply."""

from __future__ import annotations

from dataclasses import dataclass

ROWS = 8  # of one interleaved group; missing rows of the last group are zeros


@dataclass(frozen=True)
class Layout:
    """Weights [rows, columns] in groups of 8 interleaved rows; ``native/kernels/packed.hpp`` has the bytes."""

    name: str
    columns: int  # of one block
    block_bytes: int  # of 8 rows of one block
    quantized_activations: bool  # whether the matrix kernel takes INT8 rows rather than FLOAT

    def nbytes(self, rows: int, columns: int) -> int:
        """Bytes of a packed [rows, columns] matrix."""
        return -(-rows // ROWS) * (columns // self.columns) * self.block_bytes

    @property
    def matmul(self) -> str:
        return f"matmul_{self.name}"

    @property
    def gather(self) -> str:
        return f"gather_{self.name}"


LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout("q4", 32, 160, True),
        Layout("q8", 32, 272, True),
        Layout("f16", 1, 16, False),
        Layout("bf16", 1, 16, False),
        Layout("f32", 1, 32, False),
    )
}

_REPACKS = {"Q4_0": "q4", "Q4_1": "q4", "Q8_0": "q8", "F16": "f16", "BF16": "bf16", "F32": "f32"}


def layout_for(format_name: str, shape: tuple[int, ...]) -> Layout | None:
    """The layout that a matrix of a catalogue format repacks to, or None where kernels have none."""
    layout = LAYOUTS.get(_REPACKS.get(format_name, ""))
    if layout is None or len(shape) != 2 or 0 in shape or shape[1] % layout.columns:
        return None
    return layout


def packer(format_name: str) -> str:
    """The kernel that repacks a format; ``KeyError`` where ``layout_for`` finds none."""
    return f"pack_{_REPACKS[format_name]}_from_{format_name}"


def quantized_row_bytes(columns: int) -> int:
    """Bytes of one row of activations after ``quantize_rows``: INT8 codes, then FLOAT scale and sum per 32."""
    return columns + columns // 32 * 8
