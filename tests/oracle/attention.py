"""ONNX Attention (opset 23 and 24) over 4-D tensors, one query at a time, in float64."""

import numpy as np


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    mask: np.ndarray | None = None,
    lengths: np.ndarray | None = None,
    causal: bool = False,
    window: int = -1,
    scale: float = 1.0,
    softcap: float = 0.0,
) -> np.ndarray:
    """q [b, H, n, head], k [b, KV, capacity, head], v [b, KV, capacity, value], mask [b, H, n, total]."""
    batch, heads, n, _ = q.shape
    kv_heads, capacity = k.shape[1:3]
    y = np.zeros((batch, heads, n, v.shape[3]))
    for b, h, i in np.ndindex(batch, heads, n):
        valid = capacity if lengths is None else min(max(int(lengths[b]), 0), capacity)
        place = i + (0 if lengths is None else valid - n)
        kv = h // (heads // kv_heads)
        seen = np.arange(valid)
        if causal:
            seen = seen[seen <= place]
        if window >= 0:
            seen = seen[seen >= place - window]
        bias = np.zeros(seen.size)
        if mask is not None:
            seen = seen[seen < mask.shape[3]]
            bias = mask[b, h, i, seen]
            if mask.dtype == np.bool_:
                bias = np.where(bias, 0.0, -np.inf)
        seen, bias = seen[bias != -np.inf], bias[bias != -np.inf]
        if seen.size == 0:
            continue
        scores = k[b, kv, seen].astype(np.float64) @ q[b, h, i].astype(np.float64) * scale
        if softcap > 0:
            scores = softcap * np.tanh(scores / softcap)
        weights = np.exp(scores + bias - np.max(scores + bias))
        y[b, h, i] = weights / weights.sum() @ v[b, kv, seen].astype(np.float64)
    return y
