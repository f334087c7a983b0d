"""A decoder that is a formula, and two small tokenizers: what the text tests run on instead of a real model."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from tenonnx import text

SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
BOS, EOS = 0, 1
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _with_special(tokenizer: Tokenizer) -> str:
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return tokenizer.to_str()


def byte_level() -> str:
    """A tokenizer.json of GPT-2's kind: every byte a token, and merges that end inside of characters."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "e"), ("l", "l"), ("Ġ", "t"), ("Ġt", "he"), ("ð", "Ł"), ("â", "Ĥ")]
    tokens = [*SPECIAL, *alphabet, *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _with_special(tokenizer)


def sentencepiece() -> str:
    """A tokenizer.json of Llama 2's kind: spaces as a letter, one dropped in front, bytes where a character is missing."""
    words = ["▁", "▁t", "he", "▁the", "l", "ll", "h", "e", "t", "o", "!", "\n"]
    tokens = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    merges = [("h", "e"), ("l", "l"), ("▁", "t"), ("▁t", "he")]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges, byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    strip = decoders.Strip(content=" ", left=1, right=0)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip])
    return _with_special(tokenizer)


def metadata(definition: str, **special: object) -> dict[str, str]:
    return {
        "tenonnx.tokenizer": definition,
        "tenonnx.special_tokens": json.dumps({"bos": BOS, "eos": [EOS, 3], "add_bos": True, **special}),
        "tenonnx.chat_template": CHAT_TEMPLATE,
        "tenonnx.context_length": "512",
    }


class FakeCache:
    """Keeps the tokens themselves where a real cache keeps their keys and values."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.length = capacity, 0
        self.tokens = np.full(capacity, -1, np.int64)
        self.nbytes = self.tokens.nbytes

    def truncate(self, length: int) -> None:
        assert 0 <= length <= self.length
        self.length = length


class FakeSession:
    """Draws what ``following`` says comes after all tokens in the cache; records the feeds of every run."""

    def __init__(self, following: Callable[[list[int]], int], vocab: int = 300) -> None:
        self.following, self.vocab, self.feeds = following, vocab, []

    def new_cache(self, context: int, policy: object = None) -> FakeCache:
        return FakeCache(context)

    def run(self, feeds: dict, out: dict | None = None, cache: FakeCache | None = None) -> dict:
        ids, positions = feeds["input_ids"][0], feeds["position_ids"][0]
        count = ids.size
        assert feeds["input_ids"].dtype == positions.dtype == feeds["logit_rows"].dtype == np.int64
        assert list(positions) == list(range(cache.length, cache.length + count)) and feeds["logit_rows"].tolist() == [count - 1]
        cache.tokens[cache.length : cache.length + count] = ids
        cache.length += count
        self.feeds.append(ids.tolist())
        logits = out["logits"] if out else np.empty((1, 1, self.vocab), np.float32)
        logits[...] = -10
        logits[0, 0, self.following(cache.tokens[: cache.length].tolist())] = 10
        return {"logits": logits}


def scripted(tokens: Sequence[int], prompt: int) -> Callable[[list[int]], int]:
    """Draws ``tokens`` in turn after a prompt of that length, then end-of-sequence."""
    return lambda cached: [*tokens, EOS][len(cached) - prompt]


def model(
    following: Callable[[list[int]], int], definition: str | None = None, context_length: int | None = 2048, **special: object
):
    tokenizer = text.Tokenizer.from_metadata(metadata(definition or byte_level(), **special))
    return text.TextModel(FakeSession(following), tokenizer, context_length, 0.25, cache_bytes_allocated=lambda: 0)


def writer(written: str, prompt: str, definition: str | None = None):
    """A model that continues ``prompt`` with ``written``."""
    definition = definition or byte_level()
    tokenizer = text.Tokenizer.from_metadata(metadata(definition))
    tokens = tokenizer.encode(prompt)
    return model(scripted(tokenizer.encode(prompt + written)[len(tokens) :], len(tokens)), definition)
