"""Weights whose codes, scales and zero points are initializers of their own, as onnxruntime's MatMulNBits takes them.

Kernels read them packed like the same blocks in one piece: INT4 and INT8 of the catalogue, which have the three side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from tenonnx.plan.builder import FLOAT, UINT8
from tenonnx.schema.graph import Scope, attributes
from tenonnx.structs import catalogue

MICROSOFT = "com.microsoft"
_CODES, _SCALES, _ZERO_POINTS, _ORDER = 1, 2, 3, 4  # inputs of MatMulNBits


class Blocks(NamedTuple):
    """A weight [rows, columns] in blocks of ``group`` columns, by the names of its initializers."""

    codes: str  # UINT8[rows, columns / group, group · bits / 8]
    scales: str  # FLOAT
    zero_points: str  # UINT8, of 4 bits two in a byte, each row on its own; "": 2^(bits - 1)
    rows: int
    columns: int
    bits: int
    group: int

    @property
    def format(self) -> str:
        return f"INT{self.bits}_{self.group}"

    @property
    def row_blocks(self) -> int:
        return self.columns // self.group


def products(scope: Scope) -> dict[str, Blocks]:
    """The weights of all MatMulNBits by the names of their codes; none of one that kernels have no layout for."""
    found: dict[str, Blocks | None] = {}
    for node in scope.nodes:
        if (node.domain, node.op_type) == (MICROSOFT, "MatMulNBits"):
            blocks = _blocks(scope, node)
            known = found.setdefault(node.input[_CODES], blocks)
            if known != blocks:
                found[node.input[_CODES]] = None
    return {name: blocks for name, blocks in found.items() if blocks is not None}


def _blocks(scope: Scope, node: Any) -> Blocks | None:
    given, names = attributes(node), [*node.input, *[""] * 6][:6]
    sizes = [int(given.get(name, default)) for name, default in (("N", 0), ("K", 0), ("bits", 4), ("block_size", 0))]
    blocks = Blocks(names[_CODES], names[_SCALES], names[_ZERO_POINTS], *sizes)
    if blocks.format not in catalogue or min(sizes) < 1 or blocks.columns % blocks.group or names[_ORDER]:
        return None
    count = blocks.rows * blocks.row_blocks
    zero_bytes = blocks.rows * -(-blocks.row_blocks * blocks.bits // 8)
    expected = [
        (blocks.codes, UINT8, count * blocks.group * blocks.bits // 8),
        (blocks.scales, FLOAT, count),
        *([(blocks.zero_points, UINT8, zero_bytes)] if blocks.zero_points else []),
    ]
    return blocks if all(_holds(scope, *part) for part in expected) else None


def _holds(scope: Scope, name: str, elem_type: int, count: int) -> bool:
    tensor = scope.initializers.get(name)
    return tensor is not None and tensor.data_type == elem_type and math.prod(tensor.dims) == count


def gathered(scope: Scope, node: Any, blocks: Mapping[str, Blocks]) -> Blocks | None:
    """The weight whose rows GatherBlockQuantized reads: codes as they are, or reshaped to [rows, bytes]. None for any other."""
    given, names = attributes(node), [*node.input, *[""] * 4][:4]
    maker = scope.producer.get(names[0])
    reshaped = maker is not None and scope.nodes[maker.node].op_type == "Reshape"
    weight = blocks.get(scope.nodes[maker.node].input[0] if maker is not None and reshaped else names[0])
    if weight is None or names[2:] != [weight.scales, weight.zero_points]:
        return None
    expected = {"gather_axis": 0, "quantize_axis": 1, "bits": weight.bits, "block_size": weight.group}
    defaults = {"gather_axis": 0, "quantize_axis": 1, "bits": 4, "block_size": 128}
    return weight if all(given.get(name, defaults[name]) == value for name, value in expected.items()) else None


def payload(blocks: Blocks, read: Callable[[str], np.ndarray]) -> np.ndarray:
    """UINT8[n]: the blocks of the weight as its format has them, from its initializers."""
    count = blocks.rows * blocks.row_blocks
    codes = read(blocks.codes).reshape(count, -1)
    made = np.empty((count, 5 + codes.shape[1]), np.uint8)
    made[:, :4] = np.ascontiguousarray(read(blocks.scales)).reshape(count, 1).view(np.uint8)
    made[:, 4] = _zero_points(blocks, read)
    made[:, 5:] = codes
    return made.reshape(-1)


def _zero_points(blocks: Blocks, read: Callable[[str], np.ndarray]) -> np.ndarray | int:
    if not blocks.zero_points:
        return 1 << (blocks.bits - 1)
    packed = read(blocks.zero_points).reshape(blocks.rows, -1)
    if blocks.bits == 4:
        packed = np.stack([packed & 15, packed >> 4], axis=2).reshape(blocks.rows, -1)[:, : blocks.row_blocks]
    return packed.reshape(-1)
