"""The weights of a model: which initializers products and look-ups read, how they lie, and their values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tenonnx import dtypes
from tenonnx.codecs import Decoder
from tenonnx.errors import TenonnxError
from tenonnx.schema.external import DataRoot
from tenonnx.schema.graph import ModelIndex, Port, Scope, attributes
from tenonnx.schema.payload import tensor_array
from tenonnx.structs import Recognizer, logical_shape
from tenonnx.structs.reader import INLINE

FLOATS = ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE")


@dataclass(frozen=True)
class Weight:
    """A float or structured initializer of the main graph.

    ``shape`` is that of a packed weight: rows of the inputs that one output reads, [out, in]. ``swapped`` says that the model
    holds the last two dimensions the other way round, as MatMul reads them.
    """

    name: str
    shape: tuple[int, ...]
    format: str  # the ONNX element type, or the format's name; "struct" for an unknown one
    structured: bool
    swapped: bool
    read: bool  # by MatMul, Gemm or Gather, so that a pattern with wildcards selects it


class Weights:
    """The weights of one model by name, which must not change meanwhile."""

    def __init__(self, model: Any, data_root: DataRoot | None = None) -> None:
        self._model = model
        self._index = ModelIndex(model)
        self._root = data_root or DataRoot(None)
        self._decoder = Decoder(model, self._root)
        self._found = {weight.name: weight for weight in (*self._plain(), *self._structured())}

    def __iter__(self) -> Iterator[Weight]:
        return iter(self._found.values())

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def __getitem__(self, name: str) -> Weight:
        return self._found[name]

    def values(self, weight: Weight) -> np.ndarray:
        """The weight in the order of ``weight.shape``, perhaps a view of the model's file."""
        scope = self._index.main
        if weight.structured:
            return self._decoder(scope.structs[weight.name])
        array = tensor_array(scope.initializers[weight.name], self._root)
        return array.swapaxes(-1, -2) if weight.swapped else array

    def _plain(self) -> Iterator[Weight]:
        scope = self._index.main
        fixed = _outputs(scope) | set(scope.inputs)
        for name, tensor in scope.initializers.items():
            kind = dtypes.BY_NUMBER.get(tensor.data_type)
            if kind is None or kind.name not in FLOATS or name in fixed:
                continue
            uses = list(_uses(scope, name))
            swapped = len(tensor.dims) > 1 and bool(uses) and all(_reads_columns(node, slot) for _, node, slot in uses)
            dims = tuple(tensor.dims)
            shape = (*dims[:-2], dims[-1], dims[-2]) if swapped else dims
            yield Weight(name, shape, kind.name, False, swapped, len(dims) > 1 and any(_is_read(*use) for use in uses))

    def _structured(self) -> Iterator[Weight]:
        scope, recognizer = self._index.main, self._decoder.recognizer
        for name, value in scope.structs.items():
            if value.type != INLINE:
                shape, format = _decoded(self._model, value.type, recognizer)
                if shape is not None:
                    yield Weight(name, shape, format, True, False, True)


def _decoded(model: Any, type_index: int, recognizer: Recognizer) -> tuple[tuple[int, ...] | None, str]:
    """Shape and format of a structured value; no shape where it stands for no tensor."""
    known = recognizer(type_index)
    if known is not None:
        return known.shape, known.format.name
    try:
        return tuple(logical_shape(model, type_index, recognizer)), "struct"
    except TenonnxError:
        return None, ""


def _outputs(scope: Scope) -> set[str]:
    """Values that a graph or one of its bodies returns: their names are not free to change."""
    return {name for inner in scope.walk() for name in inner.outputs}


def _uses(scope: Scope, name: str) -> Iterator[tuple[Scope, Any, int]]:
    """Scope, node and slot of every reader, those in bodies of control flow included."""
    for inner in scope.walk():
        for port in inner.readers.get(name, []):
            if port.slot >= 0:
                yield inner, inner.nodes[port.node], port.slot


def _reads_columns(node: Any, slot: int) -> bool:
    """Whether a node reads the weight as [in, out]."""
    if slot != 1 or node.domain not in ("", "ai.onnx"):
        return False
    return node.op_type == "MatMul" or (node.op_type == "Gemm" and not attributes(node).get("transB", 0))


def _is_read(scope: Scope, node: Any, slot: int) -> bool:
    """Whether a product or a look-up reads it, perhaps behind a Transpose."""
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type == "Gather":
        return slot == 0
    if node.op_type == "Transpose":
        return any(_multiplies(scope.nodes[port.node], port) for port in scope.readers.get(node.output[0], []))
    return node.op_type in ("MatMul", "Gemm") and slot < 2


def _multiplies(node: Any, port: Port) -> bool:
    return node.op_type in ("MatMul", "Gemm") and 0 <= port.slot < 2
