"""What onnx itself finds: its own checker and shape inference, run on a model's stock twin."""

from __future__ import annotations

from collections.abc import Iterator

from tenonnx.check.diagnostics import Diagnostic
from tenonnx.errors import TenonnxError
from tenonnx.schema.graph import ModelIndex
from tenonnx.shapes import Inference, ShapesContext


def check_standard(index: ModelIndex) -> Iterator[Diagnostic]:
    """Findings of onnx's checker on the twin, then of shape inference through the aliases."""
    import onnx

    try:
        inference = Inference(index.model, index)
        onnx.checker.check_model(inference.skeleton.proto.SerializeToString())
    except onnx.checker.ValidationError as error:
        yield Diagnostic("error", "invalid", "onnx-checker", "graph", str(error).strip().splitlines()[0])
        return
    except TenonnxError as error:
        yield Diagnostic("error", "invalid", "operators", "graph", str(error))
        return
    try:
        ShapesContext(index.model, inference=inference)
    except TenonnxError as error:
        yield Diagnostic("error", "invalid", "shapes", "graph", str(error))
