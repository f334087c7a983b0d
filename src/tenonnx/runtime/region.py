"""A region of nodes run by onnxruntime, bound without a copy to the plan's own buffers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tenonnx.errors import UnsupportedError
from tenonnx.plan import ExecutionPlan, PlannedStep
from tenonnx.plan.builder import nbytes_of
from tenonnx.schema.graph import ModelIndex
from tenonnx.schema.messages import ModelProto
from tenonnx.shapes import SymTensor
from tenonnx.shapes.skeleton import FORMATS_DOMAIN, set_tensor_type

_EMBEDDED = 1024  # elements: constants up to here stand in the region's model, where its optimizer sees them


def session_options(threads: int) -> Any:
    """Threads as the plan has them, parked when idle, and no chatter."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


class Region:
    """One region step made runnable."""

    def __init__(
        self, plan: ExecutionPlan, step: PlannedStep, index: ModelIndex, fixed: dict[int, np.ndarray], threads: int
    ) -> None:
        import onnxruntime

        self._label = step.label
        model = ModelProto(ir_version=index.model.ir_version)
        model.opset_import.extend(index.model.opset_import)
        model.functions.extend(function for function in index.model.functions if function.domain != FORMATS_DOMAIN)
        model.graph.name = "region"
        for position in step.nodes:
            model.graph.node.add().CopyFrom(index.main.nodes[position])
        self._inputs: list[tuple[str, int, int, tuple[int, ...]]] = []
        self._outputs: list[tuple[str, int, int, tuple[int, ...]]] = []
        for name, value in zip(step.region_inputs, step.inputs, strict=True):
            row = plan.values[value]
            if value in fixed and math.prod(row.dims) <= _EMBEDDED:
                data = fixed[value].tobytes()[row.offset : row.offset + row.nbytes]
                model.graph.initializer.add(name=name, data_type=row.elem_type, dims=row.dims, raw_data=data)
                continue
            set_tensor_type(model.graph.input.add(name=name), SymTensor(row.elem_type, row.dims))
            self._inputs.append((name, value, row.elem_type, row.dims))
        for name, value in zip(step.region_outputs, step.outputs, strict=True):
            row = plan.values[value]
            set_tensor_type(model.graph.output.add(name=name), SymTensor(row.elem_type, row.dims))
            self._outputs.append((name, value, row.elem_type, row.dims))
        try:
            self._session = onnxruntime.InferenceSession(
                model.SerializeToString(), session_options(threads), providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime raises types of its own for what it does not implement
            raise UnsupportedError(f"{self._label}: has no native kernel, and onnxruntime refuses it: {error}") from error

    def run(self, lease: Any) -> None:
        """Run over the addresses that the lease has bound; ``UnsupportedError`` with onnxruntime's own message."""
        binding = self._session.io_binding()
        for name, value, elem_type, dims in self._inputs:
            binding.bind_input(name, "cpu", 0, elem_type, dims, _address(lease, value, elem_type, dims))
        for name, value, elem_type, dims in self._outputs:
            binding.bind_output(name, "cpu", 0, elem_type, dims, _address(lease, value, elem_type, dims))
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:
            raise UnsupportedError(f"{self._label}: onnxruntime: {error}") from error


# onnxruntime refuses a null pointer even for a tensor of no elements.
_EMPTY = np.zeros(1, np.uint8)


def _address(lease: Any, value: int, elem_type: int, dims: tuple[int, ...]) -> int:
    if nbytes_of(elem_type, dims) == 0:
        return int(_EMPTY.__array_interface__["data"][0])
    return int(lease.address(value))
