"""Writes nodes and weights of a graph straight into protobuf messages."""

from __future__ import annotations

from typing import Any

import numpy as np

from tenonnx.convert.editing import make_node
from tenonnx.convert.gguf import Gguf, GgufTensor
from tenonnx.convert.tensor_types import TENSOR_TYPES
from tenonnx.dtypes import of_numpy
from tenonnx.errors import UnsupportedError
from tenonnx.schema.domains import DOMAIN
from tenonnx.schema.messages import TensorProto, ValueAliasProto, ValueInfoProto
from tenonnx.structs import catalogue, declare


class GraphBuilder:
    """Appends to a model's graph; each method returns the name of the value that it defines."""

    def __init__(self, model: Any, gguf: Gguf) -> None:
        self.model = model
        self.graph = model.graph
        self.gguf = gguf
        self._types: dict[tuple[str, tuple[int, ...]], int] = {}
        self._values: dict[str, str] = {}  # weights, by tensor name
        self._shapes: dict[tuple[int, ...], str] = {}

    def node(self, op: str, inputs: list[str], output: str, domain: str = "", **attributes: int | float | str | list[int]) -> str:
        """One node of one output, named after it."""
        self.graph.node.append(make_node(op, inputs, [output], domain, **attributes))
        return output

    def constant(self, name: str, array: np.ndarray) -> str:
        """A small initializer kept in the model."""
        kind = of_numpy(array.dtype, name).number
        self.graph.initializer.add(name=name, data_type=kind, dims=array.shape, raw_data=array.tobytes())
        return name

    def shape(self, *dims: int) -> str:
        """An INT64 initializer for Reshape and its kin, one for all that ask for the same."""
        if dims not in self._shapes:
            name = "dims." + "_".join(str(dim) for dim in dims)
            self._shapes[dims] = self.constant(name, np.array(dims, np.int64))
        return self._shapes[dims]

    def weight(self, name: str) -> str:
        """A tensor of the GGUF file as a FLOAT value, its bytes left where they lie."""
        if name not in self._values:
            tensor = self.gguf.tensors[name]
            plain = len(tensor.shape) == 1 and tensor.format == "F32"
            self._values[name] = self._vector(tensor) if plain else self._structured(tensor)
        return self._values[name]

    def linear(self, x: str, name: str, output: str) -> str:
        """``x [..., columns]`` by the transposed matrix ``name.weight [rows, columns]``, plus ``name.bias`` if there is one."""
        transposed = self._transposed(f"{name}.weight")
        if f"{name}.bias" not in self.gguf.tensors:
            return self.node("MatMul", [x, transposed], output)
        product = self.node("MatMul", [x, transposed], f"{output}.product")
        return self.node("Add", [product, self.weight(f"{name}.bias")], output)

    def alias(self, output: int, source: int) -> None:
        """Declare that an output of the last node shares the storage of one of its inputs."""
        self.graph.node[-1].output_alias.add(output_index=output, input_index=source, kind=ValueAliasProto.MUST_ALIAS)

    def input(self, name: str, elem_type: int, dims: list[int | str], *, writable: bool = False, pages: bool = False) -> str:
        value = _value_info(self.graph.input.add(), name, elem_type, dims, pages)
        if writable:
            value.access = ValueInfoProto.READ_WRITE
        return name

    def output(self, name: str, elem_type: int, dims: list[int | str], alias_of: str = "", *, pages: bool = False) -> None:
        value = _value_info(self.graph.output.add(), name, elem_type, dims, pages)
        if alias_of:
            value.alias_of = alias_of

    def _transposed(self, name: str) -> str:
        key = f"{name}.transposed"
        if key not in self._values:
            self._values[key] = self.node("Transpose", [self.weight(name)], key, perm=[1, 0])
        return self._values[key]

    def _vector(self, tensor: GgufTensor) -> str:
        value = self.graph.initializer.add(name=tensor.name, data_type=TensorProto.FLOAT, dims=tensor.shape)
        value.data_location = TensorProto.EXTERNAL
        _point(value, tensor)
        return tensor.name

    def _structured(self, tensor: GgufTensor) -> str:
        key = tensor.format, tensor.shape
        if key not in self._types:
            if tensor.format not in catalogue:
                known = ", ".join(size.name for size in TENSOR_TYPES.values() if size.name in catalogue)
                raise UnsupportedError(
                    f"{tensor.file}: tensor {tensor.name!r} has type {tensor.format}; "
                    f"this version runs {known}: quantize the model to one of them"
                )
            self._types[key] = declare(self.model, catalogue[tensor.format], tensor.shape)
        _point(self.graph.struct_initializer.add(name=tensor.name, type=self._types[key]), tensor)
        return self.node("StructDecode", [tensor.name], f"{tensor.name}.decoded", DOMAIN)


def _point(value: Any, tensor: GgufTensor) -> None:
    for key, text in (("location", tensor.file.name), ("offset", str(tensor.offset)), ("length", str(tensor.nbytes))):
        value.external_data.add(key=key, value=text)


def _value_info(value: Any, name: str, elem_type: int, dims: list[int | str], pages: bool = False) -> Any:
    """A tensor, or with ``pages`` a sequence of quantized tensors of these dims."""
    value.name = name
    kind = value.type.sequence_type.elem_type.quantized_tensor_type if pages else value.type.tensor_type
    kind.elem_type = elem_type
    shape = kind.shape
    shape.SetInParent()
    for dim in dims:
        if isinstance(dim, int):
            shape.dim.add(dim_value=dim)
        else:
            shape.dim.add(dim_param=dim)
    return value
