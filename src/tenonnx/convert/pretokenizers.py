"""How byte-level BPE vocabularies cut text into words before merging, by the names that GGUF gives (tokenizer.ggml.pre).

Each is a sequence of patterns; a pattern cuts every piece so far into its matches and what lies between them. They are the
patterns of the models' published tokenizers.
"""

from __future__ import annotations

from typing import NamedTuple

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
# Cased letters without the alphabets that had a single case when this pattern was published.
_CASED = r"[[\p{Lu}\p{Ll}\p{Lt}]&&[^\u0560-\u0588\u10d0-\u10ff]]"


class PreTokenizer(NamedTuple):
    """Patterns in order; whether a word that is a token skips the merges; whether the model wants its BOS token first."""

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False


_DIGIT_BY_DIGIT = PreTokenizer((r"\p{N}", _GPT2))
_PLAIN = PreTokenizer((_GPT2,))
_THREE_DIGITS = PreTokenizer((_WORDS % r"\p{N}{1,3}",))
_LLAMA3 = PreTokenizer(_THREE_DIGITS.patterns, whole_words=True, add_bos=True)
_QWEN2 = PreTokenizer((_WORDS % r"\p{N}",))

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": _PLAIN,
    "mpt": _PLAIN,
    "olmo": _PLAIN,
    "jais": _PLAIN,
    "phi-2": _PLAIN,
    "trillion": _PLAIN,
    "smollm": _DIGIT_BY_DIGIT,
    "starcoder": _DIGIT_BY_DIGIT,
    "refact": _DIGIT_BY_DIGIT,
    "command-r": _DIGIT_BY_DIGIT,
    "codeshell": _DIGIT_BY_DIGIT,
    "exaone": _DIGIT_BY_DIGIT,
    "minerva-7b": _DIGIT_BY_DIGIT,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "falcon3": _LLAMA3,
    "pixtral": _LLAMA3,
    "dbrx": _THREE_DIGITS,
    "smaug-bpe": _THREE_DIGITS,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "stablelm2": _QWEN2,
    "tekken": PreTokenizer((_TEKKEN,), whole_words=True, add_bos=True),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
    "deepseek-llm": PreTokenizer(
        (r"[\r\n]", rf"\s?{_CASED}+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", _CJK, r"\p{N}+")  # noqa: RUF001
    ),
}
