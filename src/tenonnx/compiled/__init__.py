"""Packs: weights in the layouts that kernels read, stored in the model beside the initializers that they were made from."""

from tenonnx.compiled.digest import Sources, digest, tensor_content
from tenonnx.compiled.layout_types import storable
from tenonnx.compiled.load import Matcher, Packs, Verdict, Wanted, summary
from tenonnx.compiled.packers import apart, as_packed, pack, wanted

__all__ = [
    "Matcher",
    "Packs",
    "Sources",
    "Verdict",
    "Wanted",
    "apart",
    "as_packed",
    "digest",
    "pack",
    "storable",
    "summary",
    "tensor_content",
    "wanted",
]
