"""Float64 truths of the packed-matrix kernels, from their formulas; weights decoded by the `gguf` package."""

import gguf
import numpy as np

QUANTIZED_BLOCK = 32


def dequantize(blocks: np.ndarray, format_name: str) -> np.ndarray:
    """Row-major GGUF bytes [N, row bytes] as FLOAT [N, K]."""
    return gguf.dequantize(blocks, gguf.GGMLQuantizationType[format_name])


def quantized_rows(row_bytes: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Splits rows [M, K + K/2] into codes INT8 [M, K], scales and sums FLOAT [M, K/32], and halves' sums FLOAT [M, K/16]."""
    blocks = k // QUANTIZED_BLOCK
    codes, rest = row_bytes[:, :k].view(np.int8), np.ascontiguousarray(row_bytes[:, k:]).view(np.float32)
    return codes, rest[:, :blocks], rest[:, blocks : 2 * blocks], rest[:, 2 * blocks :]


def dequantized_rows(row_bytes: np.ndarray, k: int) -> np.ndarray:
    """The activations that quantized rows stand for: code * scale, DOUBLE [M, K]."""
    codes, scales, *_ = quantized_rows(row_bytes, k)
    return codes.astype(np.float64) * np.repeat(scales.astype(np.float64), QUANTIZED_BLOCK, axis=1)


def matmul(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """x [M, K] times the transposed weights [N, K], in DOUBLE."""
    return x.astype(np.float64) @ weights.astype(np.float64).T


def magnitude(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Sum of |x| * |w| [M, N]: rounding errors of a product are relative to it."""
    return matmul(np.abs(x), np.abs(weights))
