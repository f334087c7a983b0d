"""Rewriting a graph so that plain weights are structured ones: StructDecode, and the Transpose that products read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tenonnx.convert.weights import Weight
from tenonnx.schema.domains import DOMAIN, VERSION
from tenonnx.schema.graph import attributes
from tenonnx.schema.messages import AttributeProto, NodeProto, TensorProto


class Rewriter:
    """Puts structured initializers in the place of others; ``finish`` then rewrites all readers in one pass.

    Every other value keeps its name and content. A Gemm over a structured weight becomes MatMul and Add, as kernels multiply
    by packed bytes only there.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._graph = model.graph
        self._taken = set(_names(model.graph))
        self._weights: dict[str, Weight] = {}
        self._decoded: dict[str, str] = {}  # [..., out, in]
        self._columns: dict[str, str] = {}  # [..., in, out]
        self._made: list[Any] = []

    def replace(self, weight: Weight, type_index: int) -> None:
        """Let ``weight`` be a struct initializer of ``struct_types[type_index]``, its payload still to be set."""
        if weight.structured:
            value = next(value for value in self._graph.struct_initializer if value.name == weight.name)
            value.ClearField("raw_data")
            value.ClearField("external_data")
            value.type = type_index
            return
        place = next(place for place, tensor in enumerate(self._graph.initializer) if tensor.name == weight.name)
        elem_type = self._graph.initializer[place].data_type
        del self._graph.initializer[place]
        self._graph.struct_initializer.add(name=weight.name, type=type_index)
        decoded = self._node("StructDecode", weight.name, f"{weight.name}.decoded", DOMAIN)
        if elem_type != TensorProto.FLOAT:
            to = AttributeProto(name="to", type=AttributeProto.INT, i=elem_type)
            decoded = self._node("Cast", decoded, f"{weight.name}.cast", "", to)
        self._weights[weight.name], self._decoded[weight.name] = weight, decoded

    def finish(self) -> None:
        """Let the readers of all replaced weights read the decoded values."""
        if not self._weights:
            return
        nodes = [made for node in self._graph.node for made in self._rewritten(node)]
        infos = [info for info in self._graph.value_info if info.name not in self._weights]
        for field, kept in ((self._graph.node, [*self._made, *nodes]), (self._graph.value_info, infos)):
            del field[:]
            field.extend(kept)
        if all(entry.domain != DOMAIN for entry in self._model.opset_import):
            self._model.opset_import.add(domain=DOMAIN, version=VERSION)

    def _node(self, op: str, source: str, name: str, domain: str, *given: Any) -> str:
        """A node that comes before all others; the name of its one output."""
        name = self._free(name)
        self._made.append(NodeProto(op_type=op, name=name, domain=domain, input=[source], output=[name], attribute=given))
        return name

    def _free(self, name: str) -> str:
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name

    def _as_columns(self, name: str) -> str:
        """The weight as [..., in, out]."""
        if name not in self._columns:
            rank = len(self._weights[name].shape)
            order = [*range(rank - 2), rank - 1, rank - 2]
            perm = AttributeProto(name="perm", type=AttributeProto.INTS, ints=order)
            self._columns[name] = self._node("Transpose", self._decoded[name], f"{name}.transposed", "", perm)
        return self._columns[name]

    def _original(self, name: str) -> str:
        """What stands for the weight as the model held it."""
        return self._as_columns(name) if self._weights[name].swapped else self._decoded[name]

    def _rewritten(self, node: Any) -> Iterator[Any]:
        weight = self._weights.get(node.input[1]) if len(node.input) > 1 else None
        if weight is not None and weight.format == "FLOAT" and _is_plain_gemm(node):
            biased = len(node.input) > 2 and node.input[2] != ""
            product = self._free(f"{node.output[0]}.product") if biased else node.output[0]
            yield NodeProto(
                op_type="MatMul", name=product, input=[node.input[0], self._as_columns(weight.name)], output=[product]
            )
            if biased:
                yield NodeProto(op_type="Add", name=node.name, input=[product, node.input[2]], output=node.output)
            return
        self._rename(node)
        yield node

    def _rename(self, node: Any) -> None:
        for slot, name in enumerate(node.input):
            if name in self._weights:
                node.input[slot] = self._original(name)
        for attribute in node.attribute:
            for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                for inner in graph.node:
                    self._rename(inner)


def _is_plain_gemm(node: Any) -> bool:
    """Whether a Gemm is a product by its weight, and perhaps a sum: no factors, activations as they come."""
    if node.op_type != "Gemm" or node.domain not in ("", "ai.onnx") or node.output_alias:
        return False
    given = attributes(node)
    return given.get("alpha", 1.0) == given.get("beta", 1.0) == 1.0 and not given.get("transA", 0)


def _names(graph: Any) -> Iterator[str]:
    """Every name of a value in a graph and its bodies."""
    for values in (graph.input, graph.initializer, graph.struct_initializer):
        yield from (value.name for value in values)
    for node in graph.node:
        yield from node.output
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                yield from _names(inner)
