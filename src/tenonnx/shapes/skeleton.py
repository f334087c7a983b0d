"""A stock model of the same shapes: what onnx's own inference is run on.

Large initializers become typed inputs, so no weight is serialized. Operators of this domain are replaced by what they
mean for types: a decoded structure is an input of its logical type, an update has the type of its cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tenonnx.errors import CheckError, ShapeError
from tenonnx.schema.domains import DOMAIN, FORMATS_DOMAIN
from tenonnx.schema.external import DataRoot
from tenonnx.schema.flatten import FLOW
from tenonnx.schema.messages import ModelProto, TensorProto
from tenonnx.schema.payload import tensor_array
from tenonnx.shapes.symbols import Dim, SymQuantizedTensor, SymTensor, pages_of, plain_pages, symbol_of

_TWIN_OPSET = 24  # of a model that imports no standard operators itself
_KEPT_ELEMENTS = 1024  # smaller initializers stay: shape inference reads Reshape targets and their kin from them

DecodedType = Callable[[str], SymTensor]  # the logical type of the struct value of that name


def set_tensor_type(value_info: Any, symbol: SymTensor) -> None:
    """Declare a value as a tensor of the given element type and dimensions."""
    tensor_type = value_info.type.tensor_type
    tensor_type.elem_type = symbol.elem_type
    if symbol.dims is None:
        return
    tensor_type.shape.ClearField("dim")
    tensor_type.shape.SetInParent()
    for dim in symbol.dims:
        entry = tensor_type.shape.dim.add()
        if isinstance(dim, int):
            entry.dim_value = dim
        elif dim is not None:
            entry.dim_param = dim


def _is_small(tensor: Any) -> bool:
    count = 1
    for dim in tensor.dims:
        count *= dim
    return count <= _KEPT_ELEMENTS and not tensor.external_data


def _stock_value(kept: Any, value: Any, tables: Mapping[str, Any]) -> None:
    """Copy a value's declaration; to stock inference a table of pages is a sequence of plain tensors, of no matter which type."""
    copy = kept.add()
    copy.CopyFrom(value)
    held = value.type
    while held.WhichOneof("value") in ("sequence_type", "map_type"):
        held = held.sequence_type.elem_type if held.HasField("sequence_type") else held.map_type.value_type
    if held.WhichOneof("value") == "quantized_tensor_type" or value.name in tables:
        copy.type.Clear()
        copy.type.sequence_type.elem_type.tensor_type.elem_type = TensorProto.FLOAT


def _page_tables(graph: Any) -> dict[str, SymQuantizedTensor]:
    """The pages behind every name of a container, updates of it included."""
    found: dict[str, SymQuantizedTensor] = {}
    read = {name for node in graph.node if node.domain in (DOMAIN, FLOW) for name in node.input}
    for value in graph.input:
        symbol = symbol_of(value.type)
        pages = pages_of(symbol)
        if pages is not None and (plain_pages(symbol) is None or value.name in read):
            found[value.name] = pages
    for node in graph.node:
        if node.domain == DOMAIN and node.op_type == "PagedCacheUpdate" and node.input and node.input[0] in found:
            found[node.output[0]] = found[node.input[0]]
        elif node.domain == FLOW and node.input[1] in found:
            found[node.output[0]] = found[node.input[1]]
    return found


class Skeleton:
    """The stock twin of a model; ``proto`` is filled once, input shapes are set anew for each inference."""

    def __init__(self, model: Any, decoded_type: DecodedType) -> None:
        self._decoded_type = decoded_type
        self.proto = ModelProto(ir_version=model.ir_version)
        # A domain that no operator needs here must still be imported, as a function body may name it.
        self.proto.opset_import.extend(model.opset_import)
        if not any(opset.domain in ("", "ai.onnx") for opset in model.opset_import):
            self.proto.opset_import.add(domain="", version=_TWIN_OPSET)  # updates stand here as Identity
        self.proto.functions.extend(function for function in model.functions if function.domain != FORMATS_DOMAIN)
        self._symbolic: list[tuple[Any, SymTensor]] = []  # declarations of values that nodes make, with symbols in them
        self._fill(model.graph, self.proto.graph)
        self.proto.graph.name = model.graph.name or "graph"

    def _fill(self, source: Any, target: Any) -> None:
        """Copy a main graph, replacing what stock inference does not know."""
        structs = {value.name for value in source.struct_initializer}
        self._pages = _page_tables(source)
        defaults = {value.name for value in source.input}
        # A Constant's content says what it is; onnxruntime-genai's builder declares some of another rank.
        made = {name for node in source.node if (node.domain, node.op_type) != ("", "Constant") for name in node.output}
        for value in source.input:
            _stock_value(target.input, value, self._pages)
        for tensor in source.initializer:
            if _is_small(tensor):
                tensor_array(tensor, DataRoot(None))  # onnx takes dims on trust, whatever the content
                target.initializer.add().CopyFrom(tensor)
            elif tensor.name not in defaults:
                info = target.input.add(name=tensor.name)
                set_tensor_type(info, SymTensor(tensor.data_type, tuple(tensor.dims)))
        for values, kept in ((source.output, target.output), (source.value_info, target.value_info)):
            for value in values:
                # The declaration of an output that is an input would replace what is known of the input.
                if value.name in made and value.type.WhichOneof("value") != "struct_type":
                    _stock_value(kept, value, self._pages)
                    declared = symbol_of(value.type)
                    if isinstance(declared, SymTensor) and any(isinstance(dim, str) for dim in declared.dims or ()):
                        self._symbolic.append((kept[-1], declared))
        for node in source.node:
            self._node(node, target, structs)

    def _node(self, node: Any, target: Any, structs: set[str]) -> None:
        where = f"node {node.name or node.op_type}"
        if node.domain == FLOW:
            target.node.add(name=node.name, op_type="Identity", input=node.input[1:2], output=node.output)
        elif node.domain != DOMAIN:
            copy = target.node.add()
            copy.CopyFrom(node)
            copy.ClearField("output_alias")
            for attribute in copy.attribute:
                for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                    self._nested(graph)
        elif node.op_type == "StructDecode":
            if len(node.input) != 1 or len(node.output) != 1 or node.input[0] not in structs:
                raise CheckError(f"{where}: StructDecode takes one structured initializer of the graph, found {list(node.input)}")
            set_tensor_type(target.input.add(name=node.output[0]), self._decoded_type(node.input[0]))
        elif node.op_type in ("CacheUpdate", "PagedCacheUpdate"):
            if len(node.input) < (3 if node.op_type == "CacheUpdate" else 4) or not all(node.input[:3]) or len(node.output) != 1:
                takes = "values" if node.op_type == "CacheUpdate" else "page_id, values"
                raise CheckError(f"{where}: {node.op_type} takes a cache, {takes} and a position, found {list(node.input)}")
            target.node.add(name=node.name, op_type="Identity", input=node.input[:1], output=node.output)
        elif node.op_type == "PagedAttention":
            if len(node.input) != 5 or len(node.output) != 1:
                raise CheckError(f"{where}: takes q, k_pages, v_pages, page_table and lengths, found {list(node.input)}")
            # Its result has the dims of q but the last, which is a row of v: those of a product with [head, value].
            stand_in = f"{node.output[0]}/value"
            set_tensor_type(target.input.add(name=stand_in), SymTensor(1, (None, self._value_size(node, where))))
            target.node.add(name=node.name, op_type="MatMul", input=[node.input[0], stand_in], output=node.output)
        else:
            raise CheckError(f"{where}: domain {DOMAIN!r} has no operator {node.op_type!r} in version 1")

    def _value_size(self, node: Any, where: str) -> Dim:
        """Elements of a row of the pages that values come from."""
        pages = self._pages.get(node.input[2] or node.input[1])
        if pages is None:
            raise CheckError(f"{where}: {node.input[2] or node.input[1]!r} is no table of quantized pages")
        return pages.dims[-1] if pages.dims else None

    def _nested(self, graph: Any) -> None:
        """Replace in a body, in place, the updates of an outer cache; bodies hold no structured initializers."""
        nodes = list(graph.node)
        del graph.node[:]
        for node in nodes:
            self._node(node, graph, set())

    def infer(self, inputs: dict[str, SymTensor], dims: Mapping[str, int]) -> Any:
        """A stock GraphProto with inferred value_info, for these types of inputs and values of symbols.

        What the model declares of a value tells more than the inputs where its operator has no rule in onnx. Raises
        ``ShapeError`` when types do not fit.
        """
        from onnx import shape_inference

        for value in self.proto.graph.input:
            if value.name in inputs:
                set_tensor_type(value, inputs[value.name])
        for info, symbol in self._symbolic:
            given = tuple(dims.get(dim, dim) if isinstance(dim, str) else dim for dim in symbol.dims or ())
            set_tensor_type(info, SymTensor(symbol.elem_type, given))
        data = self.proto.SerializeToString()
        # Following the content of shapes, onnx refuses some sound graphs; what it refuses without doing so is not sound.
        for data_prop in (True, False):
            try:
                return shape_inference.infer_shapes(data, check_type=True, strict_mode=True, data_prop=data_prop).graph
            except Exception as error:  # onnx raises types of its own, and RuntimeError, for the same kind of finding
                refused = error
        raise ShapeError(f"shape inference: {str(refused).strip()}; give inputs whose types and dimensions fit") from refused
