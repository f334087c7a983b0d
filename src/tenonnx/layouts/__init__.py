"""The table of compute layouts."""

from tenonnx.layouts.generic import Generic, add, mapping
from tenonnx.layouts.layout import LAYOUTS, Layout, quantized_row_bytes
from tenonnx.layouts.table import layout_for, packer

__all__ = ["LAYOUTS", "Generic", "Layout", "add", "layout_for", "mapping", "packer", "quantized_row_bytes"]
