"""Physical types: what the bits of a packed value are, as immutable Python objects.

Four nodes make every structured type: ``Tensor`` (a scalar or a tensor of one fixed-width ONNX type), ``Array``,
``BitPacking`` and ``Structure``, whose fields may also be constants. Each knows its size in bits and is refused where it is
made if that size leaves uint64, so a node that exists has a size. Limits on depth, fields and empty elements keep a few
hostile bytes from standing for endless work; they raise ``TypeLimit``, apart from ``CheckError`` for what is invalid.

Nodes compare by bits and constants alone: names are labels.
"""

from __future__ import annotations

import keyword
import operator
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from tenonnx import dtypes
from tenonnx.dtypes import ScalarType
from tenonnx.errors import CheckError, UnsupportedError

UINT64_MAX = 2**64 - 1
UINT32_MAX = 2**32 - 1
MAX_DEPTH = 64  # axes and structures from the root to a leaf; a NumPy array has no more axes either
MAX_FIELDS = 16_384  # leaves and structures of a type with all references expanded
MAX_EMPTY = 65_536  # array elements without a single bit


class SizeOverflow(CheckError):
    """The size of a type leaves uint64 bits.

    Sizes are computed in checked arithmetic, also below a dimension of 0.

    Way out: declare smaller dimensions; no payload of such a type could exist.

    Examples:
        >>> from tenonnx.structs import array, u8
        >>> array(u8, 2**62)
        Traceback (most recent call last):
        tenonnx.structs.physical.SizeOverflow: its size is 36893488147419103232 bits and leaves uint64; declare smaller dimensions
    """


class TypeLimit(UnsupportedError):
    """A type is valid but larger than this version reads.

    Deeper than 64 levels, or with more than 16,384 fields once references are followed.

    Way out: flatten the type, or split it into several.

    Examples:
        >>> from tenonnx.structs import array, u8
        >>> nested = u8
        >>> for _ in range(65):
        ...     nested = array(nested, 1)
        Traceback (most recent call last):
        tenonnx.structs.physical.TypeLimit: it nests more than 64 levels deep; flatten the type
    """


def _whole(number: object, what: str) -> int:
    """A count as a Python int; ``CheckError`` for what is no whole number."""
    try:
        if not isinstance(number, (bool, np.bool_)):
            return operator.index(number)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise CheckError(f"{what} is {number!r}; expected a whole number")


def _checked_product(count: int, bits: int) -> int:
    count = _whole(count, "its dimension")
    if not 0 <= count <= UINT64_MAX:
        raise CheckError(f"its dimension is {count}; expected a count from 0 to 2^64-1")
    return _checked(count * bits)


def _checked(bits: int) -> int:
    if bits > UINT64_MAX:
        raise SizeOverflow(f"its size is {bits} bits and leaves uint64; declare smaller dimensions")
    return bits


class Node:
    """Base of the four nodes. ``node[n]`` is an array of n of it."""

    bits: int  # size of one value
    depth: int
    fields: int
    empty: int  # array elements of size zero within one value

    def _settle(self, bits: int, depth: int, fields: int, empty: int) -> None:
        if depth > MAX_DEPTH:
            raise TypeLimit(f"it nests more than {MAX_DEPTH} levels deep; flatten the type")
        if fields > MAX_FIELDS:
            raise TypeLimit(f"it has {fields} fields with references expanded, more than {MAX_FIELDS}; use arrays")
        if empty > MAX_EMPTY:
            raise TypeLimit(f"it repeats {empty} elements of no bits, more than {MAX_EMPTY}; drop them")
        for name, value in (("bits", _checked(bits)), ("depth", depth), ("fields", fields), ("empty", empty)):
            object.__setattr__(self, name, value)

    @property
    def nbytes(self) -> int:
        """Size of one value in bytes; ``CheckError`` when it ends inside a byte, which no root may."""
        if self.bits % 8:
            missing = 8 - self.bits % 8
            raise CheckError(f"its size of {self.bits} bits is not whole bytes; add a field of {missing} bits as padding")
        return self.bits // 8

    def __getitem__(self, dimension: int) -> Array:
        return Array(self, dimension)

    # Without this, ``__getitem__`` would make every node an endless iterable.
    __iter__: ClassVar[None] = None


@dataclass(frozen=True, repr=False)
class Tensor(Node):
    """``dims`` elements of one scalar type, tightly packed; a scalar when ``dims`` is empty."""

    scalar: ScalarType
    dims: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        bits, empty = self.scalar.bits, 0
        for dimension in reversed(self.dims):
            total = _checked_product(dimension, bits)
            bits, empty = total, dimension * (empty + (bits == 0))
        self._settle(bits, 1 + len(self.dims), 1, empty)

    def __repr__(self) -> str:
        short = SHORT_NAMES[self.scalar.name]
        return f"tensor({', '.join([short, *map(str, self.dims)])})" if self.dims else short


@dataclass(frozen=True, repr=False)
class Array(Node):
    """``dimension`` elements, tightly packed."""

    element: Node
    dimension: int

    def __post_init__(self) -> None:
        element, total = self.element, _checked_product(self.dimension, self.element.bits)
        empty = self.dimension * (element.empty + (element.bits == 0))
        self._settle(total, element.depth + 1, element.fields, empty)

    def __repr__(self) -> str:
        return f"{self.element!r}[{self.dimension}]"


@dataclass(frozen=True)
class Component:
    """One named run of bits in a packing."""

    name: str = field(compare=False)
    bits: int

    def __post_init__(self) -> None:
        if not 0 < _whole(self.bits, f"the width of component {self.name!r}") <= UINT32_MAX:
            raise CheckError(f"component {self.name!r} is {self.bits} bits wide; expected 1 to 2^32-1")


@dataclass(frozen=True, repr=False)
class BitPacking(Node):
    """``dimension`` repetitions of the components, least significant bit first."""

    components: tuple[Component, ...]
    dimension: int

    def __post_init__(self) -> None:
        _unique("component", [component.name for component in self.components])
        element = sum(component.bits for component in self.components)
        total = _checked_product(self.dimension, element)
        # One level for the axis, one for the components, one for the bytes of a wide component.
        self._settle(total, 3, len(self.components), self.dimension * (element == 0))

    @property
    def element_bits(self) -> int:
        return sum(component.bits for component in self.components)

    def __repr__(self) -> str:
        return f"bits({_arguments((c.name, c.bits) for c in self.components)})[{self.dimension}]"


@dataclass(frozen=True, repr=False, eq=False)
class Constant:
    """A tensor that is part of the type and takes no payload bits."""

    array: np.ndarray

    def __post_init__(self) -> None:
        scalar = dtypes.of_numpy(self.array.dtype, "constant")
        frozen = np.array(self.array, scalar.numpy)
        frozen.flags.writeable = False
        object.__setattr__(self, "array", frozen)

    @property
    def key(self) -> tuple[str, tuple[int, ...], bytes]:
        return self.array.dtype.name, self.array.shape, self.array.tobytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        scalar = dtypes.of_numpy(self.array.dtype)
        exact = self.array if self.array.dtype.kind in "biufc" else self.array.astype(np.float64 if "F" in scalar.name else int)
        return f"constant({exact.tolist()}, {SHORT_NAMES[scalar.name]})"


@dataclass(frozen=True)
class Field:
    """A member of a structure: serialized bits, or a constant."""

    name: str = field(compare=False)
    content: Node | Constant


@dataclass(frozen=True, repr=False)
class Structure(Node):
    """Fields one after the other, in declaration order."""

    members: tuple[Field, ...]
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        _unique("field", [member.name for member in self.members])
        nodes = [member.content for member in self.members if isinstance(member.content, Node)]
        constants = len(self.members) - len(nodes)
        self._settle(
            sum(node.bits for node in nodes),
            1 + max((node.depth for node in nodes), default=0),
            1 + constants + sum(node.fields for node in nodes),
            sum(node.empty for node in nodes),
        )

    def __repr__(self) -> str:
        members = _arguments((member.name, member.content) for member in self.members)
        return f"structure({self.name!r}{', ' if members else ''}{members})"


def _arguments(named: Iterable[tuple[str, object]]) -> str:
    """Keyword arguments, in Python's way for names that are no identifiers."""
    return ", ".join(
        f"{name}={value!r}" if name.isidentifier() and not keyword.iskeyword(name) else f"**{{{name!r}: {value!r}}}"
        for name, value in named
    )


def _unique(what: str, names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if not name:
            raise CheckError(f"a {what} has no name; give each one a name of its own")
        if name in seen:
            raise CheckError(f"two {what}s are named {name!r}; rename one")
        seen.add(name)


SHORT_NAMES = {
    "FLOAT": "f32", "DOUBLE": "f64", "FLOAT16": "f16", "BFLOAT16": "bf16", "BOOL": "boolean",
    "COMPLEX64": "c64", "COMPLEX128": "c128",
    "INT2": "i2", "INT4": "i4", "INT8": "i8", "INT16": "i16", "INT32": "i32", "INT64": "i64",
    "UINT2": "u2", "UINT4": "u4", "UINT8": "u8", "UINT16": "u16", "UINT32": "u32", "UINT64": "u64",
    "FLOAT4E2M1": "f4e2m1", "FLOAT6E2M3": "f6e2m3", "FLOAT6E3M2": "f6e3m2", "FLOAT8E8M0": "f8e8m0",
    "FLOAT8E4M3FN": "f8e4m3fn", "FLOAT8E4M3FNUZ": "f8e4m3fnuz", "FLOAT8E5M2": "f8e5m2", "FLOAT8E5M2FNUZ": "f8e5m2fnuz",
}  # fmt: skip
