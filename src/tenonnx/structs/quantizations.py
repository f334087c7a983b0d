"""Quantizations: named profiles over structured types, by which a quantized tensor says how its bytes stand for elements.

``block_type`` is a root that decodes one block to ``block_shape``, so a quantization is recognized like any other root: by its
bits and its decoder, under any name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tenonnx import dtypes
from tenonnx.errors import CheckError
from tenonnx.schema.messages import QuantizationProto
from tenonnx.structs import functions
from tenonnx.structs.catalogue import catalogue
from tenonnx.structs.declare import declare
from tenonnx.structs.decoders import logical_shape
from tenonnx.structs.formats import Format
from tenonnx.structs.formats_pages import BLOCKS, fp8_page, integer_page
from tenonnx.structs.physical import Array, Node
from tenonnx.structs.reader import Types


def declare_quantization(model: Any, format: Format, elem_type: int) -> int:
    """The index in ``model.quantizations`` of a format whose elements stand for ``elem_type``, declared on first use."""
    for index, known in enumerate(model.quantizations):
        if known.name == format.name and known.elem_type == elem_type:
            return index
    block = declare(model, format, format.block_shape)
    model.quantizations.append(
        QuantizationProto(name=format.name, elem_type=elem_type, block_type=block, block_shape=format.block_shape)
    )
    return len(model.quantizations) - 1


class Quantizations:
    """The formats behind a model's quantizations, read once each."""

    def __init__(self, model: Any, known: Sequence[Format] = ()) -> None:
        self.model = model
        self._known = tuple(known)
        self._types = Types(model.struct_types)
        self._functions = functions.index(model)
        self._found: dict[int, Format] = {}

    def __len__(self) -> int:
        return len(self.model.quantizations)

    def __getitem__(self, index: int) -> Format:
        """The format of ``quantizations[index]``; ``CheckError`` where it is invalid, naming what is wrong."""
        if index not in self._found:
            if not 0 <= index < len(self):
                raise CheckError(f"quantizations[{index}]: the model declares {len(self)}; use an index of one of them")
            self._found[index] = self._read(self.model.quantizations[index], f"quantizations[{index}]")
        return self._found[index]

    def index_of(self, format: Format) -> int | None:
        """The index of a quantization that is this format by bits and decoder, or None."""
        for index in range(len(self)):
            found = self[index]
            if same_format(found, format):
                return index
        return None

    def inline(self, quantization: Any) -> Format:
        """The format of a QuantizationProto that stands in a quantized tensor itself."""
        return self._read(quantization, f"quantization {quantization.name!r}")

    def _read(self, quantization: Any, where: str) -> Format:
        if not quantization.name:
            raise CheckError(f"{where}: has no name; name the profile")
        dtypes.scalar(quantization.elem_type, f"{where}: elem_type")
        shape = tuple(quantization.block_shape)
        if min(shape, default=1) < 1:
            raise CheckError(f"{where}: block_shape {list(shape)}; expected counts of 1 or more")
        if not 0 <= quantization.block_type < len(self.model.struct_types):
            raise CheckError(f"{where}: block_type {quantization.block_type} is no index into struct_types")
        node = self._types.node(quantization.block_type, where)
        root = self.model.struct_types[quantization.block_type]
        decoded = logical_shape(self.model, quantization.block_type)
        if tuple(decoded) != shape:
            raise CheckError(f"{where}: block_shape is {list(shape)}, but its block_type decodes to {decoded}")
        if not isinstance(node, Array) or node.dimension != 1:
            raise CheckError(f"{where}: block_type {quantization.block_type} is no array of one block; declare the block alone")
        call = root.decoder.node[0]
        function = self._functions.get((call.domain, call.op_type, call.overload))
        if function is None:
            raise CheckError(f"{where}: its decoder calls no function of the model; declare it with declare_quantization")
        encoder = self._encoder(root, where)
        known = self._recognized(node.element, shape, function)
        if known is not None and (known.quantize is not None or encoder is None):
            return known
        return Format(quantization.name, node.element, shape, function, encoder)

    def _encoder(self, root: Any, where: str) -> Any:
        """The function of the model by which a root's encoder, where it has one, makes the leaves of N blocks."""
        if not root.HasField("encoder"):
            return None
        for call in root.encoder.node[-1:]:
            function = self._functions.get((call.domain, call.op_type, call.overload))
            if function is not None and list(call.output) == list(root.encoder.output):
                return function
        raise CheckError(f"{where}: its encoder ends in no call of a function of the model; declare it with declare_quantization")

    def _recognized(self, block: Node, shape: tuple[int, ...], function: Any) -> Format | None:
        found = functions.normal_form(function)
        for known in (*self._known, *_candidates(shape)):
            if known.block_type == block and known.block_shape == shape and known.normal_form == found:
                return known
        return None


def _candidates(shape: tuple[int, ...]) -> list[Format]:
    """The known formats whose blocks have this shape, those of pages first."""
    pages = [integer_page(width, shape[0]) for width in (8, 4, 2)] if len(shape) == 1 and shape[0] in BLOCKS else []
    rows = [fp8_page(shape[0])] if len(shape) == 1 else []
    return [*pages, *rows, *(catalogue[name] for name in catalogue if catalogue[name].block_shape == shape)]


def same_format(a: Format, b: Format) -> bool:
    """Whether two formats are one by bits and decoder, whatever their names."""
    if a is b:
        return True
    return a.block_type == b.block_type and a.block_shape == b.block_shape and a.normal_form == b.normal_form
