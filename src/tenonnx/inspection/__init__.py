"""Looking at models and types: summaries, bit maps, and values by field. Nothing here runs a model."""

from tenonnx.inspection.bitmap import BitMap, Row, described, rows, unwrapped
from tenonnx.inspection.subject import Subject, open_subject
from tenonnx.inspection.summary import summary
from tenonnx.inspection.svg import svg
from tenonnx.inspection.values import Element, element_of

__all__ = [
    "BitMap",
    "Element",
    "Row",
    "Subject",
    "described",
    "element_of",
    "open_subject",
    "rows",
    "summary",
    "svg",
    "unwrapped",
]
