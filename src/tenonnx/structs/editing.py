"""Views that write: values are checked against the bits that hold them, and no bit beside those changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tenonnx.errors import PayloadError, ShapeError
from tenonnx.structs.layout import Axis, Leaf, select
from tenonnx.structs.packing import codes_of, pack
from tenonnx.structs.reader import Types
from tenonnx.structs.view import View, as_bytes, check_size, read_leaf, typed

Key = int | slice | tuple[int | slice, ...]


class EditableView(View):
    """A view whose fields can be set: ``view["d"] = …`` for all selected elements, ``view.qs.lo[3] = 5`` for some of them."""

    __slots__ = ()

    def _field(self, leaf: Leaf) -> EditableLeaf:
        return EditableLeaf(self._data, *self._placed(leaf))

    def __setitem__(self, name: str, values: ArrayLike) -> None:
        if not isinstance(name, str) or name not in self.names:
            raise KeyError(self._unknown(str(name)))
        field = self._member(name)
        if not isinstance(field, EditableLeaf):
            inner = isinstance(field, View)
            what = f"no leaf; set its fields {', '.join(field.names)}" if inner else "a constant of the type"
            raise PayloadError(f"{self._where}: {name!r} is {what}")
        field[...] = values


class EditableLeaf:
    """One leaf of all selected elements. It reads like an array, of which ``numpy.asarray`` gives a copy of the moment."""

    def __init__(self, data: np.ndarray, leaf: Leaf, offset: int, axes: tuple[Axis, ...], where: str) -> None:
        self._data, self._leaf, self._offset, self._axes, self._where = data, leaf, offset, axes, where

    @property
    def shape(self) -> tuple[int, ...]:
        """Dims as they are read: a component wider than 64 bits has its bytes on a last axis."""
        return Leaf("", self._leaf.bits, 0, self._axes, self._leaf.scalar).shape

    @property
    def dtype(self) -> np.dtype:
        return self._leaf.elem_type.numpy

    def __len__(self) -> int:
        return len(np.asarray(self))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(read_leaf(self._data, self._leaf, self._offset, self._axes, self._where), dtype)

    def __getitem__(self, key: Any) -> Any:
        return np.asarray(self)[key]

    def __setitem__(self, key: Key | Any, values: ArrayLike) -> None:
        """Set the elements at integers and slices, ``leaf[...]`` for all; values are broadcast.

        Raises ``PayloadError`` for a value that the bits do not hold, ``ShapeError`` for values that do not broadcast, and
        ``IndexError``; nothing is written then.
        """
        offset, axes = self._selected(key)
        target = Leaf(self._leaf.path, self._leaf.bits, 0, axes, self._leaf.scalar)
        array = np.asarray(values)
        try:
            array = np.broadcast_to(array, target.shape)
        except ValueError as error:
            raise ShapeError(f"{self._where}: values of shape {list(array.shape)} do not fit {list(target.shape)}") from error
        pack(self._data, self._offset + offset, axes, target.bits, codes_of(array, target, self._where))

    def _selected(self, key: Key | Any) -> tuple[int, tuple[Axis, ...]]:
        if key is Ellipsis:
            return 0, self._axes
        keys: Sequence[int | slice] = key if isinstance(key, tuple) else (key,)
        if len(keys) > len(self._axes) or not all(isinstance(part, int | slice | np.integer) for part in keys):
            count = len(self._axes)
            raise IndexError(f"{self._where}: set elements by integers and slices, at most one for each of {count} axes")
        offset, rest = 0, self._axes
        kept: list[Axis] = []
        for part in keys:
            skipped, narrowed = select(rest, part)
            offset += skipped
            kept += narrowed[: len(narrowed) - len(rest) + 1]
            rest = rest[1:]
        return offset, (*kept, *rest)

    def __repr__(self) -> str:
        return f"<editable {np.asarray(self)!r}>"


def edit(buffer: Any, type: Any, struct_types: Sequence[Any] | Types = ()) -> EditableView:
    """A view that writes into ``buffer``: a bytearray, a writable memoryview, map or contiguous array; raises as ``view``,
    and ``PayloadError`` for a buffer that is read-only."""
    data = as_bytes(buffer)
    node, where = typed(type, struct_types)
    check_size(data, node, where)
    if data.size and not (data.flags.writeable and np.shares_memory(data, np.asarray(buffer))):
        raise PayloadError(f"{where}: its buffer is read-only or not contiguous; give a bytearray, or a copy of the array")
    return EditableView(data, node, 0, (), where)
