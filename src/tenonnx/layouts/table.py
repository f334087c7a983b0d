"""Which format repacks to which compute layout. Formats repack, kernels don't multiply."""

from __future__ import annotations

from tenonnx.layouts.generic import mapping
from tenonnx.layouts.layout import LAYOUTS, Layout

_REPACKS = {
    "Q4_0": "q4",
    "Q4_1": "q4m",
    "Q5_0": "q5",
    "Q5_1": "q5m",
    "Q8_0": "q8",
    "IQ4_NL": "iq4",
    "MXFP4": "fp4",
    "NVFP4": "fp4h",
    **{f"INT{bits}_{group}": f"g{bits}_{group}" for bits in (4, 8) for group in (32, 64, 128)},
    "TQ1_0": "q2k",
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
    """The layout that a matrix of a known format repacks to, or None where kernels have none."""
    generic = mapping(format_name)
    layout = generic.layout if generic is not None else LAYOUTS.get(_REPACKS.get(format_name, ""))
    if layout is None or len(shape) != 2 or 0 in shape or shape[1] % layout.columns:
        return None
    return layout


def packer(format_name: str) -> str:
    """The kernel that repacks a format: from its blocks, or from the operands of its mapping to a generic layout.

    ``KeyError`` where ``layout_for`` finds none.
    """
    generic = mapping(format_name)
    return f"pack_{_REPACKS[format_name]}_from_{format_name}" if generic is None else f"pack_{generic.layout.kernel}"
