"""A plan while it is being made: values over owners of storage, and steps that read and write them.

An owner's content changes from version to version; a value names one version of a part of one owner. So an old name of an
updated cache stays what it was, and ordering follows from who reads and who writes which version.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from tenonnx import dtypes
from tenonnx.plan.types import Storage, WeightKey

LOOP_CHECK = "loop_check"  # no kernel: the executor runs all trips of a loop, but only what its checks need
CHECK_KERNELS = ("check_position", "check_indices", "check_paged_update", "check_page_table", LOOP_CHECK)


@dataclass(eq=False, slots=True)
class Owner:
    """Distinct storage. ``writers[v]`` are the steps that make version v: one, or one on each way through the branches of an
    If; version 0 is what the caller provides.
    """

    name: str
    storage: Storage
    nbytes: int
    mutable: bool = False  # a READ_WRITE graph input
    pages: bool = False  # a table of pages, whose descriptors these bytes are
    weight: WeightKey | None = None
    constant: Any = None
    of_shape: bool = False  # a constant of this plan alone, made from the shapes of its inputs
    writers: dict[int, list[DraftStep]] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Value:
    """A strided view of one version of an owner's bytes; ``offset`` in bytes, ``strides`` in elements."""

    name: str
    elem_type: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    owner: Owner
    offset: int = 0
    version: int = 0
    of: Value | None = None  # the value that this one is a view of
    itemsize: int = field(init=False)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.itemsize = dtypes.BY_NUMBER[self.elem_type].bits // 8
        self.size = math.prod(self.dims)

    @property
    def contiguous(self) -> bool:
        dense = row_major(self.dims)
        return (
            self.strides == dense
            or self.size == 0
            or all(dim == 1 or have == want for dim, have, want in zip(self.dims, self.strides, dense, strict=True))
        )

    @property
    def extent(self) -> int:
        """Bytes from element 0 to the end of the last element."""
        if self.size == 0 or self.strides == row_major(self.dims):
            return self.size * self.itemsize
        return (1 + sum((dim - 1) * stride for dim, stride in zip(self.dims, self.strides, strict=True))) * self.itemsize

    def first(self) -> Value:
        """The value at the root of this one's storage."""
        value = self
        while value.of is not None:
            value = value.of
        return value

    def view(self, dims: tuple[int, ...], strides: tuple[int, ...], name: str, offset: int = 0) -> Value:
        """Another shape or part of the same bytes; ``offset`` in elements from this value's element 0."""
        where = self.offset + (0 if 0 in dims else offset * self.itemsize)
        return Value(name, self.elem_type, dims, strides, self.owner, where, self.version, self)

    def reshaped(self, dims: tuple[int, ...], name: str) -> Value | None:
        """The same elements in the same order under other dimensions, or None where that needs a copy."""
        if self.contiguous:
            return self.view(dims, row_major(dims), name)
        # NumPy decides on a stand-in of the same dims and strides, whose one byte is never touched.
        stand_in = np.lib.stride_tricks.as_strided(np.empty(1, np.uint8), self.dims, self.strides)
        try:
            strides = stand_in.reshape(dims, copy=False).strides
        except ValueError:
            return None
        return self.view(dims, tuple(strides), name)

    def broadcast(self, dims: tuple[int, ...]) -> Value:
        """A view with the dimensions of a broadcast result; repeated dimensions have stride 0."""
        if self.dims == dims:
            return self
        missing = len(dims) - len(self.dims)
        strides = [0] * missing + [
            0 if have == 1 != want else stride for have, want, stride in zip(self.dims, dims[missing:], self.strides, strict=True)
        ]
        return self.view(dims, tuple(strides), self.name)


Guards = tuple[tuple[Value, bool], ...]  # BOOL values of one element, and what each must be


@dataclass(eq=False, slots=True)
class DraftLoop:
    """Steps that run again while ``on`` holds. What passes from trip to trip keeps its place: the version that a trip ends
    with is the one that the next begins with.
    """

    label: str
    outer: Guards  # under which the loop as a whole runs
    on: Value
    outside: set[int]  # ids of the values that were there before it
    enters: list[DraftStep] = field(default_factory=list)  # copies into what passes
    carried: list[tuple[Value, Value]] = field(default_factory=list)  # as a trip begins, and as it ends
    check: DraftStep | None = None  # that stands before all cache writes for the checks of all trips


@dataclass(eq=False, slots=True)
class DraftStep:
    """A kernel call (or, with ``kernel`` None, a node left to onnxruntime) before it has a place."""

    kernel: str | None
    label: str
    inputs: list[Value | None]
    outputs: list[Value]
    ints: tuple[int, ...] = ()
    floats: tuple[float, ...] = ()
    parallel: bool = False
    after: list[DraftStep] = field(default_factory=list)  # checks that must have passed
    reuse: tuple[int, ...] = ()  # inputs whose bytes output 0 may take over
    nodes: tuple[int, ...] = ()  # left to onnxruntime: positions in the graph
    names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())  # of a node left to onnxruntime: inputs, outputs
    guards: Guards = ()
    loop: DraftLoop | None = None
    dry: bool = False  # of a loop: runs, too, where its trips are only checked

    @property
    def reads(self) -> list[Value]:
        """The values that the step needs: its inputs, and the conditions under which it runs."""
        return [*(value for value in self.inputs if value is not None), *(condition for condition, _ in self.guards)]

    def excludes(self, other: DraftStep) -> bool:
        """Whether the two never run in the same run: they stand in different branches of one If."""
        return any((condition, not expected) in other.guards for condition, expected in self.guards)

    @property
    def is_check(self) -> bool:
        return self.kernel in CHECK_KERNELS

    @property
    def writes_cache(self) -> bool:
        return any(value.owner.mutable for value in self.outputs)


def loop_extents(steps: list[DraftStep]) -> list[tuple[DraftLoop, int, int]]:
    """The loops of ordered steps, each with its first and last step, both inclusive."""
    found: dict[int, tuple[DraftLoop, int, int]] = {}
    for number, step in enumerate(steps):
        if step.loop is not None:
            found[id(step.loop)] = (step.loop, found.get(id(step.loop), (step.loop, number, number))[1], number)
    return list(found.values())


@lru_cache(maxsize=1024)  # a plan has thousands of values, of few shapes
def row_major(dims: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of dense storage in dimension order."""
    strides = [1] * len(dims)
    for index in range(len(dims) - 2, -1, -1):
        strides[index] = strides[index + 1] * max(1, dims[index + 1])
    return tuple(strides)


def identity(value: Value) -> tuple[Any, ...]:
    """A key that is equal for values showing the same bytes in the same way."""
    return id(value.owner), value.version, value.offset, value.dims, value.strides, value.elem_type
