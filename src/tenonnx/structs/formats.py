"""What makes a block format: its bits and its decoder, as a NumPy function and as the same function in ONNX operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tenonnx.errors import CheckError, PayloadError, ShapeError, UnsupportedError
from tenonnx.schema.messages import StructTypeProto, TypeProto
from tenonnx.structs import functions
from tenonnx.structs.builder import tensor_type, to_proto
from tenonnx.structs.layout import Leaf, leaves
from tenonnx.structs.packing import pack_leaves
from tenonnx.structs.physical import Array, Node, Tensor
from tenonnx.structs.tracing import trace
from tenonnx.structs.view import View, as_bytes, view_node

Leaves = Mapping[str, Any] | Sequence[Any]


@dataclass(frozen=True, eq=False)
class Format:
    """A block format: how ``nbytes`` bytes stand for a block of ``block_shape`` FLOAT values.

    A tensor is an array of blocks in row-major order of the grid that its trailing dimensions divide into; a block of rank 0
    is one scalar.

    ``decoder`` is a NumPy function from a view of N blocks (each leaf [N, …], constants without N) to FLOAT[N, *block_shape],
    which ``function`` states in ONNX operators; or that ONNX function itself: a FunctionProto, an object with
    ``to_function_proto()``, or text in ONNX's syntax, ``(d, lo, hi) => (decoded) {…}``. ``quantize``, where there is one, maps
    FLOAT[N, *block_shape] to the leaves without constants, by name or in declaration order: in NumPy, or as ONNX in the same
    spellings as ``decoder``, which a model can declare.
    """

    name: str
    block_type: Node
    block_shape: tuple[int, ...]
    decoder: Any
    quantize: Any = None

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.block_type, Node):
            raise CheckError(f"format {self.name!r}: expected a name and a block type such as structure({self.name!r}, d=f16, …)")
        if self.block_type.bits == 0:
            raise CheckError(f"format {self.name!r}: its block has no bits; give it a field")
        if not all(isinstance(dimension, int) and dimension > 0 for dimension in self.block_shape):
            raise CheckError(f"format {self.name!r}: block shape {self.block_shape}; expected counts of 1 or more")
        _ = self.nbytes  # refuses a block that ends inside a byte

    @property
    def nbytes(self) -> int:
        """Bytes of one block."""
        return self.block_type.nbytes

    @property
    def elements(self) -> int:
        """Logical elements of one block."""
        return math.prod(self.block_shape)

    @cached_property
    def function(self) -> Any:
        """F, the decoder of N blocks, as a FunctionProto of the domain ``tenonnx.formats``."""
        if self._in_numpy:
            return trace(self.name, self.decoder, self.leaves, self.block_shape)
        text = isinstance(self.decoder, str)
        function = functions.parse(self.name, self.decoder) if text else functions.adopted(self.name, self.decoder)
        for fault in functions.signature_faults(function, self.leaves):
            raise CheckError(f"decoder of {self.name} {fault}")
        return function

    @property
    def _in_numpy(self) -> bool:
        return _is_numpy(self.decoder)

    @cached_property
    def formula(self) -> Callable[[Any], np.ndarray]:
        """What decodes a view of N blocks: the decoder itself, or F run by onnx's reference evaluator."""
        return self.decoder if self._in_numpy else functions.evaluated(self.function)

    @cached_property
    def encoder(self) -> Any:
        """E, the encoder of N blocks, as a FunctionProto of the domain ``tenonnx.formats``; None where ONNX does not state it."""
        if self.quantize is None or _is_numpy(self.quantize):
            return None
        name = f"{self.name}_encode"
        text = isinstance(self.quantize, str)
        function = functions.parse(name, self.quantize) if text else functions.adopted(name, self.quantize)
        for fault in functions.encoder_faults(function, self.leaves):
            raise CheckError(f"encoder of {self.name} {fault}")
        return function

    @cached_property
    def _quantizer(self) -> Callable[[np.ndarray], Leaves]:
        """What encodes FLOAT[N, *block_shape]: ``quantize`` itself, or E run by onnx's reference evaluator."""
        if self.encoder is not None:
            return functions.encoding(self.encoder)
        quantizer: Callable[[np.ndarray], Leaves] = self.quantize
        return quantizer

    @cached_property
    def normal_form(self) -> tuple[Any, ...]:
        """F as a value by which it is recognized under any name."""
        return functions.normal_form(self.function)

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """The leaves of one block, in the order of F's inputs."""
        return leaves(self.block_type)

    def grid(self, shape: Sequence[int]) -> tuple[int, ...]:
        """How many blocks lie along each dimension of a tensor; ``ShapeError`` where a block does not divide it."""
        shape = tuple(shape)
        rank = len(self.block_shape)
        if len(shape) < rank or min(shape, default=0) < 0:
            raise ShapeError(f"{self.name}: shape {list(shape)} has no room for blocks of {list(self.block_shape)}")
        lead, trail = shape[: len(shape) - rank], shape[len(shape) - rank :]
        for dimension, size in zip(trail, self.block_shape, strict=True):
            if dimension % size:
                raise ShapeError(
                    f"{self.name}: dimension {dimension} of shape {list(shape)} is not a multiple of the block's {size}; "
                    "choose a format with smaller blocks, or F16"
                )
        return lead + tuple(dimension // size for dimension, size in zip(trail, self.block_shape, strict=True))

    def blocks(self, shape: Sequence[int]) -> int:
        """Number of blocks of a tensor."""
        return math.prod(self.grid(shape))

    def array(self, shape: Sequence[int], block_index: int | None = None) -> Any:
        """The StructTypeProto of a tensor of ``shape``: an array of blocks with its decoder.

        The block is referred to by ``block_index`` in the model's ``struct_types``, or stands inline when that is None.
        """
        root = StructTypeProto(name=f"{self.name}{list(shape)}")
        root.array.dimension = self.blocks(shape)
        root.array.element_type.CopyFrom(self._block_reference(block_index))
        root.decoder.CopyFrom(self.root_decoder(shape))
        if self.encoder is not None:
            root.encoder.CopyFrom(functions.root_encoder(self.encoder, self.block_shape, self.grid(shape)))
        return root

    def root_decoder(self, shape: Sequence[int]) -> Any:
        """The decoder of a tensor of ``shape`` as a FunctionProto: a call of F, and a Reshape."""
        paths = [leaf.path or "values" for leaf in self.leaves]
        return functions.root_decoder(self.name, paths, self.block_shape, self.grid(shape), shape)

    def _block_reference(self, block_index: int | None) -> Any:
        if isinstance(self.block_type, Tensor):
            return tensor_type(self.block_type.scalar.number, self.block_type.dims)
        if block_index is not None:
            reference = TypeProto()
            reference.struct_type.type_index = block_index
            return reference
        inline = TypeProto(struct_type=to_proto(self.block_type))
        inline.struct_type.ClearField("name")
        return inline

    def view(self, buffer: Any) -> View:
        """The blocks in ``buffer`` (bytes, or an array of bytes) as a lazy view, an array of as many as it holds."""
        data = as_bytes(buffer)
        if data.size % self.nbytes:
            raise PayloadError(f"{self.name}: {data.size} bytes are not a whole number of blocks of {self.nbytes} bytes")
        return view_node(data, Array(self.block_type, data.size // self.nbytes), self.name)

    def decode(self, buffer: Any, shape: Sequence[int]) -> np.ndarray:
        """FLOAT of ``shape`` from its blocks, by the NumPy formula; ``PayloadError`` when the length does not fit."""
        grid = self.grid(shape)
        blocks = self.view(buffer)
        if blocks.shape[0] != math.prod(grid):
            found, expected = blocks.shape[0] * self.nbytes, math.prod(grid) * self.nbytes
            raise PayloadError(f"{self.name}: shape {list(shape)} takes {expected} bytes, found {found}")
        with np.errstate(all="ignore"):  # infinite and NaN scales are values like any other
            return self._ungrid(self.formula(blocks.value()), grid).reshape(tuple(shape))

    def encode(self, array: ArrayLike) -> np.ndarray:
        """UINT8[n]: the blocks of a float array; ``UnsupportedError`` for a format that has no encoder."""
        if self.quantize is None:
            raise UnsupportedError(f"{self.name} has no encoder; compute its leaves and use pack(shape, **leaves)")
        values = np.asarray(array, np.float32)
        with np.errstate(all="ignore"):
            leaves = self._quantizer(self._regrid(values))
        return self.pack(values.shape, **leaves) if isinstance(leaves, Mapping) else self._packed(values.shape, leaves)

    def pack(self, shape: Sequence[int], /, **fields: Any) -> np.ndarray:
        """UINT8[n]: the blocks of a tensor from leaves that the caller computed, each of [blocks, …] elements.

        Components are given by their packing: ``qs={"lo": …, "hi": …}``. Raises ``ShapeError`` for missing, unknown or
        misshapen leaves, and ``PayloadError`` for a value that its bits cannot hold.
        """
        flat = _flattened(fields)
        expected = [leaf.path for leaf in self.leaves if leaf.constant is None]
        if set(flat) != set(expected):
            raise ShapeError(f"{self.name}: expected the leaves {', '.join(expected)}; found {', '.join(flat) or 'none'}")
        return self._packed(shape, [flat[path] for path in expected])

    def _packed(self, shape: Sequence[int], values: Sequence[Any]) -> np.ndarray:
        return pack_leaves(Array(self.block_type, self.blocks(shape)), values, self.name)

    def _ungrid(self, blocks: np.ndarray, grid: tuple[int, ...]) -> np.ndarray:
        """[N, *block_shape] to the order of the tensor's elements."""
        order = functions.block_order(len(grid), len(self.block_shape))
        return blocks.reshape(grid + self.block_shape).transpose(order)

    def _regrid(self, values: np.ndarray) -> np.ndarray:
        """The tensor's elements as [N, *block_shape]."""
        grid = self.grid(values.shape)
        order = functions.block_order(len(grid), len(self.block_shape))
        split = [(grid + self.block_shape)[axis] for axis in order]
        return values.reshape(split).transpose(np.argsort(order)).reshape((math.prod(grid), *self.block_shape))


def _is_numpy(codec: Any) -> bool:
    return callable(codec) and not hasattr(codec, "to_function_proto")


def _flattened(fields: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        place = f"{path}.{name}" if path else name
        flat |= _flattened(value, place) if isinstance(value, Mapping) else {place: value}
    return flat
