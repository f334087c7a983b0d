"""Which field owns each bit of a type, and its fields as the rows of a tree."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from tenonnx import dtypes
from tenonnx.structs.layout import Axis, Leaf, leaves
from tenonnx.structs.physical import Array, BitPacking, Constant, Node, Structure, Tensor

TIMES = "\N{MULTIPLICATION SIGN}"
BITS_PER_ROW = 64
MAX_BITS = 16_384  # of a type that are looked at one by one

# Light tones that stay apart for most kinds of colour vision; black text is legible on each.
COLOURS = (
    "#8ecae6", "#ffb703", "#a7c957", "#f4978e", "#cdb4db", "#ffd6a5", "#83c5be", "#e9c46a", "#b8c0ff", "#d4a373", "#f7aef8",
    "#bde0a8",
)  # fmt: skip
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def colour(place: int) -> str:
    """The colour of the leaf at ``place``; they repeat."""
    return COLOURS[place % len(COLOURS)]


def letter(place: int) -> str:
    """The letter of the leaf at ``place``; they repeat."""
    return LETTERS[place % len(LETTERS)]


def printable(text: str) -> str:
    """Text from a file without what would steer a terminal or break XML, each such character replaced by a sign."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


class Row(NamedTuple):
    """One line of a type's tree: a field, a component or a constant."""

    guide: str  # branches in front of the name
    name: str
    type: str
    offset: int | None  # bit of its first element; None for a constant
    bits: int  # of all that it repeats, or the width of a component
    every: int | None  # bits from one element to the next, for what a packing or an outer array repeats
    leaf: int | None  # place among the leaves; None for what holds others


def unwrapped(node: Node) -> tuple[tuple[int, ...], Node]:
    """The dimensions of the outer arrays, and the element that they repeat; a scalar's own arrays stay with it."""
    dims: list[int] = []
    while isinstance(node, Array) and not isinstance(_scalar_of(node), Tensor):
        dims.append(node.dimension)
        node = node.element
    return tuple(dims), node


def _scalar_of(node: Node) -> Node:
    while isinstance(node, Array):
        node = node.element
    return node


def rows(node: Node) -> list[Row]:
    """The tree of a type, depth first, in declaration order. Offsets count from the start of ``node``."""
    places = iter(range(len(leaves(node))))
    return list(_rows("", "", "", node, 0, None, places))


def _rows(guide: str, inner: str, name: str, node: Any, offset: int, every: int | None, places: Iterator[int]) -> Iterator[Row]:
    """``guide`` leads the row itself, ``inner`` those below it."""
    if isinstance(node, Constant):
        kind = dtypes.of_numpy(node.array.dtype).name
        yield Row(guide, name, f"constant {kind}{_dims(node.array.shape)}", None, 0, None, next(places))
        return
    dims: list[int] = []
    bits = node.bits
    while isinstance(node, Array):
        dims.append(node.dimension)
        node, every = node.element, node.element.bits
    if isinstance(node, Tensor):
        stride = every if not dims or node.dims else None  # its own axis is told by its type
        yield Row(guide, name, f"{node.scalar.name}{_dims((*dims, *node.dims))}", offset, bits, stride, next(places))
    elif isinstance(node, BitPacking):
        yield Row(guide, name, f"bits{_dims((*dims, node.dimension))}", offset, bits, every, None)
        last = len(node.components) - 1
        for place, component in enumerate(node.components):
            lead = inner + ("└─ " if place == last else "├─ ")
            yield Row(lead, component.name, f"{component.bits} bits", offset, component.bits, node.element_bits, next(places))
            offset += component.bits
    elif isinstance(node, Structure):
        if name or dims:
            yield Row(guide, name, f"structure{_dims(tuple(dims))}", offset, bits, every, None)
        last = len(node.members) - 1
        for place, member in enumerate(node.members):
            top = not (name or dims)
            lead = "" if top else inner + ("└─ " if place == last else "├─ ")
            below = "" if top else inner + ("   " if place == last else "│  ")
            yield from _rows(lead, below, member.name, member.content, offset, every, places)
            offset += 0 if isinstance(member.content, Constant) else member.content.bits


def _dims(dims: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, dims))}]" if dims else ""


def described(node: Node) -> dict[str, Any]:
    """The same tree as plain data, with the path of each leaf."""
    dims, element = unwrapped(node)
    paths = [leaf.path for leaf in leaves(element)]
    fields = [
        {"name": row.name, "path": None if row.leaf is None else paths[row.leaf], "type": row.type, "bit": row.offset}
        | {"bits": row.bits, "every": row.every}
        for row in rows(element)
    ]
    return {"dims": list(dims), "bits": node.bits, "element_bits": element.bits, "fields": fields}


class BitMap:
    """The owner of each of the first ``MAX_BITS`` bits of a type: a leaf's place, and which of its elements."""

    def __init__(self, node: Node) -> None:
        self.leaves = leaves(node)
        self.total = node.bits
        self.owner = np.full(min(node.bits, MAX_BITS), -1, np.int32)
        self.element = np.zeros(self.owner.size, np.int64)
        self._sizes: list[tuple[int, ...]] = []
        for place, leaf in enumerate(self.leaves):
            self._sizes.append(self._mark(place, leaf))

    def _mark(self, place: int, leaf: Leaf) -> tuple[int, ...]:
        """Own the bits of one leaf; the sizes of its axes within the map."""
        size = self.owner.size
        if leaf.constant is not None or leaf.offset >= size:
            return ()
        # An outer axis strides over all of an inner one, so that as many elements remain as fit, however large the dimensions.
        axes = [Axis(min(axis.size, -(-size // axis.stride) if axis.stride else 1), axis.stride) for axis in leaf.axes]
        starts = np.full((), leaf.offset, np.int64)
        for axis in axes:
            starts = starts[..., None] + np.arange(axis.size, dtype=np.int64) * axis.stride
        flat = starts.reshape(-1)
        bits = flat[:, None] + np.arange(min(leaf.bits, size), dtype=np.int64)
        inside = bits < size
        self.owner[bits[inside]] = place
        self.element[bits[inside]] = np.broadcast_to(np.arange(flat.size)[:, None], bits.shape)[inside]
        return starts.shape

    def label(self, bit: int) -> str:
        """The element that owns a bit: ``qs.lo[3]``."""
        place = int(self.owner[bit])
        sizes = self._sizes[place]
        index = np.unravel_index(int(self.element[bit]), sizes) if sizes else ()
        return self.leaves[place].path + (f"[{', '.join(str(int(part)) for part in index)}]" if sizes else "")

    def runs(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """(first bit, last bit + 1, leaf) of each element's consecutive bits in a range."""
        owner, element = self.owner[begin:end], self.element[begin:end]
        changes = np.flatnonzero((owner[1:] != owner[:-1]) | (element[1:] != element[:-1])) + 1
        edges = [0, *changes.tolist(), owner.size] if owner.size else []
        for first, last in pairwise(edges):
            yield begin + first, begin + last, int(owner[first])
