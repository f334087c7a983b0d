"""Proofs about values of a graph for every size and content of its inputs: formulas over indices, in place of numbers."""

from tenonnx.convert.symbolic.elements import Linear, Unproven
from tenonnx.convert.symbolic.graph import Formulas
from tenonnx.convert.symbolic.masks import Causal, causal

__all__ = ["Causal", "Formulas", "Linear", "Unproven", "causal"]
