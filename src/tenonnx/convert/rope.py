"""Rotary position embedding: every kind of scaling folded into one constant per rotated pair.

The angle of pair i at position p is ``p * inv_freq[i]`` with ``inv_freq[i] = base ** (-2i / rotary)`` (Su et al. 2021,
arXiv 2104.09864). Linear scaling divides it (arXiv 2306.15595); the rope_freqs tensor divides each pair by its own factor
(Llama 3.1); YaRN (arXiv 2309.00071) blends scaled and unscaled frequencies and multiplies cosine and sine by a gain.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tenonnx.convert.metadata import Metadata
from tenonnx.errors import PayloadError, UnsupportedError

_BASE = 10_000.0
_BETA_FAST, _BETA_SLOW = 32.0, 1.0  # rotations over the original context that bound YaRN's blend


class Rotation(NamedTuple):
    """FLOAT[rotary / 2] angles per position, and what cosine and sine are multiplied by."""

    inv_freq: np.ndarray
    gain: float


def _scale(metadata: Metadata, prefix: str) -> tuple[str, float]:
    """Kind of scaling and the factor by which the context was stretched; 1 for none."""
    legacy = metadata.number(f"{prefix}.rope.scale_linear", 0.0)
    factor = metadata.number(f"{prefix}.rope.scaling.factor", legacy)
    kind = metadata.text(f"{prefix}.rope.scaling.type", "linear")
    if kind not in ("none", "linear", "yarn"):
        raise UnsupportedError(f"{metadata.path}: rope scaling of type {kind!r}; this version converts none, linear and yarn")
    if not math.isfinite(factor) or factor < 0:
        raise PayloadError(f"{metadata.path}: the rope scaling factor is {factor}; expected a positive number")
    return kind, factor if factor and kind != "none" else 1.0


def _yarn_ramp(base: float, rotary: int, context: int, fast: float, slow: float) -> np.ndarray:
    """FLOAT64[rotary / 2]: 1 where a pair keeps its frequency, 0 where it is scaled, linear between."""

    def pair_of(rotations: float) -> float:
        return rotary * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low = max(0, math.floor(pair_of(fast)))
    high = min(rotary - 1, math.ceil(pair_of(slow)))
    ramp = (np.arange(rotary // 2) - low) / max(0.001, high - low)
    return 1 - np.clip(ramp, 0, 1)


def _base(metadata: Metadata, key: str, default: float) -> float:
    base = metadata.number(key, default)
    if not math.isfinite(base) or base <= 1:
        raise PayloadError(f"{metadata.path}: the rope base is {base}; expected a number above 1")
    return base


def _inv_freq(base: float, rotary: int) -> np.ndarray:
    inv_freq: np.ndarray = base ** -(np.arange(0, rotary, 2) / rotary)
    return inv_freq


def windowed_rotation(metadata: Metadata, prefix: str, rotary: int, base: float) -> Rotation:
    """The rotation of layers that see a window: never scaled, by a base of their own (``base`` unless metadata has another)."""
    return Rotation(_inv_freq(_base(metadata, f"{prefix}.rope.freq_base_swa", base), rotary).astype(np.float32), 1.0)


def rotation(metadata: Metadata, prefix: str, rotary: int, context_length: int, factors: np.ndarray | None) -> Rotation:
    """The rotation that a model's metadata (``prefix``.rope.*) and its rope_freqs ``factors`` describe."""
    base = _base(metadata, f"{prefix}.rope.freq_base", _BASE)
    kind, factor = _scale(metadata, prefix)
    inv_freq = _inv_freq(base, rotary)
    if factors is not None:
        if not (np.isfinite(factors) & (factors > 0)).all():
            raise PayloadError(f"{metadata.path}: tensor 'rope_freqs.weight' holds a factor that is not positive; fetch it again")
        inv_freq = inv_freq / factors
    gain = metadata.number(f"{prefix}.rope.scaling.attn_factor", 1.0)
    if kind == "yarn":
        context = metadata.integer(f"{prefix}.rope.scaling.original_context_length", context_length)
        fast = metadata.number(f"{prefix}.rope.scaling.yarn_beta_fast", _BETA_FAST)
        slow = metadata.number(f"{prefix}.rope.scaling.yarn_beta_slow", _BETA_SLOW)
        if context <= 0 or not (0 < fast < math.inf and 0 < slow < math.inf):
            raise PayloadError(f"{metadata.path}: YaRN over a context of {context}, beta {fast} and {slow}; expected positive")
        kept = _yarn_ramp(base, rotary, context, fast, slow)
        inv_freq = inv_freq * (kept + (1 - kept) / factor)
        gain *= 1 + 0.1 * math.log(factor) if factor > 1 else 1
    else:
        inv_freq = inv_freq / factor
    if inv_freq.max() > np.finfo(np.float32).max or not 0 < gain < math.inf:
        raise PayloadError(f"{metadata.path}: rope turns by up to {inv_freq.max()} a position with gain {gain}; expected less")
    return Rotation(inv_freq.astype(np.float32), gain)
