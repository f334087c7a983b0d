"""From a structured value to the tensor that it stands for."""

from __future__ import annotations

from typing import Any

import numpy as np

from tenonnx.codecs import native
from tenonnx.codecs.engines import Runner, runner
from tenonnx.codecs.growth import check_growth
from tenonnx.errors import CheckError, PayloadError
from tenonnx.schema.external import DataRoot
from tenonnx.schema.payload import struct_payload
from tenonnx.structs import functions
from tenonnx.structs.decoders import decoder_model
from tenonnx.structs.layout import leaves
from tenonnx.structs.physical import Node
from tenonnx.structs.recognize import Recognized, Recognizer
from tenonnx.structs.view import view_node


class Decoder:
    """Decodes the structured values of one model, which must not change meanwhile; a decoder is compiled once.

    A known format is decoded by its native kernel, or by its formula where it has none; any other by its declared decoder, in
    onnxruntime or in onnx's reference evaluator. ``threads`` are those of the kernels, 0 for one on each processor.
    """

    def __init__(self, model: Any, data_root: DataRoot | None = None, threads: int = 0) -> None:
        self.recognizer = Recognizer(model)
        self._functions = functions.index(model)
        self._root = data_root or DataRoot(None)
        self._threads = threads
        self._runners: dict[int, Runner] = {}

    def __call__(self, value: Any) -> np.ndarray:
        """The logical value of a StructProto.

        Raises ``PayloadError`` for bytes that do not fit its type, ``CheckError`` for a type or decoder that is invalid or
        missing, ``TypeLimit`` for a decoder that makes too much of a few bytes, and ``UnsupportedError`` for one that no
        engine runs.
        """
        where = f"struct value {value.name!r}"
        node = self.recognizer.types.of_value(value, where)
        payload = struct_payload(value, self._root, where)
        known = self.recognizer(value.type) if value.type >= 0 else None
        if known is not None:
            return self._known(known, payload, where)
        return self._runner(value, node, where)(view_node(payload, node, where).leaves())[0]

    def _known(self, known: Recognized, payload: np.ndarray, where: str) -> np.ndarray:
        format, expected = known.format, known.format.blocks(known.shape) * known.format.nbytes
        if payload.size != expected:
            raise PayloadError(f"{where}: {format.name}{list(known.shape)} takes {expected} bytes, found {payload.size}")
        if native.decodes(format):
            return native.decode(format, payload, known.shape, self._threads)
        return format.decode(payload, known.shape)

    def _runner(self, value: Any, node: Node, where: str) -> Runner:
        inline = value.type < 0
        if not inline and value.type in self._runners:
            return self._runners[value.type]
        root = value.struct_type if inline else self.recognizer.types.declarations[value.type]
        if not root.HasField("decoder"):
            raise CheckError(f"{where}: its type has no decoder, so it stands for no tensor; read its fields with structs.view")
        model = decoder_model(root.decoder, leaves(node), self._functions)
        check_growth(model, node.nbytes, where)
        made = runner(model, where)
        if not inline:
            self._runners[value.type] = made
        return made


def decode(value: Any, model: Any, data_root: DataRoot | None = None, threads: int = 0) -> np.ndarray:
    """The logical value of a StructProto of ``model``; for many values make one ``Decoder(model)``, which raises the same."""
    return Decoder(model, data_root, threads)(value)
