"""Engines for declared decoders: onnxruntime, or onnx's reference evaluator where onnxruntime lacks an operator or type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tenonnx import dtypes
from tenonnx.errors import UnsupportedError
from tenonnx.structs.layout import Axis
from tenonnx.structs.packing import pack

Runner = Callable[[Sequence[np.ndarray]], np.ndarray]


def runner(model: Any, where: str) -> Runner:
    """What runs a decoder's model (stock onnx) over its leaves; ``UnsupportedError`` when no engine can."""
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
    types = [info.type.tensor_type.elem_type for info in model.graph.input]

    def run(leaves: Sequence[np.ndarray]) -> np.ndarray:
        binding = session.io_binding()
        # The binding holds addresses only, so the arrays live here until the run is over.
        packed = [packed_elements(leaf) for leaf in leaves]
        for place, (leaf, data, elem_type) in enumerate(zip(leaves, packed, types, strict=True)):
            binding.bind_input(f"leaf_{place}", "cpu", 0, elem_type, leaf.shape, data.ctypes.data)
        binding.bind_output("value")
        return _ran(where, lambda: (session.run_with_iobinding(binding), binding.copy_outputs_to_cpu()[0])[1])

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

    def run(leaves: Sequence[np.ndarray]) -> np.ndarray:
        return _ran(where, lambda: evaluator.run(None, {f"leaf_{place}": leaf for place, leaf in enumerate(leaves)})[0])

    return run


def _ran(where: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
    try:
        return compute()
    except Exception as error:
        raise UnsupportedError(f"{where}: its decoder fails: {error}") from error
