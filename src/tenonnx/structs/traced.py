"""An array that writes down as ONNX operators what NumPy is asked to do with it.

A sample of a few empty blocks goes along, so that NumPy itself says which dtypes and shapes come about, and refuses what it
would refuse later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tenonnx import dtypes
from tenonnx.errors import CheckError
from tenonnx.schema.domains import FORMATS_DOMAIN
from tenonnx.schema.messages import AttributeProto, FunctionProto
from tenonnx.structs import functions
from tenonnx.structs.layout import Leaf

BLOCKS = 13  # in the sample: no dimension of a block, so that a missing axis does not broadcast by chance

_BINARY = {
    np.add: "Add",
    np.subtract: "Sub",
    np.multiply: "Mul",
    np.divide: "Div",
    np.power: "Pow",
    np.minimum: "Min",
    np.maximum: "Max",
    np.bitwise_and: "BitwiseAnd",
    np.bitwise_or: "BitwiseOr",
    np.bitwise_xor: "BitwiseXor",
    np.left_shift: "BitShift",
    np.right_shift: "BitShift",
    np.logical_and: "And",
    np.logical_or: "Or",
    np.equal: "Equal",
    np.less: "Less",
    np.less_equal: "LessOrEqual",
    np.greater: "Greater",
    np.greater_equal: "GreaterOrEqual",
}
_UNARY = {
    np.negative: "Neg",
    np.absolute: "Abs",
    np.exp: "Exp",
    np.sqrt: "Sqrt",
    np.floor: "Floor",
    np.ceil: "Ceil",
    np.bitwise_not: "BitwiseNot",
    np.logical_not: "Not",
}


class Tracer:
    """The function being written."""

    def __init__(self, name: str) -> None:
        self.function = FunctionProto(name=name, domain=FORMATS_DOMAIN)
        self.function.opset_import.add(domain="", version=functions.OPSET)
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def input(self, leaf: Leaf) -> Traced:
        """A leaf as a decoder sees it, with the axis of blocks in front unless it is a constant."""
        name = leaf.path or "values"
        self.function.input.append(name)
        if leaf.constant is not None:
            return Traced(self, name, leaf.constant, batched=False)
        return Traced(self, name, np.zeros((BLOCKS, *leaf.shape), leaf.elem_type.numpy), batched=True)

    def node(self, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        """The name of the one output of a new node."""
        output = f"v{len(self.function.node)}"
        node = self.function.node.add(op_type=op, input=inputs, output=[output])
        for name, value in attributes.items():
            attribute = node.attribute.add(name=name)
            if isinstance(value, int):
                attribute.type, attribute.i = AttributeProto.INT, value
            elif isinstance(value, str):
                attribute.type, attribute.s = AttributeProto.STRING, value.encode()
            elif isinstance(value, np.ndarray):
                attribute.type, attribute.t.data_type = AttributeProto.TENSOR, dtypes.of_numpy(value.dtype).number
                attribute.t.dims.extend(value.shape)
                attribute.t.raw_data = value.tobytes()
            else:
                attribute.type = AttributeProto.INTS
                attribute.ints.extend(value)
        return output

    def constant(self, array: np.ndarray) -> str:
        """A Constant, one for all uses of the same value."""
        if dtypes.of_numpy(array.dtype, "constant").bits < 8:
            raise CheckError(f"a constant of {array.dtype} in a decoder; write it as uint8 or float32")
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.node("Constant", [], value=array)
        return self._constants[key]

    def read(self, value: Any, dtype: np.dtype) -> str:
        """A traced value, array or number as a value of ``dtype``."""
        return value.astype(dtype).name if isinstance(value, Traced) else self.constant(np.asarray(value, dtype))


class Traced(np.lib.mixins.NDArrayOperatorsMixin):
    """Stands for an array while a decoder is traced."""

    __array_priority__ = 1000

    def __init__(self, tracer: Tracer, name: str, sample: np.ndarray, batched: bool) -> None:
        self.tracer, self.name, self.sample, self.batched = tracer, name, sample, batched

    @property
    def dtype(self) -> np.dtype:
        return self.sample.dtype

    @property
    def ndim(self) -> int:
        return self.sample.ndim

    @property
    def shape(self) -> tuple[int, ...]:
        """The dims, with -1 for the number of blocks."""
        return (-1, *self.sample.shape[1:]) if self.batched else self.sample.shape

    def __len__(self) -> int:
        raise CheckError("the number of blocks is not known while a decoder is traced; reshape with -1 for the first axis")

    def __bool__(self) -> bool:
        raise CheckError("a decoder branches on a value, which is not known while it is traced; choose with numpy.where")

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise CheckError(
            "a decoder uses a leaf where NumPy needs its values, which are not known while it is traced; a table to look them "
            "up in is a constant of the block type: structure(…, table=constant([…])) and x.table[codes]"
        )

    def astype(self, dtype: Any) -> Traced:
        target = dtypes.of_numpy(np.dtype(dtype), "astype")
        if target.numpy == self.dtype:
            return self
        with np.errstate(all="ignore"):
            return self._new("Cast", [self.name], self.sample.astype(target.numpy), to=target.number)

    def reshape(self, *shape: Any) -> Traced:
        dims = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
        if self.batched and -1 not in dims:
            raise CheckError(f"reshape to {list(dims)} fixes the number of blocks; give the first axis as -1")
        return self._new("Reshape", [self.name, self._ints(dims)], self.sample.reshape(dims))

    def transpose(self, *axes: Any) -> Traced:
        order = tuple(axes[0]) if len(axes) == 1 and not isinstance(axes[0], int) else axes or tuple(reversed(range(self.ndim)))
        return self._new("Transpose", [self.name], self.sample.transpose(order), perm=list(order))

    def sum(self, axis: int, keepdims: bool = False) -> Traced:
        """Along one axis; integers are summed as the dtype that NumPy takes for it."""
        sample = self.sample.sum(axis=axis, keepdims=keepdims)
        wide = self.astype(sample.dtype)
        return wide._new("ReduceSum", [wide.name, self._ints([axis])], sample, keepdims=int(keepdims))

    def __getitem__(self, key: Any) -> Traced:
        if isinstance(key, Traced):
            return _take(self, key, axis=0)
        keys = key if isinstance(key, tuple) else (key,)
        if Ellipsis in keys:
            place = keys.index(Ellipsis)
            missing = self.ndim - sum(part is not None for part in keys) + 1
            keys = (*keys[:place], *[slice(None)] * missing, *keys[place + 1 :])
        return self._selected(keys)

    def _selected(self, keys: tuple[Any, ...]) -> Traced:
        """A slice of each axis that has one, then a new axis for each None; an integer selects and drops an axis."""
        cuts: list[tuple[int, int, int, int]] = []
        dropped: list[int] = []
        added: list[int] = []
        axis = place = 0
        for key in keys:
            if key is None:
                added.append(place)
                place += 1
                continue
            if self.batched and axis == 0 and key != slice(None):
                raise CheckError("a decoder selects among its blocks; it may only select within each block")
            part = slice(key, key + 1 or None) if isinstance(key, int) else key
            if part != slice(None):
                start, stop, step = part.indices(self.sample.shape[axis])
                cuts.append((axis, start, stop if stop >= 0 else -self.sample.shape[axis] - 1, step))
            if isinstance(key, int):
                dropped.append(axis)
            else:
                place += 1
            axis += 1
        name = self.name
        if cuts:
            axes, starts, stops, steps = (self._ints(column) for column in zip(*cuts, strict=True))
            name = self.tracer.node("Slice", [name, starts, stops, axes, steps])
        for op, places in (("Squeeze", dropped), ("Unsqueeze", added)):
            name = self.tracer.node(op, [name, self._ints(places)]) if places else name
        return Traced(self.tracer, name, self.sample[keys], self.batched)

    def _ints(self, values: Sequence[int]) -> str:
        return self.tracer.constant(np.array(values, np.int64))

    def _new(self, op: str, inputs: Sequence[str], sample: np.ndarray, **attributes: Any) -> Traced:
        return Traced(self.tracer, self.tracer.node(op, inputs, **attributes), sample, self.batched)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Traced:
        if ufunc is np.not_equal:
            return np.logical_not(np.equal(*inputs))
        if method != "__call__" or options or ufunc not in _BINARY | _UNARY:
            raise CheckError(f"a decoder uses numpy.{ufunc.__name__}, which has no ONNX operator here; write it in ONNX text")
        # Python's own numbers take the dtype of the array beside them.
        kinds = [type(value) if type(value) in (int, float, bool) else np.asarray(_sample(value)).dtype for value in inputs]
        loop = ufunc.resolve_dtypes((*kinds, None))
        names = [self.tracer.read(value, dtype) for value, dtype in zip(inputs, loop, strict=False)]
        with np.errstate(all="ignore"):
            sample = ufunc(*map(_sample, inputs))
        op, attributes = (_BINARY | _UNARY)[ufunc], {}
        if op == "BitShift":
            if loop[0].kind != "u":
                raise CheckError(f"a decoder shifts {loop[0]}; cast it to an unsigned type first")
            attributes["direction"] = "LEFT" if ufunc is np.left_shift else "RIGHT"
        if loop[0].kind == "b" and op.startswith("Bitwise"):
            op = op.removeprefix("Bitwise")
        return _joined(inputs, op, names, np.asarray(sample), **attributes)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function not in _FUNCTIONS:
            raise CheckError(f"a decoder uses numpy.{function.__name__}, which has no ONNX operator here; write it in ONNX text")
        return _FUNCTIONS[function](*args, **kwargs)


def _sample(value: Any) -> Any:
    return value.sample if isinstance(value, Traced) else value


def _joined(values: Sequence[Any], op: str, names: Sequence[str], sample: np.ndarray, **attributes: Any) -> Traced:
    """The result of a node over several values, of which some are traced."""
    traced = [value for value in values if isinstance(value, Traced)]
    name = traced[0].tracer.node(op, names, **attributes)
    return Traced(traced[0].tracer, name, sample, any(value.batched for value in traced))


def _concatenate(arrays: Sequence[Any], axis: int = 0) -> Traced:
    sample = np.concatenate([_sample(array) for array in arrays], axis=axis)
    tracer = next(array.tracer for array in arrays if isinstance(array, Traced))
    return _joined(arrays, "Concat", [tracer.read(array, sample.dtype) for array in arrays], sample, axis=axis)


def _stack(arrays: Sequence[Any], axis: int = 0) -> Traced:
    place = (slice(None),) * (axis if axis >= 0 else axis + 1 + arrays[0].ndim)
    return _concatenate([array[(*place, None)] for array in arrays], axis=axis)


def _take(table: Any, indices: Any, axis: int = 0) -> Traced:
    return _gather("Gather", table, indices, axis, np.take)


def _take_along_axis(table: Any, indices: Any, axis: int) -> Traced:
    return _gather("GatherElements", table, indices, axis, np.take_along_axis)


def _gather(op: str, table: Any, indices: Any, axis: int, function: Callable[..., np.ndarray]) -> Traced:
    tracer = indices.tracer if isinstance(indices, Traced) else table.tracer
    names = [tracer.read(table, np.asarray(_sample(table)).dtype), tracer.read(indices, np.dtype(np.int64))]
    sample = function(_sample(table), np.asarray(_sample(indices)).astype(np.int64), axis=axis)
    return _joined((table, indices), op, names, sample, axis=axis)


def _where(condition: Any, yes: Any, no: Any) -> Traced:
    sample = np.where(*map(_sample, (condition, yes, no)))
    tracer = next(value.tracer for value in (condition, yes, no) if isinstance(value, Traced))
    names = [tracer.read(condition, np.dtype(np.bool_)), tracer.read(yes, sample.dtype), tracer.read(no, sample.dtype)]
    return _joined((condition, yes, no), "Where", names, sample)


_FUNCTIONS: dict[Any, Callable[..., Traced]] = {
    np.concatenate: _concatenate,
    np.stack: _stack,
    np.take: _take,
    np.take_along_axis: _take_along_axis,
    np.where: _where,
    np.reshape: lambda array, shape: array.reshape(shape),
    np.transpose: lambda array, axes=None: array.transpose(*([axes] if axes is not None else [])),
    np.sum: lambda array, axis, keepdims=False: array.sum(axis, keepdims),
}
