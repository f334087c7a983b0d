"""A format with codes of 3 bits and a codebook per block: 64 weights in 34 bytes, 4.25 bits each."""

import numpy as np

from tenonnx.structs import Format, bits, f16, i8, structure

block = structure("THREE_BIT", scale=f16, table=i8[8], codes=bits(q=3)[64])


def decode(x):
    """The weights of N blocks, FLOAT[N, 64]: each code picks from its own block's table."""
    values = np.take_along_axis(x.table.astype(np.float32), x.codes.q, axis=1)
    return x.scale.astype(np.float32)[:, None] * values


def encode(weights):
    """The leaves of N blocks from FLOAT[N, 64]: a few rounds of k-means over each block, from evenly spaced values."""
    low, high = weights.min(axis=1, keepdims=True), weights.max(axis=1, keepdims=True)
    centres = low + (high - low) * np.linspace(0, 1, 8, dtype=np.float32)
    for _ in range(4):
        near = nearest(weights, centres)[:, :, None] == np.arange(8)
        sums, counts = (near * weights[:, :, None]).sum(axis=1), near.sum(axis=1)
        centres = np.where(counts > 0, sums / np.maximum(counts, 1), centres)
    scale = (np.abs(centres).max(axis=1) / 127).astype(np.float16)
    step = np.where(scale > 0, scale, 1).astype(np.float32)[:, None]
    table = np.rint(centres / step).clip(-128, 127).astype(np.int8)
    return {"scale": scale, "table": table, "codes": {"q": nearest(weights, step * table).astype(np.uint8)}}


def nearest(weights, centres):
    """The place of the nearest centre of its block, for each weight."""
    return np.abs(weights[:, :, None] - centres[:, None, :]).argmin(axis=2)


three_bit = Format("THREE_BIT", block, (64,), decode, encode)
