"""How well a model predicts a text with its cache kept in given formats, and how far that is from a FLOAT16 cache."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from tenonnx.cache import PagedCache, Policy, Uniform
from tenonnx.errors import OptionError, UnsupportedError
from tenonnx.text.loading import TextModel
from tenonnx.text.registry import Progress, silent

BATCH = 32  # tokens of one run: what a policy does between runs follows the text closely


@dataclass(frozen=True)
class Perplexity:
    """Figures over the same tokens, each predicted from all before it; sizes in bytes at the end of the text."""

    tokens: int
    perplexity: float  # exp of the mean negative log-probability of the next token
    f16_perplexity: float
    kl: float  # mean KL divergence of the distributions from those of the F16 cache, in nats
    cache_bytes: int
    f16_bytes: int
    cache_bytes_by_format: dict[str, int]
    tokens_per_s: float

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def perplexity(
    model: TextModel,
    text: str,
    policy: Policy | tuple[Policy, Policy],
    *,
    tokens: int = 2000,
    batch: int = BATCH,
    progress: Progress = silent,
) -> Perplexity:
    """The figures of ``policy`` over the first ``tokens`` tokens of ``text``.

    ``model`` must have paged caches; ``progress`` is told the tokens read. Raises ``OptionError`` for a text
    of fewer than 2 tokens.
    """
    ids = model.tokenizer.encode_prompt(text[: 16 * tokens])[:tokens]
    if len(ids) < 2 or batch < 1:
        raise OptionError(
            f"{len(ids)} tokens of text in batches of {batch}; expected at least 2 tokens, and batches of 1 or more"
        )
    caches = [_cache(model, len(ids), chosen) for chosen in (policy, Uniform("F16"))]
    losses: list[list[np.ndarray]] = [[], []]
    divergences: list[np.ndarray] = []
    taken = 0.0
    for start in range(0, len(ids), batch):
        part = ids[start : start + batch]
        following = ids[start + 1 : start + batch + 1]
        found = []
        for place, cache in enumerate(caches):
            began = time.perf_counter()
            logits = _logits(model, cache, part)
            taken += time.perf_counter() - began if place == 0 else 0
            found.append(_log_softmax(logits))
            losses[place].append(-found[-1][np.arange(len(following)), following])
        progress("read", start + len(part), len(ids))
        divergences.append((np.exp(found[1]) * (found[1] - found[0])).sum(-1))
    mean = [float(np.concatenate(parts).mean()) for parts in losses]
    return Perplexity(
        tokens=len(ids),
        perplexity=float(np.exp(mean[0])),
        f16_perplexity=float(np.exp(mean[1])),
        kl=float(np.concatenate(divergences).mean()),
        cache_bytes=caches[0].nbytes,
        f16_bytes=caches[1].nbytes,
        cache_bytes_by_format=caches[0].cache_bytes_by_format(),
        tokens_per_s=len(ids) / taken,
    )


def _cache(model: TextModel, capacity: int, policy: Policy | tuple[Policy, Policy]) -> PagedCache:
    cache = model.session.new_cache(context=capacity, policy=policy)
    if not isinstance(cache, PagedCache):
        raise UnsupportedError("the model has dense caches; convert it with --paged")
    return cache


def _logits(model: TextModel, cache: PagedCache, tokens: list[int]) -> np.ndarray:
    """FLOAT[n, vocab] after each token."""
    names, position = model.names, cache.length
    feeds = {
        names.input_ids: np.array([tokens], np.int64),
        names.position_ids: np.arange(position, position + len(tokens), dtype=np.int64)[None],
        names.logit_rows: np.arange(len(tokens), dtype=np.int64),
    }
    logits: np.ndarray = model.session.run(feeds, cache=cache)[names.logits][0]
    return logits


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
