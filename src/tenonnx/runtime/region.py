"""Regions of nodes run by onnxruntime, bound without a copy to the plan's own buffers.

A region's weights are initializers over the session's own memory, so that onnxruntime may lay them out for itself; all that
a run computes has symbolic dimensions, so that the plans for a prompt and for a step share one onnxruntime session.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from tenonnx import dtypes
from tenonnx.cache import address
from tenonnx.errors import UnsupportedError
from tenonnx.plan import ExecutionPlan, PlannedStep
from tenonnx.plan.builder import nbytes_of
from tenonnx.schema.domains import FORMATS_DOMAIN
from tenonnx.schema.graph import ModelIndex
from tenonnx.schema.messages import ModelProto, TensorProto
from tenonnx.shapes import SymTensor
from tenonnx.shapes.skeleton import set_tensor_type

_EMBEDDED = 1024  # elements: constants up to here stand in the region's model itself
_SHARE = 1 << 20  # bytes of weights that a thread has to read for one node, or waking it takes longer than it saves

Fixed = Mapping[int, np.ndarray]  # the plan's fixed values, by number


class _Engine:
    """One onnxruntime session, the names that a run binds, and the memory that it reads."""

    def __init__(self, model: Any, weights: dict[str, tuple[int, np.ndarray]], threads: int, label: str) -> None:
        import onnxruntime

        self.inputs = [value.name for value in model.graph.input]
        self.outputs = [value.name for value in model.graph.output]
        options = _options(threads)
        self._weights = [_lent(array, elem_type) for elem_type, array in weights.values()]
        options.add_external_initializers(list(weights), self._weights)
        try:
            self.session = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"], enable_fallback=0
            )
        except Exception as error:  # onnxruntime raises types of its own for what it does not implement
            raise UnsupportedError(f"{label}: has no native kernel, and onnxruntime refuses it: {error}") from error


class Regions:
    """The onnxruntime sessions of one model: each is made once for all plans, and lives as long as one of them."""

    def __init__(self, index: ModelIndex, threads: int) -> None:
        self._index = index
        self._threads = threads
        self._lock = threading.Lock()
        self._engines: WeakValueDictionary[tuple[Any, ...], _Engine] = WeakValueDictionary()

    def region(self, plan: ExecutionPlan, step: PlannedStep, fixed: Fixed) -> Region:
        """A region step made runnable. ``UnsupportedError`` where onnxruntime does not implement it."""
        inputs = dict(zip(step.region_inputs, step.inputs, strict=True))
        outputs = dict(zip(step.region_outputs, step.outputs, strict=True))
        rows = {name: plan.values[value] for name, value in inputs.items()}
        constants, weights = self._known(plan, inputs, fixed)
        types = tuple((name, row.elem_type, len(row.dims)) for name, row in rows.items())
        places = tuple((name, address(part), part.shape) for name, (_, part) in weights.items())
        key = (step.nodes, types, tuple(outputs), tuple(constants.items()), places)
        with self._lock:
            engine = self._engines.get(key)
            if engine is None:
                bound = {name: value for name, value in inputs.items() if name not in constants and name not in weights}
                model = self._model(plan, step, bound, outputs)
                for name, data in constants.items():
                    row = rows[name]
                    model.graph.initializer.add(name=name, data_type=row.elem_type, dims=row.dims, raw_data=data)
                for name, (elem_type, part) in weights.items():
                    _external(model.graph.initializer.add(name=name, data_type=elem_type, dims=part.shape))
                engine = self._engines[key] = _Engine(model, weights, self._threads_for(model, weights), step.label)
        return Region(plan, step.label, engine, {**inputs, **outputs})

    def _known(
        self, plan: ExecutionPlan, inputs: Mapping[str, int], fixed: Fixed
    ) -> tuple[dict[str, bytes], dict[str, tuple[int, np.ndarray]]]:
        """The inputs that the graph itself holds: small ones as their bytes, weights as element type and array."""
        constants: dict[str, bytes] = {}
        weights: dict[str, tuple[int, np.ndarray]] = {}
        for name, value in inputs.items():
            row = plan.values[value]
            if value not in fixed:
                continue
            if math.prod(row.dims) <= _EMBEDDED and self._stated(name):
                constants[name] = _part(fixed[value], row).tobytes()
            elif math.prod(row.dims) > _EMBEDDED and plan.values[row.root].weight is not None:
                weights[name] = row.elem_type, _part(fixed[value], row)
        return constants, weights

    def _threads_for(self, model: Any, weights: Mapping[str, tuple[int, np.ndarray]]) -> int:
        """As many as have enough to do at each node of a step that reads every weight once."""
        readers = sum(any(name in weights for name in node.input) for node in model.graph.node)
        if not readers:
            return self._threads
        nbytes = sum(part.nbytes for _, part in weights.values())
        return max(1, min(self._threads, nbytes // (readers * _SHARE)))

    def _stated(self, name: str) -> bool:
        """Whether the graph itself holds a constant; what a plan knows from its shapes differs from plan to plan."""
        scope = self._index.main
        maker = scope.producer.get(name)
        return maker is None or bool(scope.nodes[maker.node].op_type == "Constant")

    def _model(self, plan: ExecutionPlan, step: PlannedStep, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> Any:
        """The region's nodes as a model: ranks are given, dimensions are the run's."""
        whole = self._index.model
        model = ModelProto(ir_version=whole.ir_version)
        model.opset_import.extend(whole.opset_import)
        model.functions.extend(function for function in whole.functions if function.domain != FORMATS_DOMAIN)
        model.graph.name = "region"
        for position in step.nodes:
            model.graph.node.add().CopyFrom(self._index.main.nodes[position])
        for part, values in ((model.graph.input, inputs), (model.graph.output, outputs)):
            for name, value in values.items():
                row = plan.values[value]
                set_tensor_type(part.add(name=name), SymTensor(row.elem_type, (None,) * len(row.dims)))
        return model


class Region:
    """One region of one plan: an onnxruntime session, and the values of the plan that it reads and writes."""

    def __init__(self, plan: ExecutionPlan, label: str, engine: _Engine, values: Mapping[str, int]) -> None:
        self._label = label
        self._engine = engine
        self._names = [*engine.inputs, *engine.outputs]
        numbers = [values[name] for name in self._names]
        self._values = np.array(numbers, np.int32)
        self._rows = [(plan.values[value].elem_type, plan.values[value].dims) for value in numbers]
        # A decode loop finds most values where they were, and to bind one costs more than to compare all.
        self._idle: list[tuple[Any, bytes]] = []

    def run(self, lease: Any) -> None:
        """Run over the addresses that the lease has bound; ``UnsupportedError`` with onnxruntime's own message."""
        addresses = lease.addresses(self._values)
        try:
            binding, bound = self._idle.pop()
        except IndexError:
            binding, bound = self._engine.session.io_binding(), b""
        if bound != addresses:
            self._bind(binding, np.frombuffer(addresses, np.uint64), np.frombuffer(bound, np.uint64))
        try:
            self._engine.session.run_with_iobinding(binding)
        except Exception as error:
            raise UnsupportedError(f"{self._label}: onnxruntime: {error}") from error
        self._idle.append((binding, addresses))

    def _bind(self, binding: Any, addresses: np.ndarray, bound: np.ndarray) -> None:
        moved = np.flatnonzero(addresses != bound) if bound.size else np.arange(addresses.size)
        inputs = len(self._engine.inputs)
        for place in moved.tolist():
            empty = nbytes_of(*self._rows[place]) == 0  # onnxruntime refuses a null pointer even for a tensor of no elements
            bind = binding.bind_input if place < inputs else binding.bind_output
            bind(self._names[place], "cpu", 0, *self._rows[place], address(_EMPTY) if empty else int(addresses[place]))


def _options(threads: int) -> Any:
    """Threads as the plan has them, parked when idle, and no chatter."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def _part(owner: np.ndarray, row: Any) -> np.ndarray:
    """The elements of a contiguous value over the bytes of its owner."""
    kind = dtypes.BY_NUMBER[row.elem_type].numpy
    data = owner.reshape(-1).view(np.uint8)[row.offset : row.offset + row.nbytes]
    return data.view(kind).reshape(row.dims)


def _external(tensor: Any) -> None:
    """Marks an initializer as one whose data the session options provide; nothing is read from a file."""
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="memory")


def _lent(array: np.ndarray, elem_type: int) -> Any:
    """An OrtValue over an array's own memory, which it keeps alive."""
    import onnxruntime

    # onnxruntime knows no NumPy types of 16-bit brain floats; their bytes do.
    bare = array if array.dtype.kind in "biuf" else array.view(f"u{array.dtype.itemsize}")
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bare, elem_type)


_EMPTY = np.zeros(1, np.uint8)
