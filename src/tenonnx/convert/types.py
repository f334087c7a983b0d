"""Types of a graph's values, as far as they are declared or can be inferred."""

from __future__ import annotations

from typing import Any

from tenonnx.errors import TenonnxError
from tenonnx.shapes import ShapesContext, SymTensor
from tenonnx.shapes.symbols import symbol_of


def known_types(model: Any) -> dict[str, SymTensor]:
    """Types of the main graph's values as declared, with what shape inference adds."""
    graph = model.graph
    declared = {value.name: symbol_of(value.type) for part in (graph.value_info, graph.output, graph.input) for value in part}
    types = {name: symbol for name, symbol in declared.items() if isinstance(symbol, SymTensor)}
    types.update({tensor.name: SymTensor(tensor.data_type, tuple(tensor.dims)) for tensor in graph.initializer})
    try:
        context = ShapesContext(model)
    except TenonnxError:  # operators that onnx does not know: what is declared has to do
        return types
    for name in (name for node in graph.node for name in node.output):
        if name and name not in types and name in context:
            symbol = context[name]
            if isinstance(symbol, SymTensor):
                types[name] = symbol
    return types
