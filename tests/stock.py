"""A converted model in the terms of stock onnx, for engines and checkers that nobody here wrote.

StructDecode becomes an initializer dequantized by the ``gguf`` package, CacheUpdate becomes TensorScatter, and the
additions are dropped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onnx
from onnx import helper, numpy_helper

from tenonnx.schema.messages import to_onnx


def stock(model: Any, paths: list[Path]) -> onnx.ModelProto:
    """The same graph at opset 24 of the standard domain, with its weights from the GGUF files ``paths``."""
    tensors = {tensor.name: tensor for path in paths for tensor in gguf.GGUFReader(path).tensors}

    def decoded(name: str) -> np.ndarray:
        tensor = tensors[name]
        return gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)

    plain = to_onnx(model)
    plain.DiscardUnknownFields()
    graph = plain.graph
    nodes = [helper.make_node("Expand", ["position", "batch_size"], ["write_indices"])]
    shape_nodes = [node for node in graph.node if node.output[0] == "batch_size"]
    nodes = shape_nodes + nodes
    for node in graph.node:
        if node.op_type == "StructDecode":
            graph.initializer.append(numpy_helper.from_array(decoded(node.input[0]), node.output[0]))
        elif node.op_type == "CacheUpdate":
            scatter = [node.input[0], node.input[1], "write_indices"]
            nodes.append(helper.make_node("TensorScatter", scatter, list(node.output), axis=-2))
        elif node.output[0] != "batch_size":
            nodes.append(node)
    for position, initializer in enumerate(graph.initializer):
        if initializer.data_location == onnx.TensorProto.EXTERNAL:
            graph.initializer[position].CopyFrom(numpy_helper.from_array(decoded(initializer.name), initializer.name))
    del graph.node[:]
    graph.node.extend(nodes)
    domains = [entry for entry in plain.opset_import if not entry.domain]
    del plain.opset_import[:]
    plain.opset_import.extend(domains)
    del plain.functions[:]
    return plain


def empty_caches(model: Any, batch: int, max_length: int) -> dict[str, np.ndarray]:
    """Zeroed FLOAT16 arrays for the READ_WRITE inputs."""
    caches = {}
    for value in model.graph.input:
        if value.name.startswith(("key_cache.", "value_cache.")):
            _, heads, _, head = (dim.dim_value for dim in value.type.tensor_type.shape.dim)
            caches[value.name] = np.zeros((batch, heads, max_length, head), np.float16)
    return caches
