"""Digests of initializers: the same for equal content under any name, in any file, however it is stored.

The digest of a tensor is taken over its element type (int32), rank (uint64), dims (int64 each) and content, all little-endian;
elements below a byte are packed from the low bits up, and what they leave of the last byte is zero. The digest of a structured
value is taken over the digest of its type (``type_key``) and its payload.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tenonnx import dtypes
from tenonnx.errors import CheckError, PayloadError, UnsupportedError
from tenonnx.schema.external import DataRoot
from tenonnx.schema.messages import TensorProto
from tenonnx.schema.payload import is_external, struct_payload, tensor_array
from tenonnx.structs import functions
from tenonnx.structs.layout import Axis
from tenonnx.structs.packing import pack
from tenonnx.structs.physical import Array, BitPacking, Constant, Node, Structure, Tensor
from tenonnx.structs.reader import INLINE, Types

DEFAULT = "blake3"
_THREADED = 1 << 20  # bytes from which blake3 gains from threads


def _blake3(pieces: Sequence[Any], threads: int) -> bytes:
    from blake3 import blake3

    hasher = blake3(max_threads=threads if sum(map(len, pieces)) >= _THREADED else 1)
    for piece in pieces:
        hasher.update(piece)
    return bytes(hasher.digest())


def _sha256(pieces: Sequence[Any], threads: int) -> bytes:
    hasher = hashlib.sha256()
    for piece in pieces:
        hasher.update(piece)
    return hasher.digest()


ALGORITHMS: dict[str, Callable[[Sequence[Any], int], bytes]] = {"blake3": _blake3, "sha256": _sha256}
DIGEST_BYTES = 32  # of both


def digest(pieces: Sequence[Any], algorithm: str = DEFAULT, threads: int = 1) -> bytes:
    """The digest of bytes-like pieces, one after the other, without a copy; ``UnsupportedError`` for an unknown algorithm."""
    if algorithm not in ALGORITHMS:
        raise UnsupportedError(f"digest algorithm {algorithm!r} is not known; known are {', '.join(ALGORITHMS)}")
    return ALGORITHMS[algorithm](pieces, threads)


class Sources:
    """The initializers of a model's main graph as digests see them: a header, and the content that follows it."""

    def __init__(self, model: Any, root: DataRoot, algorithm: str = DEFAULT) -> None:
        self.model = model
        self.root = root
        self.algorithm = algorithm
        self._types = Types(model.struct_types)
        self._local = functions.index(model)
        self._headers: dict[int, bytes] = {}

    def header(self, value: Any) -> bytes:
        """What is digested before the content: element type and dims of a TensorProto, the type's digest of a StructProto."""
        if isinstance(value, TensorProto):
            return tensor_header(value.data_type, tuple(value.dims))
        if value.type == INLINE:
            return self._type_digest(value.struct_type, self._types.of_value(value, f"struct value {value.name!r}"))
        if value.type not in self._headers:
            node = self._types.node(value.type)
            self._headers[value.type] = self._type_digest(self._types.declarations[value.type], node)
        return self._headers[value.type]

    def content(self, value: Any) -> np.ndarray:
        """UINT8[n]: the canonical content, a view of the mapped file or of the message where that is possible."""
        if not isinstance(value, TensorProto):
            return struct_payload(value, self.root)
        return tensor_content(value, self.root)

    def digest(self, value: Any, threads: int = 1) -> bytes:
        """The digest of an initializer, a TensorProto or StructProto of this model."""
        return digest([self.header(value), self.content(value).data], self.algorithm, threads)

    def _type_digest(self, declaration: Any, node: Node) -> bytes:
        return digest([type_key(declaration, node, self._local)], self.algorithm)


def tensor_header(elem_type: int, dims: tuple[int, ...]) -> bytes:
    """Element type, rank and dims."""
    return struct.pack(f"<iQ{len(dims)}q", elem_type, len(dims), *dims)


def tensor_content(tensor: Any, root: DataRoot) -> np.ndarray:
    """UINT8[n]: the elements of a TensorProto, packed and little-endian, with zeros in the bits that pad the last byte."""
    where = f"initializer {tensor.name!r}"
    kind = dtypes.scalar(tensor.data_type, where)
    packed = kind.bits in (2, 4) and (is_external(tensor) or tensor.HasField("raw_data"))
    if not packed:
        array = tensor_array(tensor, root)
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8) if kind.bits % 8 == 0 else _packed(array, kind.bits)
    data = root.read(where, tensor.external_data) if is_external(tensor) else np.frombuffer(tensor.raw_data, np.uint8)
    used = math.prod(tensor.dims) * kind.bits
    if data.size != -(-used // 8):
        raise PayloadError(f"{where}: dims {list(tensor.dims)} of {kind.name} take {-(-used // 8)} bytes, found {data.size}")
    if used % 8:
        data = data.copy()
        data[-1] &= 0xFF >> (8 - used % 8)
    return data


def _packed(array: np.ndarray, width: int) -> np.ndarray:
    """The elements of an array that has a byte for each, packed to ``width`` bits."""
    codes = np.ascontiguousarray(array).reshape(-1).view(np.uint8) & (2**width - 1)
    data = np.zeros(-(-codes.size * width // 8), np.uint8)
    pack(data, 0, (Axis(codes.size, width),), width, codes)
    return data


def type_key(declaration: Any, node: Node, local: dict[tuple[str, str, str], Any]) -> bytes:
    """A structured type as bytes: its bits and constants, its decoder, and the local functions that the decoder calls.

    Names of types, fields, components and values are left out, as they are labels.
    """
    decoder = functions.normal_form(declaration.decoder) if declaration.HasField("decoder") else ()
    called = [functions.normal_form(function) for function in _called(declaration.decoder, local)]
    return _encoded((_shape_of(node), decoder, tuple(called)))


def _called(function: Any, local: dict[tuple[str, str, str], Any]) -> list[Any]:
    """The local functions that a function calls, in the order of their first call, each once."""
    found: dict[tuple[str, str, str], Any] = {}
    pending = [function]
    while pending:
        for called in pending.pop().node:
            key = (called.domain, called.op_type, called.overload)
            if key in local and key not in found:
                found[key] = local[key]
                pending.append(local[key])
    return list(found.values())


def _shape_of(node: Node | Constant) -> tuple[Any, ...]:
    if isinstance(node, Tensor):
        return "tensor", node.scalar.number, node.dims
    if isinstance(node, Array):
        return "array", node.dimension, _shape_of(node.element)
    if isinstance(node, BitPacking):
        return "bits", node.dimension, tuple(component.bits for component in node.components)
    if isinstance(node, Structure):
        return "structure", tuple(_shape_of(member.content) for member in node.members)
    if isinstance(node, Constant):
        return "constant", dtypes.of_numpy(node.array.dtype).number, node.array.shape, node.array.tobytes()
    raise CheckError(f"{node!r} is no physical type")


def _encoded(value: Any) -> bytes:
    """Nested tuples of numbers and texts, each with its kind and length, so that different values never share bytes."""
    if isinstance(value, tuple):
        return b"(" + struct.pack("<Q", len(value)) + b"".join(map(_encoded, value))
    if isinstance(value, int):
        text = str(value).encode()
        return b"i" + struct.pack("<Q", len(text)) + text
    data = value.encode() if isinstance(value, str) else value
    return b"s" + struct.pack("<Q", len(data)) + data
