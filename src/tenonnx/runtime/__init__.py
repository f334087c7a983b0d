"""Sessions."""

from tenonnx._native import default_threads, ledger, reset_peaks
from tenonnx.runtime.session import Session

__all__ = ["Session", "default_threads", "ledger", "reset_peaks"]
