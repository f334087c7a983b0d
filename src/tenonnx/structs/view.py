"""Lazy views over packed bytes. Bounds are checked once, where a view is made; everything below only does arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tenonnx.errors import CheckError, PayloadError
from tenonnx.schema.external import DataRoot
from tenonnx.schema.messages import StructProto, StructTypeProto
from tenonnx.schema.payload import struct_payload
from tenonnx.structs.layout import Axis, Leaf, leaves
from tenonnx.structs.packing import strided, unpack, whole_bytes
from tenonnx.structs.physical import Array, BitPacking, Component, Constant, Node, Structure, Tensor
from tenonnx.structs.reader import Types, types_of


class View:
    """Structured bytes, read on demand. ``view[i]`` and ``view[a:b]`` select elements, ``view.name`` or ``view["name"]``
    a field, of all selected elements at once.

    A field that is a leaf comes as a read-only NumPy array: a view of the payload where it lies in whole bytes, unpacked
    otherwise. Views and arrays keep the owner of the payload alive.
    """

    __slots__ = ("_axes", "_data", "_element", "_offset", "_where")

    def __init__(
        self, data: np.ndarray, element: Node | tuple[Component, ...], offset: int, axes: tuple[Axis, ...], where: str
    ) -> None:
        while isinstance(element, Array):
            axes, element = (*axes, Axis(element.dimension, element.element.bits)), element.element
        if isinstance(element, BitPacking):
            axes, element = (*axes, Axis(element.dimension, element.element_bits)), element.components
        self._data, self._element, self._offset, self._axes, self._where = data, element, offset, axes, where

    @property
    def shape(self) -> tuple[int, ...]:
        """Counts of the selected elements, from outer to inner."""
        return tuple(axis.size for axis in self._axes)

    @property
    def names(self) -> tuple[str, ...]:
        """The fields or components of one element; none where the elements are a leaf."""
        if isinstance(self._element, Structure):
            return tuple(member.name for member in self._element.members)
        return tuple(component.name for component in self._element) if isinstance(self._element, tuple) else ()

    def leaves(self) -> tuple[np.ndarray, ...]:
        """Every leaf below, in declaration order, with the selected axes in front; constants as they are declared."""
        if isinstance(self._element, tuple):
            return tuple(self[name] for name in self.names)
        return tuple(self._read(leaf) for leaf in leaves(self._element))

    def _read(self, leaf: Leaf) -> np.ndarray:
        """A leaf of the element, over all selected elements."""
        if leaf.constant is not None:
            return leaf.constant
        where = f"{self._where}: {leaf.path}" if leaf.path else self._where
        return read_leaf(self._data, leaf, self._offset + leaf.offset, self._axes + leaf.axes, where)

    def _member(self, name: str) -> Any:
        """A field or component by name; it must exist."""
        offset = self._offset
        if isinstance(self._element, tuple):
            for component in self._element:
                if component.name == name:
                    return self._read(Leaf(name, component.bits, offset - self._offset, ()))
                offset += component.bits
        elif isinstance(self._element, Structure):
            for member in self._element.members:
                if isinstance(member.content, Constant):
                    if member.name == name:
                        return member.content.array
                elif member.name == name:
                    return View(self._data, member.content, offset, self._axes, f"{self._where}.{name}").value()
                else:
                    offset += member.content.bits
        return None

    def value(self) -> Any:
        """The NumPy array where the elements are a leaf, the view itself otherwise."""
        return self.leaves()[0] if isinstance(self._element, Tensor) else self

    def __len__(self) -> int:
        if not self._axes:
            raise TypeError(f"{self._where} is one element; read its fields {', '.join(self.names)}")
        return self._axes[0].size

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, key: int | slice | str) -> Any:
        if isinstance(key, str):
            if key not in self.names:
                raise KeyError(self._unknown(key))
            return self._member(key)
        first, *inner = self._axes or (Axis(len(self), 0),)
        if isinstance(key, slice):
            start, stop, step = key.indices(first.size)
            count = len(range(start, stop, step))
            return self._selected(start * first.stride if count else 0, (Axis(count, first.stride * step), *inner))
        index = range(first.size)[key]  # raises IndexError, and knows negative indices
        return self._selected(index * first.stride, tuple(inner))

    def _selected(self, offset: int, axes: tuple[Axis, ...]) -> Any:
        return View(self._data, self._element, self._offset + offset, axes, self._where).value()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self.names:
            raise AttributeError(self._unknown(name))
        return self._member(name)

    def _unknown(self, name: str) -> str:
        return f"{self._where} has no field {name!r}; it has {', '.join(self.names) or 'none'}"

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.names]

    def __repr__(self) -> str:
        return f"<view of {list(self.shape)} {self._element!r}>"


def read_leaf(data: np.ndarray, leaf: Leaf, offset: int, axes: tuple[Axis, ...], where: str) -> np.ndarray:
    """One leaf as a read-only array; ``PayloadError`` for a BOOL byte other than 0 and 1."""
    if leaf.scalar is None:
        out = unpack(data, offset, axes, leaf.bits, where)
    else:
        dtype = leaf.scalar.numpy
        raw = dtype if leaf.scalar.name != "BOOL" else np.dtype(np.uint8)
        if whole_bytes(offset, axes, leaf.bits):
            out = strided(data, offset, axes, raw, where)
        else:
            out = _scalars(unpack(data, offset, axes, leaf.bits, where), leaf.bits, raw)
        if raw is not dtype:
            if out.size and int(out.max()) > 1:
                raise PayloadError(f"{where} holds a BOOL byte of {out.max()}; expected 0 or 1")
            out = out.view(np.bool_)
    out.flags.writeable = False
    return out


def _scalars(codes: np.ndarray, width: int, dtype: np.dtype) -> np.ndarray:
    """Unsigned codes as the scalars whose bits they are."""
    if width > 64:
        return codes.view(dtype)[..., 0]
    return codes.view(dtype)


def view_node(data: np.ndarray, node: Node, where: str) -> View:
    """The view of UINT8[n] as ``node``; ``PayloadError`` unless n is exactly its size."""
    if data.size != node.nbytes:
        raise PayloadError(
            f"{where}: its type takes {node.nbytes} bytes, found {data.size}; the payload is truncated or of another type"
        )
    frozen = data.view()
    frozen.flags.writeable = False
    return View(frozen, node, 0, (), where)


def as_bytes(buffer: Any) -> np.ndarray:
    """A bytes-like object or a contiguous array as UINT8[n], without a copy."""
    if isinstance(buffer, np.ndarray):
        return buffer.reshape(-1).view(np.uint8)
    return np.frombuffer(buffer, np.uint8) if len(buffer) else np.zeros(0, np.uint8)


def view(value: Any, type: Any = None, struct_types: Sequence[Any] | Types = (), data_root: DataRoot | None = None) -> View:
    """A lazy view of packed bytes.

    ``value`` is a StructProto, which names its own type, or a bytes-like object together with its ``type``: a node of the
    builder, a StructTypeProto, or an index into ``struct_types`` (those of the model). ``data_root`` is the folder of external
    data. Raises ``PayloadError`` when the payload is not exactly as long as the type says, and ``CheckError`` for an invalid
    type.
    """
    types = types_of(struct_types)
    if isinstance(value, StructProto):
        where = f"struct value {value.name!r}"
        return view_node(struct_payload(value, data_root or DataRoot(None), where), types.of_value(value, where), where)
    if isinstance(type, Node):
        return view_node(as_bytes(value), type, "value")
    if isinstance(type, int):
        return view_node(as_bytes(value), types.node(type), f"value of struct_types[{type}]")
    if isinstance(type, StructTypeProto):
        return view_node(as_bytes(value), types.read(type, "type"), "value")
    raise CheckError(f"a view needs the type of its bytes: a node, a StructTypeProto or an index; found {type!r}")
