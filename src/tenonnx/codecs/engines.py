"""Engines for declared decoders and encoders: onnxruntime, or onnx's reference evaluator where that lacks an operator or type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tenonnx import dtypes
from tenonnx.errors import UnsupportedError
from tenonnx.structs.layout import Axis
from tenonnx.structs.packing import pack

_PACKED = {f"tensor({name})" for name in ("int2", "uint2", "int4", "uint4", "float4e2m1", "float6e2m3", "float6e3m2")}

Runner = Callable[[Sequence[np.ndarray]], list[np.ndarray]]  # from the inputs of a model to its outputs, both in order


def runner(model: Any, where: str) -> Runner:
    """What runs a model (stock onnx) of one decoder or encoder; ``UnsupportedError`` when no engine can."""
    try:
        return _onnxruntime(model, where)
    except Exception as refusal:  # onnxruntime has an exception of its own for each status code
        try:
            return _reference(model, where)
        except Exception as error:
            raise UnsupportedError(f"{where}: no engine runs its decoder: onnxruntime: {refusal}; reference: {error}") from error


def _onnxruntime(model: Any, where: str) -> Runner:
    import onnxruntime
    from onnx.inliner import inline_local_functions

    # It refuses some element types as the input of a function that passes them on to another one.
    inlined = inline_local_functions(model)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    # A decoder runs once per value, so nothing pays for optimization, and its operators are to be taken as they are written.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    providers = ["CPUExecutionProvider"]
    # Its own fallback would only try the same again, and print that it does.
    session = onnxruntime.InferenceSession(inlined.SerializeToString(), options, providers=providers, enable_fallback=0)
    if packed := [output.name for output in session.get_outputs() if output.type in _PACKED]:
        raise UnsupportedError(f"onnxruntime hands out no elements of less than a byte: {', '.join(packed)}")
    types = [(info.name, info.type.tensor_type.elem_type) for info in model.graph.input]

    def run(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        binding = session.io_binding()
        # The binding holds addresses only, so the arrays live here until the run is over.
        packed = [packed_elements(array) for array in inputs]
        for (name, elem_type), array, data in zip(types, inputs, packed, strict=True):
            binding.bind_input(name, "cpu", 0, elem_type, array.shape, data.ctypes.data)
        for output in model.graph.output:
            binding.bind_output(output.name)
        return _ran(where, lambda: (session.run_with_iobinding(binding), binding.copy_outputs_to_cpu())[1])

    return run


def packed_elements(array: np.ndarray) -> np.ndarray:
    """The elements of an array as onnxruntime keeps them: contiguous, those below a byte packed from the low bits up."""
    scalar = dtypes.of_numpy(array.dtype)
    if scalar.bits % 8 == 0:
        return np.ascontiguousarray(array)
    data = np.zeros(-(-array.size * scalar.bits // 8), np.uint8)
    codes = np.ascontiguousarray(array).reshape(-1).view(np.uint8) & (2**scalar.bits - 1)
    pack(data, 0, (Axis(array.size, scalar.bits),), scalar.bits, codes)
    return data


def _reference(model: Any, where: str) -> Runner:
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(model)

    names = [info.name for info in model.graph.input]

    def run(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        return _ran(where, lambda: evaluator.run(None, dict(zip(names, inputs, strict=True))))

    return run


def _ran(where: str, compute: Callable[[], list[np.ndarray]]) -> list[np.ndarray]:
    try:
        with np.errstate(all="ignore"):  # infinities and NaN are values like any other
            return compute()
    except Exception as error:
        raise UnsupportedError(f"{where}: its decoder fails: {error}") from error
