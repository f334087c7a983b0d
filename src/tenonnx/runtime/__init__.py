"""Sessions."""

from tenonnx._native import ledger, reset_peaks
from tenonnx.runtime.session import Session

__all__ = ["Session", "ledger", "reset_peaks"]
