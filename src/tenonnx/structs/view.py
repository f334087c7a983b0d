"""Lazy views over packed bytes. Bounds are checked once, where a view is made; everything below only does arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tenonnx.errors import CheckError, PayloadError
from tenonnx.schema.external import DataRoot
from tenonnx.schema.messages import StructProto, StructTypeProto
from tenonnx.schema.payload import struct_payload
from tenonnx.structs.display import hexdump, plain
from tenonnx.structs.layout import Axis, Leaf, component_leaves, leaves, select
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
        return tuple(self._read(leaf) for leaf in self._leaves())

    def _leaves(self) -> tuple[Leaf, ...]:
        return component_leaves(self._element) if isinstance(self._element, tuple) else leaves(self._element)

    def _read(self, leaf: Leaf) -> np.ndarray:
        """A leaf of the element, over all selected elements."""
        return leaf.constant if leaf.constant is not None else read_leaf(self._data, *self._placed(leaf))

    def _placed(self, leaf: Leaf) -> tuple[Leaf, int, tuple[Axis, ...], str]:
        """A leaf of the element with the first bit and the axes that it has over all selected elements."""
        where = f"{self._where}: {leaf.path}" if leaf.path else self._where
        return leaf, self._offset + leaf.offset, self._axes + leaf.axes, where

    def _field(self, leaf: Leaf) -> Any:
        """What a field that is a leaf comes as."""
        return self._read(leaf)

    def _member(self, name: str) -> Any:
        """A field or component by name; it must exist."""
        if isinstance(self._element, tuple):
            return self._field(next(leaf for leaf in component_leaves(self._element) if leaf.path == name))
        offset = self._offset
        for member in self._element.members if isinstance(self._element, Structure) else ():
            if isinstance(member.content, Constant):
                if member.name == name:
                    return member.content.array
            elif member.name == name:
                return type(self)(self._data, member.content, offset, self._axes, f"{self._where}.{name}").value()
            else:
                offset += member.content.bits
        return None

    def value(self) -> Any:
        """The NumPy array where the elements are a leaf, the view itself otherwise."""
        return self._field(leaves(self._element)[0]) if isinstance(self._element, Tensor) else self

    def to_dict(self) -> dict[str, Any]:
        """Every field by name, constants too, as Python values: numbers, nested lists of them over all selected elements, and
        dicts for fields that have fields."""
        return {name: plain(self._member(name)) for name in self.names}

    def hexdump(self, field: str = "", limit: int = 1024) -> str:
        """The bytes of a field, ``qs.lo``, or of all fields, at most ``limit`` of them: offset and 16 bytes a line. A byte
        that holds no bit of the field is written ``··``. ``KeyError`` when there is no such field."""
        places = [self._placed(leaf) for leaf in self._leaves() if leaf.constant is None]
        chosen = [place for place in places if not field or f"{place[0].path}.".startswith(f"{field}.")]
        if not chosen and (field or places):
            raise KeyError(f"{self._where} has no field {field!r} in its bytes; it has {', '.join(p[0].path for p in places)}")
        return hexdump(self._data, [(offset, axes, leaf.bits) for leaf, offset, axes, _ in chosen], limit)

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
        offset, axes = select(self._axes or (Axis(len(self), 0),), key)
        return type(self)(self._data, self._element, self._offset + offset, axes, self._where).value()

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
    check_size(data, node, where)
    frozen = data.view()
    frozen.flags.writeable = False
    return View(frozen, node, 0, (), where)


def check_size(data: np.ndarray, node: Node, where: str) -> None:
    """The one check of bounds: below it, every bit of every leaf lies within ``data``."""
    if data.size != node.nbytes:
        raise PayloadError(
            f"{where}: its type takes {node.nbytes} bytes, found {data.size}; the payload is truncated or of another type"
        )


def as_bytes(buffer: Any) -> np.ndarray:
    """A bytes-like object or an array as UINT8[n], without a copy where it is contiguous."""
    if not isinstance(buffer, np.ndarray):
        return np.frombuffer(buffer, np.uint8) if memoryview(buffer).nbytes else np.zeros(0, np.uint8)
    return np.ascontiguousarray(buffer).reshape(-1).view(np.uint8)


def view(value: Any, type: Any = None, struct_types: Sequence[Any] | Types = (), data_root: DataRoot | None = None) -> View:
    """A lazy view of packed bytes.

    ``value`` is a StructProto, which names its own type, or a bytes-like object together with its ``type``: a node of the
    builder, a StructTypeProto, or an index into ``struct_types`` (those of the model). ``data_root`` is the folder of external
    data. Raises ``PayloadError`` when the payload is not exactly as long as the type says, and ``CheckError`` for an invalid
    type.

    Examples:
        >>> from tenonnx.structs import bits, f16, structure
        >>> seen = view(bytes([0x00, 0x3C, 0x21, 0x43]), structure("PAIRS", d=f16, q=bits(lo=4, hi=4)[2]))
        >>> float(seen.d), seen.q.lo.tolist(), seen.q.hi.tolist()
        (1.0, [1, 3], [2, 4])
    """
    if isinstance(value, StructProto):
        where = f"struct value {value.name!r}"
        node = types_of(struct_types).of_value(value, where)
        return view_node(struct_payload(value, data_root or DataRoot(None), where), node, where)
    return view_node(as_bytes(value), *typed(type, struct_types))


def typed(type: Any, struct_types: Sequence[Any] | Types) -> tuple[Node, str]:
    """The node of a view's ``type``, and what its messages call the value."""
    if isinstance(type, Node):
        return type, "value"
    if isinstance(type, int):
        return types_of(struct_types).node(type), f"value of struct_types[{type}]"
    if isinstance(type, StructTypeProto):
        return types_of(struct_types).read(type, "type"), "value"
    raise CheckError(f"a view needs the type of its bytes: a node, a StructTypeProto or an index; found {type!r}")
