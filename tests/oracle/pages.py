"""Cache pages in float64: what each format's block stands for, and how far an encoder may be off."""

import numpy as np

INTEGER_LEVELS = {"INT8_PAGE": 255, "INT4_PAGE": 15, "INT2_PAGE": 3}


def half(x):
    return np.asarray(x, np.float64).clip(-65504, 65504).astype(np.float16).astype(np.float64)


def decoded(family, block, payload, size):
    """FLOAT64[rows, size] of rows written one after another, from the bytes alone."""
    data = np.frombuffer(payload, np.uint8)
    if family == "FP8_PAGE":
        rows = data.reshape(-1, size + 2)
        scale = rows[:, :2].copy().view(np.float16).astype(np.float64)
        return scale * e4m3(rows[:, 2:])
    width = {"INT8_PAGE": 8, "INT4_PAGE": 4, "INT2_PAGE": 2}[family]
    held = block * width // 8
    blocks = data.reshape(-1, 4 + held)
    scale, minimum = (blocks[:, i : i + 2].copy().view(np.float16).astype(np.float64) for i in (0, 2))
    parts = [(blocks[:, 4:] >> (width * part)) & (2**width - 1) for part in range(8 // width)]
    return (scale * np.concatenate(parts, axis=1) + minimum).reshape(-1, size)


def e4m3(codes):
    sign = np.where(codes & 0x80, -1.0, 1.0)
    exponent, fraction = (codes >> 3 & 15).astype(int), (codes & 7).astype(np.float64)
    value = np.where(exponent == 0, fraction * 2.0**-9, (8 + fraction) * 2.0 ** (exponent - 10.0))
    return np.where((codes & 0x7F) == 0x7F, np.nan, sign * value)


def largest_error(family, block, x):
    """FLOAT64[rows, size]: the bound on |decoded - x| that the format's own resolution gives."""
    x = np.asarray(x, np.float64)
    if family == "FP8_PAGE":
        largest = np.abs(x).max(axis=1, keepdims=True)
        # Half a unit in the last of 3 fraction bits, a subnormal's step, and the rounding of the scale to FLOAT16.
        scale = np.maximum(largest / 448, 2.0**-24)
        return np.abs(x) * (2.0**-4 + 2.0**-10) + scale * 2.0**-10 + largest * 2.0**-11 + 2.0**-15
    levels = INTEGER_LEVELS[family]
    blocks = x.reshape(-1, block)
    low, high = blocks.min(axis=1, keepdims=True), blocks.max(axis=1, keepdims=True)
    m = half(low)
    d = np.maximum(half((high - m) / levels), 0)
    # Half a step, and what rounding the scale loses over all levels; a scale too small for FLOAT16 loses everything.
    bound = d / 2 + np.abs((high - m) - levels * d) + np.abs(low - m) + 1e-6 * np.abs(blocks).max(axis=1, keepdims=True)
    return np.broadcast_to(bound, blocks.shape).reshape(x.shape) + 1e-12
