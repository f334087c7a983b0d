"""Small models with caches, built node by node from Tenonnx's own messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import helper

from tenonnx import dtypes
from tenonnx.schema.domains import DOMAIN
from tenonnx.schema.messages import AttributeProto, ModelProto, ValueAliasProto, ValueInfoProto

BOOL, FLOAT, FLOAT16, INT64 = (dtypes.BY_NAME[name].number for name in ("BOOL", "FLOAT", "FLOAT16", "INT64"))

Dims = Sequence[int | str] | None


class Graph:
    """A model in the making. ``dims`` of None declares no shape."""

    def __init__(self, opset: int = 24) -> None:
        self.model = ModelProto(ir_version=13)
        self.model.opset_import.add(domain="", version=opset)
        self.model.opset_import.add(domain=DOMAIN, version=1)
        self.model.graph.name = "graph"
        self.body = self.model.graph

    def input(self, name: str, elem_type: int, dims: Dims, *, mutable: bool = False) -> str:
        value = self.body.input.add(name=name)
        declare(value, elem_type, dims)
        if mutable:
            value.access = ValueInfoProto.READ_WRITE
        return name

    def constant(self, name: str, array: np.ndarray) -> str:
        kind = dtypes.of_numpy(array.dtype).number
        self.body.initializer.add(name=name, data_type=kind, dims=array.shape, raw_data=array.tobytes())
        return name

    def node(
        self,
        op: str,
        inputs: Sequence[str],
        *outputs: str,
        alias: tuple[int, int] | None = None,
        domain: str = "",
        **attributes: Any,
    ) -> str:
        """A node named after its first output; ``alias`` is (output port, input port)."""
        node = self.body.node.add(op_type=op, name=outputs[0], domain=domain, input=inputs, output=outputs)
        for key, value in attributes.items():
            node.attribute.append(AttributeProto.FromString(helper.make_attribute(key, value).SerializeToString()))
        if alias is not None:
            node.output_alias.add(output_index=alias[0], input_index=alias[1], kind=ValueAliasProto.MUST_ALIAS)
        return outputs[0]

    def update(self, cache: str, values: str, position: str, output: str, **attributes: int) -> str:
        return self.node("CacheUpdate", [cache, values, position], output, alias=(0, 0), domain=DOMAIN, **attributes)

    def holding(self, op: str, inputs: Sequence[str], *outputs: str, **bodies: Graph) -> str:
        """A node of control flow, with the bodies of other graphs in the making."""
        node = self.body.node.add(op_type=op, name=outputs[0], input=inputs, output=outputs)
        for key, graph in bodies.items():
            node.attribute.add(name=key, type=5).g.CopyFrom(graph.body)
        return outputs[0]

    def output(self, name: str, elem_type: int, dims: Dims, alias_of: str = "") -> None:
        value = self.body.output.add(name=name)
        declare(value, elem_type, dims)
        if alias_of:
            value.alias_of = alias_of


def declare(value: Any, elem_type: int, dims: Dims) -> None:
    tensor = value.type.tensor_type
    tensor.elem_type = elem_type
    if dims is None:
        return
    tensor.shape.SetInParent()
    for dim in dims:
        tensor.shape.dim.add(**({"dim_value": dim} if isinstance(dim, int) else {"dim_param": dim}))


def spec_example() -> Any:
    """The model example of the specification's mutable-cache page, word for word."""
    g = Graph()
    g.input("cache", FLOAT16, [2, "batch", "heads", "max_length", "head_size"], mutable=True)
    g.input("values", FLOAT16, [2, "batch", "heads", "new_length", "head_size"])
    g.input("position", INT64, [])
    g.update("cache", "values", "position", "updated_cache")
    g.output("updated_cache", FLOAT16, [2, "batch", "heads", "max_length", "head_size"], alias_of="cache")
    return g.model


def cache_model(dims: Dims = (1, 2, 8, 4), rows: int | str = "n", *, elem_type: int = FLOAT, position: Dims = ()) -> Any:
    """cache [batch, heads, capacity, head] updated along axis -2, its old content doubled and its new content negated."""
    dims = list(dims or ())
    values = [*dims[:-2], rows, dims[-1]]
    g = Graph()
    g.input("cache", elem_type, dims, mutable=True)
    g.input("values", elem_type, values)
    g.input("position", INT64, position)
    g.node("Add", ["cache", "cache"], "old") if elem_type == FLOAT else None
    g.update("cache", "values", "position", "updated")
    g.output("updated", elem_type, dims, alias_of="cache")
    if elem_type == FLOAT:
        g.node("Neg", ["updated"], "new")
        g.output("old", FLOAT, dims)
        g.output("new", FLOAT, dims)
    return g.model


def chain(length: int, op: str = "Neg", dims: Dims = (4,)) -> Any:
    """``length`` nodes of one input in a row."""
    g = Graph()
    g.input("x0", FLOAT, dims)
    for number in range(length):
        g.node(op, [f"x{number}"], f"x{number + 1}")
    g.output(f"x{length}", FLOAT, dims)
    return g.model
