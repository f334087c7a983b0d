"""Digests of sources and payloads, computed once, and not at all where this machine has verified the file before."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from tenonnx.compiled.digest import Sources, digest
from tenonnx.compiled.memory import Memory
from tenonnx.schema.external import DataRoot, MappedFile, parse_external
from tenonnx.schema.payload import is_external

_KEPT_PAGES = 8 << 20  # bytes of sources read, after which their pages are given back


class Hashes:
    """The digests of one model. ``strict`` computes every one anew; ``model_file`` is what the model was read from."""

    def __init__(self, model: Any, root: DataRoot, model_file: MappedFile | None, strict: bool, threads: int) -> None:
        self._model = model
        self._root = root
        self._model_file = model_file
        self._strict = strict
        self._threads = threads
        self._memories: dict[int, Memory] = {}
        self._sources: dict[str, Sources] = {}
        self._known: dict[tuple[str, str], bytes] = {}
        self._touched = 0  # bytes of sources, since their pages were last given back

    def of_source(self, value: Any, algorithm: str) -> bytes:
        """The digest of an initializer."""
        key = value.name, algorithm
        if key not in self._known:
            sources = self._sources.setdefault(algorithm, Sources(self._model, self._root, algorithm))
            memory, place = self._place(self._root, value)
            if memory is None and self._model_file is not None:
                memory, place = self.memory(self._model_file), value.name.encode()
            self._known[key] = self._digest(
                memory, place, sources.header(value), algorithm, lambda: self._content(sources, value)
            )
        return self._known[key]

    def of_payload(self, value: Any, root: DataRoot, header: bytes, data: np.ndarray, algorithm: str) -> bytes:
        """The digest over ``header`` and the payload of a pack."""
        memory, place = self._place(root, value)
        return self._digest(memory, place, header, algorithm, lambda: data)

    def _content(self, sources: Sources, value: Any) -> np.ndarray:
        """The content of a source, for which the pages of those before are given back: they are not read again."""
        content = sources.content(value)
        self._touched += content.size
        if self._touched > _KEPT_PAGES:
            self._root.release()
            self._touched = 0
        return content

    def remember(self) -> None:
        """Keep for later starts what was computed."""
        for memory in self._memories.values():
            memory.save()

    def memory(self, file: MappedFile) -> Memory:
        """What is known of a file."""
        if id(file) not in self._memories:  # the memory keeps the file, and so its id
            self._memories[id(file)] = Memory(file, forget=self._strict)
        return self._memories[id(file)]

    def _place(self, root: DataRoot, value: Any) -> tuple[Memory | None, bytes]:
        """The memory of the file that an external value lies in, and where in it."""
        if not is_external(value):
            return None, b""
        where = f"value {value.name!r}"
        location, offset, length = parse_external(where, value.external_data)
        file = root.file(where, location)
        return self.memory(file), struct.pack("<QQ", offset, file.data.size - offset if length is None else length)

    def _digest(
        self, memory: Memory | None, place: bytes, header: bytes, algorithm: str, content: Callable[[], np.ndarray]
    ) -> bytes:
        key = digest([algorithm.encode(), b"\0", place, b"\0", header])
        found = memory.get(key) if memory is not None else None
        if found is None:
            found = digest([header, content().data], algorithm, self._threads)
            if memory is not None:
                memory.put(key, found)
        return found
