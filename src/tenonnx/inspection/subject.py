"""What is looked at: a model file with its data, or a format by its name."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenonnx.errors import CheckError
from tenonnx.schema.external import DataRoot
from tenonnx.schema.messages import ModelProto
from tenonnx.structs import Recognizer
from tenonnx.structs.catalogue import catalogue
from tenonnx.structs.formats import Format
from tenonnx.structs.physical import Node
from tenonnx.structs.resolve import find_format
from tenonnx.text.loading import read_model


@dataclass(frozen=True)
class Subject:
    """A model, the folder of its external data, and what its types are; ``format`` alone when no file was named."""

    name: str
    model: Any
    folder: DataRoot
    recognizer: Recognizer
    format: Format | None = None

    def type_named(self, wanted: str) -> tuple[str, Node]:
        """Title and node of a type of the model by index or name, or of a format.

        Raises ``CheckError`` for one that the model does not have, or that is invalid.
        """
        declared = self.model.struct_types
        if wanted.isascii() and wanted.isdecimal():
            index = int(wanted)
            node = self.recognizer.types.node(index, f"--type {wanted}")
            return declared[index].name or f"struct_types[{index}]", node
        for index, declaration in enumerate(declared):
            if declaration.name.lower() == wanted.lower():
                return declaration.name, self.recognizer.types.node(index)
        if ":" in wanted or wanted in catalogue:
            format = find_format(wanted)
            return format.name, format.block_type
        known = ", ".join(declaration.name for declaration in declared[:8]) or "none"
        more = ", …" if len(declared) > 8 else ""
        raise CheckError(f"{self.name}: has no type {wanted!r}; its types are {known}{more}")

    def only_type(self) -> tuple[str, Node]:
        """The format itself, or the one block or root that a model declares; ``CheckError`` where there are several."""
        if self.format is not None:
            return self.format.name, self.format.block_type
        blocks = [name for name in map(str, self.block_names()) if name]
        if len(blocks) == 1:
            return self.type_named(blocks[0])
        raise CheckError(f"{self.name}: has {len(blocks)} kinds of blocks: {', '.join(blocks) or 'none'}; name one with --type")

    def block_names(self) -> dict[str, None]:
        """Names of the declarations that struct initializers are arrays of, or are."""
        return dict.fromkeys(self.block_name(value.type) for value in self.model.graph.struct_initializer if value.type >= 0)

    def block_name(self, index: int) -> str:
        """The name of the block that ``struct_types[index]`` repeats, or its own."""
        declared = self.model.struct_types
        if not 0 <= index < len(declared):
            return ""
        root = declared[index]
        element = root.array.element_type.struct_type if root.HasField("array") else None
        if element is not None and element.WhichOneof("kind") == "type_index" and 0 <= element.type_index < len(declared):
            return declared[element.type_index].name or f"struct_types[{element.type_index}]"
        return root.name or f"struct_types[{index}]"


def open_subject(name: str | os.PathLike[str]) -> Subject:
    """An .onnx file, a GGUF or a known model, or else a format: of the catalogue, or ``module:format``.

    No weight is read. Raises ``PayloadError`` for a damaged file, and for a name that is none of these.
    """
    path, text = Path(name), os.fspath(name)
    if not path.exists() and (":" in text or text in catalogue):
        format = find_format(text)
        empty = ModelProto()
        return Subject(format.name, empty, DataRoot(None), Recognizer(empty), format)
    model, folder = read_model(name)
    return Subject(text, model, DataRoot(folder), Recognizer(model))
