"""A model evaluated by copying everything: onnx's reference evaluator, with updates that return a new cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from tenonnx.schema.messages import to_onnx


def updated(cache: np.ndarray, values: np.ndarray, position: np.ndarray, axis: int = -2, batch_axis: int = 0) -> np.ndarray:
    """A copy of ``cache`` with ``values`` at [position, position + n) along ``axis``, row by row for position [batch]."""
    result = cache.copy()
    rows = values.shape[axis]
    if position.ndim == 0:
        np.moveaxis(result, axis, 0)[int(position) : int(position) + rows] = np.moveaxis(values, axis, 0)
        return result
    order = (batch_axis % cache.ndim, axis % cache.ndim)
    targets, sources = np.moveaxis(result, order, (0, 1)), np.moveaxis(values, order, (0, 1))
    for target, source, start in zip(targets, sources, position.tolist(), strict=True):
        target[start : start + rows] = source
    return result


class CacheUpdate(OpRun):
    op_domain = "tenonnx"

    def _run(self, cache: Any, values: Any, position: Any, axis: int | None = None, batch_axis: int | None = None) -> Any:
        return (updated(cache, values, position, -2 if axis is None else axis, batch_axis or 0),)


class Evaluator(ReferenceEvaluator):
    """Knows the update in the bodies of functions, too, for which it makes evaluators of its own class."""

    def __init__(self, proto: Any, **more: Any) -> None:
        super().__init__(proto, **{**more, "new_ops": [CacheUpdate]})


Arrays = Mapping[str, np.ndarray]


def evaluate(model: Any, inputs: Arrays, decoded: Arrays | None = None) -> dict[str, np.ndarray]:
    """Every graph output by name; ``decoded`` are the logical values of the structured initializers."""
    plain = to_onnx(model)
    nodes = [node for node in plain.graph.node if node.op_type != "StructDecode"]
    for node in plain.graph.node:
        if node.op_type == "StructDecode":
            plain.graph.initializer.append(numpy_helper.from_array((decoded or {})[node.input[0]], node.output[0]))
    del plain.graph.node[:]
    plain.graph.node.extend(nodes)
    evaluator = Evaluator(plain)
    names = [output.name for output in plain.graph.output]
    results = evaluator.run(None, {name: np.array(value) for name, value in inputs.items()})
    return dict(zip(names, (np.asarray(result) for result in results), strict=True))
