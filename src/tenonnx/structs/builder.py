"""Types written in Python as they read: ``structure("Q4_0", d=f16, qs=bits(lo=4, hi=4)[16])``.

``node[n]`` is an array of n; ``to_proto`` gives the StructTypeProto of a root, and ``repr`` of a node what it was written as.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tenonnx.errors import CheckError
from tenonnx.schema.messages import StructTypeProto, TensorProto, TypeProto
from tenonnx.structs.physical import Array, BitPacking, Component, Constant, Field, Node, Structure, Tensor


class Bits:
    """Components not yet repeated: ``bits(lo=4, hi=4)[16]`` packs 16 pairs; without an index it packs one."""

    def __init__(self, components: tuple[Component, ...]) -> None:
        self.components = components

    def __getitem__(self, dimension: int) -> BitPacking:
        return BitPacking(self.components, dimension)


Buildable = Node | Bits


def _node(content: Buildable) -> Node:
    if isinstance(content, Bits):
        return content[1]
    if not isinstance(content, Node):
        raise CheckError(f"{content!r} is no physical type; use a scalar such as f16, an array, bits, a structure or constant()")
    return content


def bits(**widths: int) -> Bits:
    """Named components of the given widths in bits, the first in the least significant bits."""
    return Bits(tuple(Component(name, width) for name, width in widths.items()))


def pad(width: int) -> BitPacking:
    """``width`` bits of explicit padding: a field like any other, so that no bit goes undeclared."""
    return bits(pad=width)[1]


def array(element: Buildable, dimension: int) -> Array:
    """``dimension`` elements, tightly packed: the same as ``element[dimension]``."""
    return Array(_node(element), dimension)


def tensor(scalar: Tensor, *dims: int) -> Tensor:
    """A tensor of concrete dims, in row-major order."""
    return Tensor(scalar.scalar, dims)


def constant(value: ArrayLike, dtype: Any = None) -> Constant:
    """A tensor of the type itself; ``dtype``, a scalar such as i8 or a NumPy dtype, defaults to that of the array."""
    return Constant(np.asarray(value, dtype.scalar.numpy if isinstance(dtype, Tensor) else dtype))


def structure(name: str, /, **fields: Buildable | Constant) -> Structure:
    """Fields in the order written.

    Examples:
        >>> from tenonnx.structs import bits, f16, structure
        >>> structure("PAIRS", d=f16, q=bits(lo=4, hi=4)[2]).nbytes
        4
    """
    contents = {key: value if isinstance(value, Constant) else _node(value) for key, value in fields.items()}
    return Structure(tuple(Field(key, value) for key, value in contents.items()), name)


def to_proto(root: Buildable, name: str = "") -> Any:
    """The StructTypeProto of a concrete root, everything below it inline. Only a root carries a name."""
    node = _node(root)
    if isinstance(node, Tensor):
        raise CheckError("a tensor alone is no structured type; make it an array or a field of a structure")
    message = StructTypeProto(name=name or getattr(node, "name", ""))
    _fill(message, node)
    return message


def _fill(message: Any, node: Node) -> None:
    if isinstance(node, Array):
        message.array.dimension = node.dimension
        _fill_type(message.array.element_type, node.element)
    elif isinstance(node, BitPacking):
        message.bit_packing.dimension = node.dimension
        for component in node.components:
            message.bit_packing.component.add(name=component.name, bit_width=component.bits)
    elif isinstance(node, Structure):
        message.structure.SetInParent()
        for member in node.members:
            field = message.structure.field.add(name=member.name)
            if isinstance(member.content, Constant):
                field.constant.CopyFrom(_constant(member.content))
            else:
                _fill_type(field.type, member.content)


def _fill_type(message: Any, node: Node) -> None:
    if isinstance(node, Tensor):
        message.CopyFrom(tensor_type(node.scalar.number, node.dims))
    else:
        _fill(message.struct_type, node)


def tensor_type(elem_type: int, dims: tuple[int, ...]) -> Any:
    """A TypeProto of a tensor with concrete dims."""
    message = TypeProto()
    message.tensor_type.elem_type = elem_type
    message.tensor_type.shape.SetInParent()
    for dimension in dims:
        message.tensor_type.shape.dim.add(dim_value=dimension)
    return message


def _constant(content: Constant) -> Any:
    from onnx import numpy_helper

    return TensorProto.FromString(numpy_helper.from_array(content.array).SerializeToString())
