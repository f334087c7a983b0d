"""Shape and type inference through aliases."""

from tenonnx.shapes.context import Inference, ShapesContext
from tenonnx.shapes.symbols import SymMap, SymOptional, SymQuantizedTensor, SymSequence, SymStruct, SymTensor

__all__ = [
    "Inference",
    "ShapesContext",
    "SymMap",
    "SymOptional",
    "SymQuantizedTensor",
    "SymSequence",
    "SymStruct",
    "SymTensor",
]
