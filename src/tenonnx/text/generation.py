"""The generation loop: the prompt in batches through the caches, then one token at a time."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Unpack

import numpy as np

from tenonnx.cache import PagedCache, Policy, saved_note
from tenonnx.errors import CapacityError, OptionError, PayloadError
from tenonnx.text.decoding import StopStrings, StreamDecoder
from tenonnx.text.loading import TextModel, load_model
from tenonnx.text.sampling import PENALTY_WINDOW, Sampler, Sampling, SamplingOptions

BATCH = 512  # tokens of a prompt that one run takes

FinishReason = Literal["eos", "stop", "length", "context", "interrupted"]


@dataclass(frozen=True)
class Generation:
    """What a model wrote, and at what cost; speeds in tokens per second, sizes in bytes, times in seconds."""

    text: str  # without the prompt, special tokens and the stop string
    token_ids: list[int]  # as drawn, an end-of-sequence token included
    prompt_tokens: int
    generated_tokens: int
    prompt_tokens_per_s: float  # over the prompt's tokens that were run, not those the caches held already
    decode_tokens_per_s: float  # over the steps after the first token; 0 where there was none
    cache_bytes: int  # held by the caches, for their whole capacity
    extra_cache_bytes: int  # allocated for caches while generating; 0 unless the storage contract is broken
    load_s: float
    first_token_s: float
    finish_reason: FinishReason
    seed: int
    cache_bytes_by_format: dict[str, int] = dataclasses.field(default_factory=dict)  # of paged caches

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class Context:
    """The caches of one text, and the tokens whose keys and values they hold."""

    def __init__(self, model: TextModel, capacity: int, policy: Policy | str | None = None) -> None:
        """Caches for ``capacity`` tokens, allocated now or, in pages whose formats ``policy`` chooses, as tokens come.

        Raises ``CapacityError`` when the model or the memory does not admit as many.
        """
        longest = model.context_length
        if capacity < 1:
            raise OptionError(f"context is {capacity}; expected at least 1 token")
        if longest is not None and capacity > longest:
            raise CapacityError(
                f"a context of {capacity} tokens is over the {longest} that the model was trained for; ask for at most {longest}"
            )
        self._session = model.session
        self._names = model.names
        self.cache = model.session.new_cache(context=capacity, policy=policy)
        self._tokens: list[int] = []
        self._out: dict[str, np.ndarray] = {}
        self._ids = np.empty((1, 0), np.int64)  # kept for runs of as many tokens: what lies where it lay is not bound again
        # As long as the caches, though only the valid length counts: no input's shape changes from token to token.
        self._mask = np.ones((1, capacity), np.int64)

    @property
    def tokens(self) -> list[int]:
        """The tokens in the caches. The caches' length decides: a run that failed or was interrupted never counts."""
        return self._tokens[: self.cache.length]

    @property
    def full(self) -> bool:
        return bool(self.cache.length >= self.cache.capacity)

    def reuse(self, tokens: Sequence[int]) -> int:
        """Keep what the caches share with the start of ``tokens``, forget the rest; return how many of ``tokens`` are kept.

        The last token is never kept: it has to run for the logits after it.
        """
        limit = min(self.cache.length, len(self._tokens), len(tokens) - 1)
        kept = next((i for i in range(limit) if self._tokens[i] != tokens[i]), limit)
        self.cache.truncate(kept)
        return kept

    def save(self, path: str | os.PathLike[str], note: Mapping[str, Any]) -> None:
        """Write the caches to a file, and beside them their tokens and what JSON holds of ``note``."""
        self.cache.save(path, {**note, "tokens": self.tokens})

    def load(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Replace the caches' content by that of a file of ``save``, and return its note.

        Raises ``PayloadError`` for another file, or one with more tokens than fit; the caches are as they were then.
        """
        note = saved_note(path)
        tokens = note.get("tokens") if isinstance(note, dict) else None
        if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
            raise PayloadError(f"{path}: holds a cache, but not the tokens that it is of; save it with Conversation.save")
        self.cache.load(path)
        self._tokens = tokens
        return note

    def run(self, tokens: Sequence[int]) -> np.ndarray:
        """Append ``tokens`` and return FLOAT[vocab], the logits after the last one, valid until the next run.

        Raises ``CapacityError`` before anything is written when they do not fit.
        """
        if len(tokens) > self.cache.capacity - self.cache.length:
            raise CapacityError(
                f"{len(tokens)} more tokens do not fit: the context holds {self.cache.capacity}, of which "
                f"{self.cache.length} are taken; shorten the prompt or give a larger context"
            )
        self._tokens = self.tokens
        for start in range(0, len(tokens), BATCH):
            self._run_batch(tokens[start : start + BATCH])
        return self._out[self._names.logits][0, -1]

    def _run_batch(self, tokens: Sequence[int]) -> None:
        position, count = self.cache.length, len(tokens)
        if self._ids.shape[1] != count:
            self._ids = np.empty((1, count), np.int64)
        self._ids[0] = tokens
        feeds = {
            "input_ids": self._ids,
            "position_ids": np.arange(position, position + count, dtype=np.int64)[None],
            "logit_rows": np.array([count - 1], np.int64),
            "attention_mask": self._mask,
        }
        named = {name: feeds[role] for role in feeds if (name := getattr(self._names, role))}
        self._tokens.extend(tokens)
        # The array of an earlier run takes the logits where it has as many rows: always, where a run gives one row alone.
        rows = 1 if self._names.logit_rows else count
        out = self._out if self._out and self._out[self._names.logits].shape[1] == rows else {}
        result = self._session.run(named, out=out or None, cache=self.cache)
        self._out = {self._names.logits: result[self._names.logits]}


class TextStream(Iterator[str]):
    """Text in pieces as the model writes it; ``generation`` tells the figures so far, and of all once it is exhausted."""

    def __init__(
        self,
        model: TextModel,
        context: Context,
        prompt: Sequence[int],
        *,
        max_tokens: int | None,
        stop: Sequence[str] = (),
        sampling: Sampling | None = None,
    ) -> None:
        if max_tokens is not None and max_tokens < 0:
            raise OptionError(f"max_tokens is {max_tokens}; expected 0 or more")
        self._model, self._context, self._prompt, self._max_tokens = model, context, list(prompt), max_tokens
        self._stops = StopStrings([stop] if isinstance(stop, str) else stop)
        self._sampler = Sampler(sampling)
        self._token_ids: list[int] = []
        self._text: list[str] = []
        self._finish_reason: FinishReason = "interrupted"
        self._prompt_run = 0
        self._prompt_s = self._decode_s = self._first_token_s = 0.0
        self._allocated_before = model.cache_bytes_allocated()
        self._pieces = self._write()

    def __next__(self) -> str:
        return next(self._pieces)

    @property
    def generation(self) -> Generation:
        """What was written so far; its finish reason is "interrupted" until the stream is exhausted."""
        steps, cache = max(0, len(self._token_ids) - 1), self._context.cache
        return Generation(
            text="".join(self._text),
            token_ids=list(self._token_ids),
            prompt_tokens=len(self._prompt),
            generated_tokens=len(self._token_ids),
            prompt_tokens_per_s=self._prompt_run / self._prompt_s if self._prompt_s else 0.0,
            decode_tokens_per_s=steps / self._decode_s if self._decode_s else 0.0,
            cache_bytes=int(cache.nbytes),
            extra_cache_bytes=self._model.cache_bytes_allocated() - self._allocated_before,
            load_s=self._model.load_s,
            first_token_s=self._first_token_s,
            finish_reason=self._finish_reason,
            seed=self._sampler.seed,
            cache_bytes_by_format=cache.cache_bytes_by_format() if isinstance(cache, PagedCache) else {},
        )

    def _write(self) -> Iterator[str]:
        decoder = StreamDecoder(self._model.tokenizer, self._prompt)
        for token in self._draw():
            yield from self._emit(self._stops.push(decoder.push(token)))
            if self._stops.found:
                self._finish_reason = "stop"
                return
        yield from self._emit(self._stops.push(decoder.finish()))
        yield from self._emit(self._stops.finish())

    def _emit(self, piece: str) -> Iterator[str]:
        if piece:
            self._text.append(piece)
            yield piece

    def _draw(self) -> Iterator[int]:
        """Token ids but the end-of-sequence token, until the model ends, or the caches or ``max_tokens`` do."""
        start = time.perf_counter()
        kept = self._context.reuse(self._prompt)
        logits = self._context.run(self._prompt[kept:])
        self._prompt_run = len(self._prompt) - kept
        self._prompt_s = time.perf_counter() - start
        while self._max_tokens is None or len(self._token_ids) < self._max_tokens:
            recent = self._prompt[-PENALTY_WINDOW:] + self._token_ids[-PENALTY_WINDOW:]
            token = self._sampler(logits, recent)
            self._token_ids.append(token)
            self._first_token_s = self._first_token_s or time.perf_counter() - start
            if token in self._model.tokenizer.eos:
                self._finish_reason = "eos"
                return
            yield token
            if len(self._token_ids) == self._max_tokens:
                break
            if self._context.full:
                self._finish_reason = "context"
                return
            step = time.perf_counter()
            logits = self._context.run([token])
            self._decode_s += time.perf_counter() - step
        self._finish_reason = "length"


def stream(
    model: TextModel | str | os.PathLike[str],
    prompt: str,
    *,
    max_tokens: int | None = 128,
    system: str | None = None,
    stop: Sequence[str] = (),
    context: int | None = None,
    threads: int | Literal["auto"] = "auto",
    kv: Policy | str | None = None,
    **sampling: Unpack[SamplingOptions],
) -> TextStream:
    """Continue ``prompt``; iterate over the result for the text as it is made.

    model: from ``load_model``, or what it takes. max_tokens: None writes until the model or the context ends.
    system: given, the prompt becomes a user's message after this system message, in the model's chat template.
    stop: strings before which the text ends. context: tokens that the caches hold, prompt included; by default prompt +
    max_tokens, at most what the model was trained for.
    kv: the policy of caches in pages. sampling: fields of ``Sampling``, with its defaults.
    """
    options = Sampling(**sampling)
    if not isinstance(model, TextModel):
        model = load_model(model, threads=threads, paged=kv is not None)
    tokenizer = model.tokenizer
    if system is None:
        tokens = tokenizer.encode_prompt(prompt)
    else:
        tokens = tokenizer.encode_messages([{"role": "system", "content": system}, {"role": "user", "content": prompt}])
    capacity = _default_context(model, len(tokens), max_tokens) if context is None else context
    return TextStream(model, Context(model, capacity, kv), tokens, max_tokens=max_tokens, stop=stop, sampling=options)


def _default_context(model: TextModel, prompt: int, max_tokens: int | None) -> int:
    longest = model.context_length
    if max_tokens is not None:
        wanted = prompt + max(0, max_tokens)
        return wanted if longest is None else min(wanted, longest)
    if longest is None:
        raise OptionError("the model does not say how many tokens it was trained for; give max_tokens or context")
    return longest


def generate(model: TextModel | str | os.PathLike[str], prompt: str, **options: Any) -> Generation:
    """The whole continuation of ``prompt``, with its figures; the options are those of ``stream``."""
    pieces = stream(model, prompt, **options)
    for _ in pieces:
        pass
    return pieces.generation
