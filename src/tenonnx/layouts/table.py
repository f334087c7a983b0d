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
        Layout("q4", 32, 144, True),
        Layout("q4m", 32, 160, True),
        Layout("q5", 32, 176, True),
        Layout("q5m", 32, 192, True),
        Layout("q8", 32, 272, True),
        Layout("iq4", 32, 144, True),
        Layout("fp4", 32, 136, True),
        Layout("fp4h", 32, 160, True),
        Layout("g4", 32, 168, True),
        Layout("g8", 32, 296, True),
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

_REPACKS = {
    "Q4_0": "q4",
    "Q4_1": "q4m",
    "Q5_0": "q5",
    "Q5_1": "q5m",
    "Q8_0": "q8",
    "IQ4_NL": "iq4",
    "MXFP4": "fp4",
    "NVFP4": "fp4h",
    "TQ2_0": "q2k",
    "Q2_K": "q2k",
    "Q3_K": "q3k",
    "Q4_K": "q4k",
    "Q5_K": "q5k",
    "Q6_K": "q6k",
    "IQ4_XS": "iq4k",
    "F16": "f16",
    "BF16": "bf16",
    "F32": "f32",
}


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
    """Bytes of one row of activations after ``quantize_rows``: INT8 codes, FLOAT scale and sum per 32, sums per 16."""
    return columns + columns // 32 * 16
