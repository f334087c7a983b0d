"""Models with Loops over caches, broken in one way each."""

from __future__ import annotations

from typing import Any


def spoil(model: Any, how: str) -> Any:
    """A model with one Loop that carries a cache, made to break one rule."""
    (loop,) = (node for node in model.graph.node if node.op_type == "Loop")
    body = loop.attribute[0].g
    if how == "a body that breaks the chain":
        body.node.add(op_type="Neg", input=["u"], output=["n"])
        body.output[1].name, body.output[1].alias_of = "n", ""
    elif how == "an update of the outer cache":
        body.node[2].input[0] = "cache"
        body.output[1].alias_of = ""
    elif how == "an outer reader after the loop":
        model.graph.node.add(op_type="Add", input=["cache", "after"], output=["late"])
        model.graph.output.add(name="late").type.CopyFrom(model.graph.output[0].type)
    elif how == "READ_WRITE on a formal that is no cache":
        body.input[3].access = 1
    elif how == "output_alias of the sum":
        loop.output_alias.add(output_index=1, input_index=2, kind=1)
    elif how == "too few inputs":
        del loop.input[3:]
    return model
