"""A region of nodes run by onnxruntime, bound without a copy to the plan's own buffers."""

from __future__ import annotations

import math
import threading
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from tenonnx import dtypes
from tenonnx.cache import address
from tenonnx.errors import UnsupportedError
from tenonnx.plan import ExecutionPlan, PlannedStep, PlannedValue
from tenonnx.plan.builder import nbytes_of
from tenonnx.schema.graph import ModelIndex
from tenonnx.schema.messages import ModelProto, TensorProto
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


class Regions:
    """The onnxruntime sessions of one model's regions: one for each group of nodes, whatever the shapes, while a plan has it."""

    def __init__(self, index: ModelIndex, threads: int) -> None:
        self._index = index
        self._threads = threads
        self._lock = threading.Lock()
        self._engines: WeakValueDictionary[Any, _Engine] = WeakValueDictionary()

    def region(self, plan: ExecutionPlan, step: PlannedStep, fixed: dict[int, np.ndarray]) -> Region:
        """A region step of a plan, whose fixed values are given, made runnable."""
        inputs = list(zip(step.region_inputs, step.inputs, strict=True))
        outputs = list(zip(step.region_outputs, step.outputs, strict=True))
        constants = [
            _Constant(name, plan.values[value], fixed[value])
            for name, value in inputs
            if value in fixed and plan.values[value].nbytes
        ]
        model = self._model(plan, step, constants)
        bound = {constant.name for constant in constants}
        key = model.SerializeToString(deterministic=True), *(constant.address for constant in constants)
        with self._lock:
            engine = self._engines.get(key)
            if engine is None:
                engine = self._engines[key] = _Engine(step.label, key[0], constants, self._threads)
        return Region(step.label, engine, plan, [port for port in inputs if port[0] not in bound], outputs)

    def _model(self, plan: ExecutionPlan, step: PlannedStep, constants: list[_Constant]) -> Any:
        """The nodes of a region as a model; values have a type and a rank, but no dimensions."""
        index = self._index
        model = ModelProto(ir_version=index.model.ir_version)
        model.opset_import.extend(index.model.opset_import)
        model.functions.extend(function for function in index.model.functions if function.domain != FORMATS_DOMAIN)
        graph = model.graph
        graph.name = "region"
        for position in step.nodes:
            graph.node.add().CopyFrom(index.main.nodes[position])
        for constant in constants:
            constant.declare(graph)
        known = {constant.name for constant in constants}
        for infos, names, values in (
            (graph.input, step.region_inputs, step.inputs),
            (graph.output, step.region_outputs, step.outputs),
        ):
            for name, value in zip(names, values, strict=True):
                if name not in known:
                    row = plan.values[value]
                    set_tensor_type(infos.add(name=name), SymTensor(row.elem_type, (None,) * len(row.dims)))
        return model


class _Constant:
    """A fixed value that a region reads: onnxruntime repacks weights that it knows not to change."""

    def __init__(self, name: str, row: PlannedValue, storage: np.ndarray) -> None:
        self.name = name
        self._row = row
        data = storage.reshape(-1).view(np.uint8)[row.offset : row.offset + row.nbytes]
        self._array = data.view(dtypes.BY_NUMBER[row.elem_type].numpy).reshape(row.dims)
        self.embedded = math.prod(row.dims) <= _EMBEDDED

    @property
    def address(self) -> int:
        """What tells constants apart that the model only names; 0 for one that it holds."""
        return 0 if self.embedded else address(self._array)

    def declare(self, graph: Any) -> None:
        tensor = graph.initializer.add(name=self.name, data_type=self._row.elem_type, dims=self._row.dims)
        if self.embedded:
            tensor.raw_data = self._array.tobytes()
        else:  # where it is told by ``value``
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value=self.name)

    def value(self) -> Any:
        import onnxruntime

        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(self._array, self._row.elem_type)


class _Engine:
    """An onnxruntime session, and the constants that it reads where they lie."""

    def __init__(self, label: str, model: bytes, constants: list[_Constant], threads: int) -> None:
        import onnxruntime

        options = session_options(threads)
        large = [constant for constant in constants if not constant.embedded]
        self._constants = [constant.value() for constant in large]
        options.add_external_initializers([constant.name for constant in large], self._constants)
        try:
            self.session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime raises types of its own for what it does not implement
            raise UnsupportedError(f"{label}: has no native kernel, and onnxruntime refuses it: {error}") from error


class Region:
    """One region step made runnable."""

    def __init__(
        self, label: str, engine: _Engine, plan: ExecutionPlan, inputs: list[tuple[str, int]], outputs: list[tuple[str, int]]
    ) -> None:
        self._label = label
        self._engine = engine
        self._inputs, self._outputs = (
            [(name, value, plan.values[value].elem_type, plan.values[value].dims) for name, value in ports]
            for ports in (inputs, outputs)
        )

    def run(self, lease: Any) -> None:
        """Run over the addresses that the lease has bound; ``UnsupportedError`` with onnxruntime's own message."""
        binding = self._engine.session.io_binding()
        for name, value, elem_type, dims in self._inputs:
            binding.bind_input(name, "cpu", 0, elem_type, dims, _address(lease, value, elem_type, dims))
        for name, value, elem_type, dims in self._outputs:
            binding.bind_output(name, "cpu", 0, elem_type, dims, _address(lease, value, elem_type, dims))
        try:
            self._engine.session.run_with_iobinding(binding)
        except Exception as error:
            raise UnsupportedError(f"{self._label}: onnxruntime: {error}") from error


# onnxruntime refuses a null pointer even for a tensor of no elements.
_EMPTY = np.zeros(1, np.uint8)


def _address(lease: Any, value: int, elem_type: int, dims: tuple[int, ...]) -> int:
    if nbytes_of(elem_type, dims) == 0:
        return int(_EMPTY.__array_interface__["data"][0])
    return int(lease.address(value))
