"""Where each leaf of a type lies: its path, its scalar, the bit it starts at, and the axes that repeat it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from tenonnx import dtypes
from tenonnx.dtypes import ScalarType
from tenonnx.structs.physical import Array, BitPacking, Component, Constant, Node, Structure, Tensor


class Axis(NamedTuple):
    """One repetition: ``size`` elements, each ``stride`` bits after the one before."""

    size: int
    stride: int


@dataclass(frozen=True)
class Leaf:
    """A field's bits with all repetitions: what a decoder gets as one input.

    ``scalar`` is None for a component of a packing, and ``constant`` holds the value of a leaf without bits.
    """

    path: str
    bits: int  # width of one element
    offset: int  # bit of the first element
    axes: tuple[Axis, ...]  # from outer to inner
    scalar: ScalarType | None = None
    constant: np.ndarray | None = None

    @property
    def elem_type(self) -> ScalarType:
        """The ONNX type in which a decoder sees the leaf: components come as the smallest unsigned type that holds them."""
        return self.scalar or dtypes.BY_NAME[f"UINT{container_bits(self.bits)}"]

    @property
    def shape(self) -> tuple[int, ...]:
        """Dims in which a decoder sees the leaf; a component wider than 64 bits has its bytes as last axis."""
        if self.constant is not None:
            return self.constant.shape
        dims = tuple(axis.size for axis in self.axes)
        return (*dims, -(-self.bits // 8)) if self.scalar is None and self.bits > 64 else dims


def container_bits(width: int) -> int:
    """Width of the smallest unsigned type that holds a component; 8 for one of more than 64 bits, which is read as bytes."""
    return next((size for size in (8, 16, 32, 64) if width <= size), 8)


def tensor_axes(tensor: Tensor) -> tuple[Axis, ...]:
    """The axes of a tensor's dims, row-major."""
    axes: list[Axis] = []
    stride = tensor.scalar.bits
    for dimension in reversed(tensor.dims):
        axes.append(Axis(dimension, stride))
        stride *= dimension
    return tuple(reversed(axes))


def leaves(root: Node) -> tuple[Leaf, ...]:
    """Every leaf in declaration order, constants included. Paths join names with dots: ``qs.lo``."""
    return tuple(_leaves(root, "", 0, ()))


def _leaves(node: Node, path: str, offset: int, axes: tuple[Axis, ...]) -> Iterator[Leaf]:
    if isinstance(node, Tensor):
        yield Leaf(path, node.scalar.bits, offset, axes + tensor_axes(node), node.scalar)
    elif isinstance(node, Array):
        yield from _leaves(node.element, path, offset, (*axes, Axis(node.dimension, node.element.bits)))
    elif isinstance(node, BitPacking):
        axes = (*axes, Axis(node.dimension, node.element_bits))
        for component in node.components:
            yield Leaf(joined(path, component.name), component.bits, offset, axes)
            offset += component.bits
    elif isinstance(node, Structure):
        for member in node.members:
            place = joined(path, member.name)
            if isinstance(member.content, Constant):
                value = member.content.array
                scalar = dtypes.of_numpy(value.dtype)
                yield Leaf(place, scalar.bits, offset, (), scalar, value)
            else:
                yield from _leaves(member.content, place, offset, axes)
                offset += member.content.bits


def component_leaves(components: Sequence[Component]) -> tuple[Leaf, ...]:
    """The leaves of one repetition of a packing."""
    offsets = accumulate((component.bits for component in components), initial=0)
    return tuple(Leaf(component.name, component.bits, offset, ()) for component, offset in zip(components, offsets, strict=False))


def select(axes: tuple[Axis, ...], key: int | slice) -> tuple[int, tuple[Axis, ...]]:
    """Bits to skip and axes that remain when the outermost axis is indexed or sliced, as Python indexes a sequence."""
    first, *inner = axes
    if isinstance(key, slice):
        start, stop, step = key.indices(first.size)
        count = len(range(start, stop, step))
        return start * first.stride if count else 0, (Axis(count, first.stride * step), *inner)
    return range(first.size)[key] * first.stride, tuple(inner)


def joined(path: str, name: str) -> str:
    """The path of the member ``name`` of what lies at ``path``."""
    return f"{path}.{name}" if path else name
