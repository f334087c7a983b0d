"""The table of compute layouts."""

from tenonnx.layouts.table import LAYOUTS, Layout, layout_for, packer, quantized_row_bytes

__all__ = ["LAYOUTS", "Layout", "layout_for", "packer", "quantized_row_bytes"]
