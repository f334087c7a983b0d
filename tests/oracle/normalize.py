"""Normalization, softmax and rotary embedding from their formulas, in float64."""

import numpy as np


def rms_norm(x: np.ndarray, scale: np.ndarray, epsilon: float) -> np.ndarray:
    x = x.astype(np.float64)
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon) * scale


def softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def rotary(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, interleaved: bool, rotary_dim: int) -> np.ndarray:
    """x [b, heads, n, head]; cos and sin [b, n, rotary_dim / 2]."""
    y = x.astype(np.float64)
    half = rotary_dim // 2
    first = slice(0, rotary_dim, 2) if interleaved else slice(0, half)
    second = slice(1, rotary_dim, 2) if interleaved else slice(half, rotary_dim)
    real, imaginary = y[..., first].copy(), y[..., second].copy()
    c, s = cos[:, None].astype(np.float64), sin[:, None].astype(np.float64)
    y[..., first] = c * real - s * imaginary
    y[..., second] = s * real + c * imaginary
    return y
