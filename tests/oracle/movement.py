"""Casts, gathers and cache updates, element by element."""

import math

import numpy as np


def cast(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """ONNX Cast; a real number out of an integer's range (undefined there) saturates, NaN is 0."""
    target = np.dtype(dtype)
    if target == np.bool_:
        return x != 0
    if np.issubdtype(target, np.integer) and not np.issubdtype(x.dtype, np.integer) and x.dtype != np.bool_:
        limits = np.iinfo(target)
        return np.array([_truncate(float(v), limits) for v in x.ravel()], target).reshape(x.shape)
    if target.itemsize == 2 and not np.issubdtype(target, np.integer):
        x = x.astype(np.float32)
    return x.astype(target)


def _truncate(value: float, limits: np.iinfo) -> int:
    if math.isnan(value):
        return 0
    if math.isinf(value):
        return limits.max if value > 0 else limits.min
    return min(max(int(value), limits.min), limits.max)


def cache_update(cache: np.ndarray, values: np.ndarray, position: np.ndarray, axis: int, batch_axis: int) -> np.ndarray:
    """Rows of the batch whose window does not fit are left as they are."""
    updated, n = cache.copy(), values.shape[axis]
    for row in range(cache.shape[batch_axis]):
        at = int(position if position.ndim == 0 else position[row])
        if at < 0 or at + n > cache.shape[axis]:
            continue
        window = [slice(None)] * cache.ndim
        window[batch_axis] = slice(row, row + 1)
        source = tuple(window)
        window[axis] = slice(at, at + n)
        updated[tuple(window)] = cast(values[source], cache.dtype)
    return updated
