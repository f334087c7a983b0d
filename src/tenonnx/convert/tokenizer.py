"""A tokenizer.json from the vocabulary of a GGUF file: byte-level BPE ("gpt2") and SentencePiece's BPE ("llama").

The tokenizer adds no BOS or EOS of its own; whether a prompt begins with one is said by the special tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tenonnx.convert.metadata import Metadata
from tenonnx.convert.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from tenonnx.errors import PayloadError, UnsupportedError

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # token types of GGUF that text is searched for before anything else
# Control tokens by which chat models end their turn, beside those that the metadata names.
_END_OF_TURN = {
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<EOT>",
    "<｜end▁of▁sentence｜>",  # noqa: RUF001
}
_SPACE = "\u2581"  # how SentencePiece writes a space


class Vocabulary(NamedTuple):
    """Texts of the tokens by id, their types, and the model ("gpt2" or "llama") they belong to."""

    model: str
    texts: list[str]
    kinds: np.ndarray

    def ids_of_kind(self, *kinds: int) -> Iterable[int]:
        return map(int, np.flatnonzero(np.isin(self.kinds, kinds)))


def vocabulary(metadata: Metadata) -> Vocabulary | None:
    """The vocabulary of a GGUF file, or None when it has none."""
    model = metadata.text("tokenizer.ggml.model", "none")
    if model in ("none", "no_vocab"):
        return None
    if model not in ("gpt2", "llama"):
        raise UnsupportedError(f"{metadata.path}: its tokenizer is of model {model!r}; this version converts gpt2 and llama")
    texts = [text or f"[EMPTY_{number}]" for number, text in enumerate(metadata.texts("tokenizer.ggml.tokens"))]
    kinds = np.ones(len(texts), np.int32)
    if "tokenizer.ggml.token_type" in metadata:
        kinds = metadata.numbers("tokenizer.ggml.token_type")
    if not texts or len(kinds) != len(texts):
        raise PayloadError(f"{metadata.path}: has {len(texts)} tokens and {len(kinds)} token types; expected as many of each")
    return Vocabulary(model, texts, kinds)


def special_tokens(metadata: Metadata, vocabulary: Vocabulary) -> dict[str, Any]:
    """Ids with a role: bos, unk, pad (or None) and eos (all that end a generation, the model's own first); add_bos, add_eos."""
    sentencepiece = vocabulary.model == "llama"

    def identity(key: str, default: int | None) -> int | None:
        key = f"tokenizer.ggml.{key}_token_id"
        if key not in metadata:
            return default
        number = metadata.integer(key)
        if not 0 <= number < len(vocabulary.texts):
            raise PayloadError(f"{metadata.path}: {key} is {number}, but there are {len(vocabulary.texts)} tokens")
        return number

    # What files leave out stands at the places where SentencePiece puts it.
    defaults = {"bos": 1, "eos": 2, "unknown": 0} if sentencepiece and len(vocabulary.texts) > 2 else {}
    named = [identity("eos", defaults.get("eos")), identity("eot", None), identity("eom", None)]
    named += [number for number in vocabulary.ids_of_kind(_CONTROL) if vocabulary.texts[number] in _END_OF_TURN]
    return {
        "bos": identity("bos", defaults.get("bos")),
        "eos": list(dict.fromkeys(number for number in named if number is not None)),
        "unk": identity("unknown", defaults.get("unknown")),
        "pad": identity("padding", None),
        "add_bos": metadata.flag("tokenizer.ggml.add_bos_token", sentencepiece or _pre_tokenizer(metadata).add_bos),
        "add_eos": metadata.flag("tokenizer.ggml.add_eos_token", False),
    }


def tokenizer_json(metadata: Metadata, vocabulary: Vocabulary) -> str:
    """The text of a tokenizer.json for the ``tokenizers`` library."""
    ids = {text: number for number, text in enumerate(vocabulary.texts)}
    if len(ids) != len(vocabulary.texts):
        raise PayloadError(f"{metadata.path}: a token stands twice in its vocabulary; the file is damaged: fetch it again")
    build = _sentencepiece if vocabulary.model == "llama" else _byte_level
    try:
        tokenizer = build(metadata, vocabulary, ids)
    except (PayloadError, UnsupportedError):
        raise
    except Exception as error:  # the library raises no narrower type
        raise PayloadError(f"{metadata.path}: its vocabulary and merges do not fit: {error}") from error
    _add_special(tokenizer, vocabulary)
    text: str = tokenizer.to_str()
    return text


def _add_special(tokenizer: Any, vocabulary: Vocabulary) -> None:
    from tokenizers import AddedToken

    def tokens(*kinds: int) -> list[AddedToken]:
        special = _USER_DEFINED not in kinds
        return [AddedToken(vocabulary.texts[i], normalized=False, special=special) for i in vocabulary.ids_of_kind(*kinds)]

    tokenizer.add_special_tokens(tokens(_UNKNOWN, _CONTROL))
    tokenizer.add_tokens(tokens(_USER_DEFINED))


def _pre_tokenizer(metadata: Metadata) -> PreTokenizer:
    name = metadata.text("tokenizer.ggml.pre", "default")
    found = PRE_TOKENIZERS.get(name)
    if found is None:
        raise UnsupportedError(f"{metadata.path}: its pre-tokenizer is {name!r}; known are {', '.join(PRE_TOKENIZERS)}")
    return found


def _byte_level(metadata: Metadata, vocabulary: Vocabulary, ids: dict[str, int]) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    pre = _pre_tokenizer(metadata)
    merges: Any = [tuple(merge.split(" ")) for merge in metadata.texts("tokenizer.ggml.merges")]
    if any(len(merge) != 2 for merge in merges):
        raise PayloadError(f"{metadata.path}: a merge of its vocabulary is no pair of tokens; fetch the file again")
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=pre.whole_words))
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(metadata: Metadata, vocabulary: Vocabulary, ids: dict[str, int]) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = metadata.numbers("tokenizer.ggml.scores")
    if len(scores) != len(ids):
        raise PayloadError(f"{metadata.path}: has {len(ids)} tokens and {len(scores)} scores; expected as many of each")
    reserved = set(vocabulary.ids_of_kind(_UNKNOWN, _CONTROL, _USER_DEFINED))
    merges = _merges_by_score(vocabulary.texts, ids, scores.tolist(), reserved)
    unknown = next(iter(vocabulary.ids_of_kind(_UNKNOWN)), None)
    unk_token = None if unknown is None else vocabulary.texts[unknown]
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, unk_token=unk_token, fuse_unk=True, byte_fallback=True))
    prefix = metadata.flag("tokenizer.ggml.add_space_prefix", True)
    spaces = [normalizers.Prepend(_SPACE)] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*spaces, normalizers.Replace(" ", _SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _merges_by_score(texts: Sequence[str], ids: dict[str, int], scores: list[float], reserved: set[int]) -> list[tuple[str, str]]:
    """Every pair of tokens that makes a third, best score of the result first: the order in which SentencePiece merges."""
    pairs = [
        (-scores[number], number, text[:cut], text[cut:])
        for number, text in enumerate(texts)
        if number not in reserved
        for cut in range(1, len(text))
        if text[:cut] in ids and text[cut:] in ids
    ]
    pairs.sort(key=lambda pair: pair[:2])
    return [(left, right) for _, _, left, right in pairs]
