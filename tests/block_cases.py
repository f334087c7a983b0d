"""Blocks that show a wrong decoder: random ones, all bits set, each bit alone, and scales that are no ordinary numbers."""

from __future__ import annotations

import numpy as np

from tenonnx.structs import Format
from tenonnx.structs.packing import pack_leaves

# Enough of every kind: NaN, both infinities and zeros, the least and greatest finite values.
FLOAT16_BITS = [0x7E00, 0xFE00, 0x7C01, 0x7C00, 0xFC00, 0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0xFBFF, 0x3C00]


def plain(fmt: Format) -> np.ndarray:
    """UINT8[nbytes]: a block with scales of 1.5 (1 where a scale has no fraction) and random codes."""
    rng = np.random.default_rng(fmt.nbytes)
    values = []
    for leaf in fmt.leaves:
        if leaf.constant is not None:
            continue
        if leaf.scalar is not None and "FLOAT" in leaf.scalar.name:
            values.append(np.full(leaf.shape, 1.5 if "E8M0" not in leaf.scalar.name else 1, np.float32))
        else:
            high = 2 ** min(leaf.bits, 7 if leaf.scalar is not None and leaf.scalar.name == "INT8" else 63)
            values.append(rng.integers(0, high, leaf.shape, np.uint64))
    return pack_leaves(fmt.block_type, values, fmt.name)


def single_bits(fmt: Format) -> np.ndarray:
    """UINT8[8 · nbytes, nbytes]: the plain block with one bit turned over, at every position."""
    flips = np.packbits(np.eye(8 * fmt.nbytes, dtype=np.uint8), axis=1, bitorder="little")
    return plain(fmt) ^ flips


def strange_scales(fmt: Format) -> np.ndarray:
    """The plain block with each FLOAT16 leaf, and each leaf of one byte per scale, set to bits that are no ordinary number."""
    blocks = []
    for leaf in fmt.leaves:
        if leaf.constant is not None or leaf.scalar is None or "FLOAT" not in leaf.scalar.name or leaf.offset % 8:
            continue
        size = leaf.bits // 8
        patterns = FLOAT16_BITS if size == 2 else range(256) if size == 1 else [0x7FC00000, 0xFF800000, 0x80000000, 1, 0x7F7FFFFF]
        for pattern in patterns:
            block = plain(fmt)
            block[leaf.offset // 8 : leaf.offset // 8 + size] = np.frombuffer(pattern.to_bytes(size, "little"), np.uint8)
            blocks.append(block)
    return np.array(blocks, np.uint8).reshape(-1, fmt.nbytes)


def adversarial(fmt: Format) -> np.ndarray:
    """UINT8[n, nbytes]: all of the above, and random bytes."""
    rng = np.random.default_rng(7)
    extremes = np.repeat(np.array([[0], [255]], np.uint8), fmt.nbytes, axis=1)
    parts = (extremes, plain(fmt)[None], single_bits(fmt), strange_scales(fmt), rng.integers(0, 256, (64, fmt.nbytes), np.uint8))
    return np.concatenate(parts)


def assert_same_bits(found: np.ndarray, expected: np.ndarray) -> None:
    """Equal to the bit, -0 apart from +0, any NaN equal to any other."""
    assert found.dtype == expected.dtype == np.float32 and found.shape == expected.shape
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    found, expected = (np.where(np.isnan(array), np.float32(0), array).view(np.uint32) for array in (found, expected))
    np.testing.assert_array_equal(found, expected)
