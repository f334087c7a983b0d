"""A llama's forward pass in plain NumPy over a whole sequence, its weights dequantized by the ``gguf`` package.

Formulas: RMS norm (Zhang and Sennrich 2019), rotary embedding (Su et al. 2021; interleaved pairs, as GGUF stores llama),
grouped causal attention (Ainslie et al. 2023), gated feed-forward with SiLU (Shazeer 2020), YaRN (Peng et al. 2023).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np

_ROWS = 256  # queries that attention takes at once, so that their scores stay in the processor's cache


class Llama:
    """A model in ``dtype`` (float32 is meant for long texts, float64 for small ones).

    ``cache`` is the type that K and V are rounded to before attention reads them; None leaves them as they are.
    """

    def __init__(self, path: Path | str, dtype: Any = np.float32, cache: Any = None, interleaved: bool = True) -> None:
        reader = gguf.GGUFReader(path)
        self.fields = reader.fields
        self.dtype, self.cache, self.interleaved = dtype, cache, interleaved
        self.weights = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(dtype) for t in reader.tensors}
        self.layers = self._key("block_count")
        self.heads = self._key("attention.head_count")
        self.kv_heads = self._key("attention.head_count_kv", self.heads)
        self.epsilon = self._key("attention.layer_norm_rms_epsilon")
        self.head = self._key("attention.key_length", self._key("embedding_length") // self.heads)
        self.rotary = self._key("rope.dimension_count", self.head)
        self.scale = self._key("attention.scale", self.head**-0.5)

    def _key(self, name: str, default: Any = None) -> Any:
        field = self.fields.get(f"llama.{name}")
        return default if field is None else field.contents()

    def logits(self, ids: np.ndarray, rows: slice = slice(None)) -> np.ndarray:
        """FLOAT[n, vocab]: logits after each of the n tokens of ``ids`` (those of ``rows``)."""
        return self.head_logits(self.hidden(ids)[rows])

    def hidden(self, ids: np.ndarray) -> np.ndarray:
        """FLOAT[n, hidden]: the last layer's output before the final norm."""
        x = self.weights["token_embd.weight"][np.asarray(ids)]
        for layer in range(self.layers):
            x = x + self._attention(self._norm(x, f"blk.{layer}.attn_norm"), f"blk.{layer}.")
            x = x + self._feed_forward(self._norm(x, f"blk.{layer}.ffn_norm"), f"blk.{layer}.")
        return x

    def head_logits(self, hidden: np.ndarray) -> np.ndarray:
        x = self._norm(hidden, "output_norm")
        return self._linear(x, "output" if "output.weight" in self.weights else "token_embd")

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        mean_square = np.mean(x.astype(np.float64) ** 2, -1, keepdims=True)
        return (x / np.sqrt(mean_square + self.epsilon)).astype(self.dtype) * self.weights[f"{name}.weight"]

    def _linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", self.dtype(0))

    def _feed_forward(self, x: np.ndarray, prefix: str) -> np.ndarray:
        gate = self._linear(x, f"{prefix}ffn_gate")
        gate = gate / (1 + np.exp(-gate))
        return self._linear(gate * self._linear(x, f"{prefix}ffn_up"), f"{prefix}ffn_down")

    def _attention(self, x: np.ndarray, prefix: str) -> np.ndarray:
        n = len(x)
        q, k, v = (self._linear(x, f"{prefix}attn_{name}") for name in "qkv")
        q = self._rotate(q.reshape(n, self.heads, -1))
        k = self._rotate(k.reshape(n, self.kv_heads, -1))
        v = v.reshape(n, self.kv_heads, -1)
        if self.cache is not None:
            k, v = k.astype(self.cache).astype(self.dtype), v.astype(self.cache).astype(self.dtype)
        out = np.empty((n, self.heads, v.shape[-1]), self.dtype)
        for start in range(0, n, _ROWS):
            rows = slice(start, min(start + _ROWS, n))
            future = np.arange(rows.stop) > np.arange(n)[rows, None]
            for head in range(self.heads):
                group = head * self.kv_heads // self.heads
                scores = q[rows, head] @ k[: rows.stop, group].T * self.dtype(self.scale)
                np.copyto(scores, -np.inf, where=future)
                scores = np.exp(scores - scores.max(-1, keepdims=True))
                out[rows, head] = scores @ v[: rows.stop, group] / scores.sum(-1, keepdims=True)
        return self._linear(out.reshape(n, -1), f"{prefix}attn_output")

    def _rotate(self, x: np.ndarray) -> np.ndarray:
        """FLOAT[n, heads, head], rotated by positions 0 … n-1."""
        frequency, gain = self._frequencies()
        turn = gain * np.exp(1j * np.arange(len(x))[:, None, None] * frequency)
        half = self.rotary // 2
        even, odd = (
            (slice(0, self.rotary, 2), slice(1, self.rotary, 2)) if self.interleaved else (slice(half), slice(half, 2 * half))
        )
        turned = (x[..., even] + 1j * x[..., odd]) * turn
        out = x.copy()
        out[..., even], out[..., odd] = turned.real, turned.imag
        return out

    def _frequencies(self) -> tuple[np.ndarray, float]:
        base = float(self._key("rope.freq_base", 10000.0))
        pairs = np.arange(self.rotary // 2)
        frequency = base ** (-2 * pairs / self.rotary)
        if "rope_freqs.weight" in self.weights:
            frequency = frequency / self.weights["rope_freqs.weight"]
        factor = self._key("rope.scaling.factor", self._key("rope.scale_linear", 1.0))
        kind = self._key("rope.scaling.type", "linear")
        if kind == "none":
            return frequency, 1.0
        if kind != "yarn":
            return frequency / factor, 1.0
        # Wavelengths that turn over 32 times within the original context stay; below one turn they are interpolated.
        context = self._key("rope.scaling.original_context_length")
        first, last = (self.rotary * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (32, 1))
        first, last = max(math.floor(first), 0), min(math.ceil(last), self.rotary - 1)
        interpolated = np.clip((pairs - first) / max(last - first, 0.001), 0, 1)
        return frequency * (1 - interpolated) + frequency / factor * interpolated, 0.1 * math.log(factor) + 1
