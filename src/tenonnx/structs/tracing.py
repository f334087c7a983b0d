"""Decoders written in NumPy, turned into ONNX functions.

A decoder is a function of a view's fields: ``lambda x: x.d.astype(np.float32)[:, None] * x.qs.astype(np.float32)``. Called with
a view it computes. Called with the leaves of ``tenonnx.structs.traced``, NumPy's own dispatch appends the ONNX operators that
do the same. So one text is formula and decoder, needs no parser of Python, and may use any Python around the arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tenonnx.errors import CheckError, TenonnxError
from tenonnx.structs.layout import Leaf
from tenonnx.structs.traced import BLOCKS, Traced, Tracer


class Fields:
    """The traced leaves by name, as a view of the blocks has them."""

    def __init__(self, leaves: dict[str, Traced], where: str) -> None:
        self._leaves, self._where = leaves, where

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(path.partition(".")[0] for path in self._leaves))

    def leaves(self) -> tuple[Traced, ...]:
        """Every leaf below, in declaration order."""
        return tuple(self._leaves.values())

    def __getitem__(self, name: str) -> Any:
        if name in self._leaves:
            return self._leaves[name]
        below = {path.partition(".")[2]: leaf for path, leaf in self._leaves.items() if path.startswith(f"{name}.")}
        if not below:
            raise AttributeError(f"{self._where} has no field {name!r}; it has {', '.join(self.names) or 'none'}")
        return Fields(below, f"{self._where}.{name}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]


def trace(name: str, decoder: Callable[[Any], Any], places: Sequence[Leaf], block_shape: tuple[int, ...]) -> Any:
    """F: the FunctionProto of a decoder over the leaves of N blocks, each [N, …], that gives FLOAT[N, *block_shape].

    Raises ``CheckError`` for a decoder that fails, uses what has no operator here, or gives another type or shape.
    """
    tracer = Tracer(name)
    inputs = {leaf.path: tracer.input(leaf) for leaf in places}
    try:
        found = decoder(inputs[""] if "" in inputs else Fields(inputs, name))
    except TenonnxError as error:
        raise CheckError(f"decoder of {name}: {error}") from error
    except Exception as error:
        raise CheckError(f"decoder of {name} fails: {type(error).__name__}: {error}") from error
    shape = (BLOCKS, *block_shape)
    if not isinstance(found, Traced) or found.dtype != np.float32 or found.sample.shape != shape:
        given = f"{found.dtype}{list(found.shape)}" if isinstance(found, Traced) else repr(found)
        raise CheckError(
            f"decoder of {name} gives {given}; expected float32{[-1, *block_shape]}: one value per element of a block"
        )
    if found.name in tracer.function.input:
        found = found._new("Identity", [found.name], found.sample)
    tracer.function.output.append(found.name)
    return tracer.function
