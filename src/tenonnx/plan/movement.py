"""Lowering of operators that rearrange: views where strides can say it, copies where they cannot."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tenonnx.errors import ShapeError
from tenonnx.plan.builder import FLOAT, INT32, INT64, UINT8, Builder, Weight, nbytes_of
from tenonnx.plan.draft import Owner, Value, row_major
from tenonnx.plan.types import Storage, WeightKey
from tenonnx.schema.graph import attributes


def reshape(builder: Builder, node: Any) -> bool:
    """Reshape, Squeeze, Unsqueeze, Flatten, Identity: the inferred dimensions over the same bytes."""
    weight = builder.lazy(node.input[0])
    if isinstance(weight, Weight) and node.op_type == "Identity":
        builder.define(node, weight)
        return True
    source = builder.value(node.input[0])
    name = node.output[0]
    _, dims = builder.type_of(name)
    if math.prod(dims) != source.size:
        raise ShapeError(
            f"{builder.label(node)}: gives {list(dims)}, but {node.input[0]!r} is {list(source.dims)}; "
            "give dimensions with as many elements"
        )
    view = source.reshaped(dims, name)
    if view is None:
        if builder.aliases.source(name) is not None:
            return False  # a copy would not be the declared storage
        dense = builder.dense(source)
        view = dense.view(dims, row_major(dims), name)
    builder.define(node, view)
    return True


def transpose(builder: Builder, node: Any) -> bool:
    """A view; a weight's transpose waits for its matrix product."""
    source = builder.lazy(node.input[0])
    given = attributes(node).get("perm")
    if isinstance(source, Weight) and len(source.shape) == 2 and given in (None, [1, 0]):
        builder.define(node, source.turned())
        return True
    value = builder.value(node.input[0])
    order = given if given is not None else list(range(len(value.dims)))[::-1]
    if sorted(order) != list(range(len(value.dims))):
        return False
    dims = tuple(value.dims[axis] for axis in order)
    builder.define(node, value.view(dims, tuple(value.strides[axis] for axis in order), node.output[0]))
    return True


def expand(builder: Builder, node: Any) -> bool:
    """A view that repeats with stride 0."""
    source = builder.value(node.input[0])
    _, dims = builder.type_of(node.output[0])
    repeated = source.broadcast(dims)
    builder.define(node, repeated.view(dims, repeated.strides, node.output[0]))
    return True


def split(builder: Builder, node: Any) -> bool:
    """A view per part."""
    source = builder.value(node.input[0])
    axis = attributes(node).get("axis", 0) % len(source.dims)
    parts, begin = [], 0
    for name in node.output:
        _, dims = builder.type_of(name)
        parts.append(source.view(dims, source.strides, name, begin * source.strides[axis]))
        begin += dims[axis]
    if begin != source.dims[axis]:
        raise ShapeError(
            f"{builder.label(node)}: its {len(parts)} outputs take {begin} of {source.dims[axis]} elements along axis {axis}; "
            "name an output for each part"
        )
    builder.define(node, *parts)
    return True


def known(builder: Builder, name: str) -> np.ndarray | None:
    """The content of a small initializer or constant, or None where it is not known before the run."""
    found = builder.env.get(name)
    if not isinstance(found, Value) or found.owner.storage is not Storage.INITIALIZER or not found.contiguous:
        return None
    if found.owner.constant is not None:
        array = np.asarray(found.owner.constant).reshape(-1)
        begin = found.offset // array.itemsize
        return array[begin : begin + found.size].reshape(found.dims)
    tensor = builder.scope.initializers.get(found.owner.name)
    if tensor is None or tensor.external_data or found.offset:
        return None
    from onnx import numpy_helper

    from tenonnx.schema.messages import to_onnx

    return numpy_helper.to_array(to_onnx(tensor)).reshape(found.dims)


def slice_(builder: Builder, node: Any) -> bool:
    """A view, when the bounds are known and every step is positive."""
    source = builder.value(node.input[0])
    bounds = [known(builder, name) for name in node.input[1:] if name]
    names = [number for number, name in enumerate(node.input[1:]) if name]
    given = dict(zip(names, bounds, strict=True))
    starts, ends = given.get(0), given.get(1)
    if starts is None or ends is None or any(bound is None or bound.dtype.kind != "i" for bound in bounds):
        return False
    if starts.ndim != 1 or any(bound.shape != starts.shape for bound in bounds if bound is not None):
        return False
    axes, steps = given.get(2), given.get(3)
    axes = np.arange(len(starts)) if axes is None else axes
    steps = np.ones(len(starts), np.int64) if steps is None else steps
    rank = len(source.dims)
    if (steps < 1).any() or (axes < -rank).any() or (axes >= rank).any():
        return False
    begin, strides = 0, list(source.strides)
    for start, end, axis, step in zip(starts.tolist(), ends.tolist(), axes.tolist(), steps.tolist(), strict=True):
        first, _, _ = slice(start, end, step).indices(source.dims[axis])
        begin += first * source.strides[axis]
        strides[axis] *= step
    _, dims = builder.type_of(node.output[0])
    builder.define(node, source.view(dims, tuple(strides), node.output[0], begin))
    return True


def concat(builder: Builder, node: Any) -> bool:
    """One copy of each part into its place."""
    parts: list[Value | None] = [builder.value(name) for name in node.input]
    result = builder.output(node)
    axis = attributes(node)["axis"] % len(result.dims)
    builder.step("concat", builder.label(node), parts, [result], ints=(axis,))
    builder.define(node, result)
    return True


def gather(builder: Builder, node: Any) -> bool:
    """Rows of a packed weight, or of any tensor; indices are checked before the run writes a cache."""
    data = builder.lazy(node.input[0])
    indices = builder.value(node.input[1])
    axis = attributes(node).get("axis", 0)
    if indices.elem_type not in (INT64, INT32):
        return False
    if (
        isinstance(data, Weight)
        and not data.transposed
        and not data.apart
        and axis == 0
        and packed_rows(builder, node, data, indices)
    ):
        return True
    tensor = builder.value(node.input[0])
    axis %= len(tensor.dims)
    label = builder.label(node)
    check = builder.check("check_indices", indices, (tensor.dims[axis],), label)
    result = builder.output(node)
    builder.step("gather", label, [tensor, builder.dense(indices)], [result], ints=(axis,), after=[check])
    builder.define(node, result)
    return True


def packed_rows(builder: Builder, node: Any, weight: Weight, indices: Value) -> bool:
    """Rows of a packed weight; False where no kernel has them."""
    if weight.layout is None or indices.elem_type != INT64:
        return False
    label = builder.label(node)
    check = builder.check("check_indices", indices, (weight.shape[0],), label)
    result = builder.output(node)
    rows = result if weight.elem_type == FLOAT else builder.new(f"{result.name}.wide", FLOAT, result.dims)
    ints = (*weight.shape, *weight.layout.arguments)
    builder.step(weight.layout.gather, label, [packed_weight(weight), builder.dense(indices)], [rows], ints=ints, after=[check])
    if rows is not result:
        builder.step("copy", f"Cast of {rows.name}", [rows], [result])
    builder.define(node, result)
    return True


def packed_weight(weight: Weight) -> Value:
    """The bytes of a weight in its compute layout."""
    layout = weight.layout
    nbytes = layout.nbytes(*weight.shape) if layout is not None else 0
    owner = Owner(weight.name, Storage.INITIALIZER, nbytes, weight=WeightKey(weight.name, layout.name if layout else ""))
    return Value(weight.name, UINT8, (nbytes,), row_major((nbytes,)), owner)


def shape(builder: Builder, node: Any) -> bool:
    """Known when planning: a constant."""
    dims = builder.type_of(node.input[0])[1]
    given = attributes(node)
    start, end, _ = slice(given.get("start", 0), given.get("end", len(dims))).indices(len(dims))
    builder.define(node, builder.constant(node.output[0], np.asarray(dims[start:end], np.int64), of_shape=True))
    return True


def size(builder: Builder, node: Any) -> bool:
    """Known when planning: a constant."""
    dims = builder.type_of(node.input[0])[1]
    builder.define(node, builder.constant(node.output[0], np.asarray(np.prod(dims, dtype=np.int64), np.int64), of_shape=True))
    return True


def constant(builder: Builder, node: Any) -> bool:
    """A numeric Constant."""
    from onnx import numpy_helper

    from tenonnx.schema.messages import to_onnx

    attribute = node.attribute[0]
    if attribute.name == "value":
        nbytes_of(attribute.t.data_type, ())
        array = numpy_helper.to_array(to_onnx(attribute.t))
    elif attribute.name in ("value_int", "value_ints", "value_float", "value_floats"):
        given = attributes(node)[attribute.name]
        array = np.asarray(given, np.int64 if "int" in attribute.name else np.float32)
    else:
        return False
    builder.define(node, builder.constant(node.output[0], array))
    return True


RULES: dict[str, Callable[[Builder, Any], bool]] = {
    **dict.fromkeys(("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"), reshape),
    "Transpose": transpose,
    "Expand": expand,
    "Split": split,
    "Slice": slice_,
    "Concat": concat,
    "Gather": gather,
    "Shape": shape,
    "Size": size,
    "Constant": constant,
}
