"""Telling a known format by what it is: the bits of its block, its F and the way F is called, never by a name or a shape."""

from __future__ import annotations

from typing import Any, NamedTuple

from tenonnx.errors import ShapeError
from tenonnx.structs import functions
from tenonnx.structs.catalogue import catalogue
from tenonnx.structs.formats import Format
from tenonnx.structs.physical import Array
from tenonnx.structs.reader import Types


class Recognized(NamedTuple):
    """A root that is a tensor of ``shape`` in a known format."""

    format: Format
    shape: tuple[int, ...]


class Recognizer:
    """Recognizes the roots of one model; what it has found is remembered, so the model must not change meanwhile."""

    def __init__(self, model: Any, types: Types | None = None) -> None:
        self.types = types or Types(model.struct_types)
        self._functions = functions.index(model)
        self._found: dict[int, Recognized | None] = {}
        # A model may give standard operators another meaning; then nothing that is called by a standard name is known.
        self._standard = not any(domain in functions.STANDARD for domain, _, _ in self._functions)

    def __call__(self, type_index: int) -> Recognized | None:
        """What ``struct_types[type_index]`` is; None for any other type. Raises ``CheckError`` for an invalid one."""
        if type_index not in self._found:
            self._found[type_index] = self._recognize(type_index)
        return self._found[type_index]

    def _recognize(self, type_index: int) -> Recognized | None:
        node, root = self.types.node(type_index), self.types.declarations[type_index]
        if not self._standard or not isinstance(node, Array) or not root.HasField("decoder") or not root.decoder.node:
            return None
        call = root.decoder.node[0]
        function = self._functions.get((call.domain, call.op_type, call.overload))
        if function is None:
            return None
        found = functions.normal_form(function)
        for name in catalogue:
            known = catalogue[name]
            if known.block_type == node.element and known.normal_form == found:
                shape = _called_for(known, root.decoder, node.dimension)
                if shape is not None:
                    return Recognized(known, shape)
        return None


def _called_for(known: Format, decoder: Any, blocks: int) -> tuple[int, ...] | None:
    """The shape for which ``decoder`` is exactly the format's own, by whatever name it calls F."""
    shape = functions.reshape_target(decoder)
    try:
        if shape is None or known.blocks(shape) != blocks:
            return None
    except ShapeError:
        return None
    expected = known.root_decoder(shape)
    call, own = decoder.node[0], expected.node[0]
    own.domain, own.op_type, own.overload = call.domain, call.op_type, call.overload
    return shape if functions.normal_form(expected) == functions.normal_form(decoder) else None


def recognize(model: Any, type_index: int) -> Recognized | None:
    """The known format and shape of the root ``model.struct_types[type_index]``, None when it is any other type.

    For many roots of one model make one ``Recognizer(model)`` and call that.
    """
    return Recognizer(model)(type_index)
