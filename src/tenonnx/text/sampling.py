"""Choosing the next token from one row of logits.

The filters run in this order, each on what the one before left: repeat penalty, top-k, top-p, min-p, temperature, draw. As in
llama.cpp, top-p and min-p look at the probabilities before the temperature, so that it does not change which tokens may be drawn.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypedDict

import numpy as np

from tenonnx.errors import OptionError, TenonnxError

PENALTY_WINDOW = 64  # tokens that the repeat penalty looks back over
_FIRST_HEAD = 1024  # most probable tokens sorted first, when top-p has to search the whole vocabulary


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; ``OptionError`` for a value outside its range."""

    temperature: float = 0.8  # 0 always takes the most probable token
    top_k: int = 40  # keep the k most probable; 0 keeps all
    top_p: float = 0.95  # keep the most probable that together reach this probability; 1 keeps all
    min_p: float = 0.05  # keep those of at least this share of the greatest probability; 0 keeps all
    repeat_penalty: float = 1.0  # weakens the logits of recent tokens; 1 leaves them
    seed: int | None = None  # None: another one each time

    def __post_init__(self) -> None:
        self._expect("temperature", self.temperature, 0 <= self.temperature < math.inf, "0 or more")
        self._expect("top_k", self.top_k, self.top_k >= 0, "0 or more")
        self._expect("top_p", self.top_p, 0 < self.top_p <= 1, "over 0 and at most 1")
        self._expect("min_p", self.min_p, 0 <= self.min_p <= 1, "from 0 to 1")
        self._expect("repeat_penalty", self.repeat_penalty, 0 < self.repeat_penalty < math.inf, "over 0")
        self._expect("seed", self.seed, self.seed is None or self.seed >= 0, "0 or more")

    @staticmethod
    def _expect(option: str, value: float | None, valid: bool, expected: str) -> None:
        if not valid:
            raise OptionError(f"{option} is {value}; expected {expected}")


class SamplingOptions(TypedDict, total=False):
    """The fields of ``Sampling``, as keywords of the functions that draw tokens."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    seed: int | None


class Sampler:
    """Draws tokens; the same options, seed and logits draw the same tokens."""

    def __init__(self, options: Sampling | None = None) -> None:
        self.options = options or Sampling()
        self.seed = secrets.randbits(32) if self.options.seed is None else self.options.seed

    @cached_property
    def _generator(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)

    def __call__(self, logits: np.ndarray, recent: Sequence[int] = ()) -> int:
        """The next token's id, from FLOAT[vocab] ``logits`` and the tokens so far (for the repeat penalty)."""
        options = self.options
        if options.repeat_penalty != 1 and len(recent):
            logits = _penalized(logits, recent[-PENALTY_WINDOW:], options.repeat_penalty)
        best = int(np.argmax(logits))
        if not math.isfinite(logits[best]):
            raise TenonnxError(
                f"the greatest of {logits.size} logits is {logits[best]}; the model's weights or inputs are broken"
            )
        if options.temperature == 0 or options.top_k == 1:
            return best
        tokens = _most_probable(logits, options)
        with np.errstate(over="ignore"):  # a temperature near 0 sends all but the best to -inf, as it should
            scaled = (logits[tokens] - logits[best]).astype(np.float64) / options.temperature
        reached = np.cumsum(np.exp(scaled))
        drawn = np.searchsorted(reached, self._generator.random() * reached[-1], side="right")
        return int(tokens[min(drawn, tokens.size - 1)])


def _penalized(logits: np.ndarray, recent: Sequence[int], penalty: float) -> np.ndarray:
    tokens = np.unique(np.asarray(recent, np.int64))
    tokens = tokens[(tokens >= 0) & (tokens < logits.size)]
    changed = logits.copy()
    values = logits[tokens]
    changed[tokens] = np.where(values > 0, values / penalty, values * penalty)
    return changed


def _descending(logits: np.ndarray, count: int) -> np.ndarray:
    """The ids of the ``count`` greatest logits, greatest first; equal ones by id, whatever the host's sort does."""
    if count >= logits.size:
        return np.argsort(-logits, kind="stable")
    threshold = np.partition(logits, logits.size - count)[logits.size - count]
    tokens = np.flatnonzero(logits >= threshold)
    return tokens[np.argsort(-logits[tokens], kind="stable")[:count]]


def _most_probable(logits: np.ndarray, options: Sampling) -> np.ndarray:
    """The ids that top-k, top-p and min-p leave: at least one."""
    if options.top_k:
        tokens = _descending(logits, options.top_k)
        weights = _weights(logits, tokens)
        return tokens[: _kept(weights, float(weights.sum()), options)]
    weights = _weights(logits, slice(None))
    if options.top_p == 1:
        return np.flatnonzero(weights >= options.min_p)
    total = float(weights.sum())
    count = _FIRST_HEAD
    while True:  # sorting a whole vocabulary costs more than a step of a small model: look at its head first
        tokens = _descending(logits, count)
        kept = _kept(_weights(logits, tokens), total, options)
        if kept < tokens.size or tokens.size == logits.size:
            return tokens[:kept]
        count *= 8


def _weights(logits: np.ndarray, tokens: np.ndarray | slice) -> np.ndarray:
    """Probabilities of ``tokens`` up to a common factor; the greatest is 1."""
    return np.exp(logits[tokens] - logits.max())


def _kept(weights: np.ndarray, total: float, options: Sampling) -> int:
    """How many of the descending ``weights`` top-p and min-p keep."""
    kept = int(weights.size)
    if options.top_p < 1:
        reached = np.cumsum(weights, dtype=np.float64)
        kept = min(kept, int(np.searchsorted(reached, options.top_p * total)) + 1)
    return max(1, min(kept, int(np.count_nonzero(weights >= options.min_p))))
