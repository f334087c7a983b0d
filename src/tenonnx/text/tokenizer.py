"""A model's tokenizer, special tokens and chat template, as its metadata carries them.

Metadata keys: ``tenonnx.tokenizer`` (a tokenizer.json), ``tenonnx.special_tokens`` (JSON: ids "bos", "eos" (a list), "unk",
"pad", and the boolean "add_bos") and ``tenonnx.chat_template`` (Jinja; absent in a base model).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tenonnx.errors import OptionError, PayloadError, UnsupportedError

if TYPE_CHECKING:
    from tenonnx.text.template import ChatTemplate


class Tokenizer:
    """Text to token ids and back."""

    def __init__(self, definition: str, special_tokens: Mapping[str, Any] | None = None, chat_template: str = "") -> None:
        """``definition``: the text of a tokenizer.json. ``PayloadError`` when it is none."""
        import tokenizers

        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(definition)
        except Exception as error:  # the library raises plain Exception
            raise PayloadError(f"metadata tenonnx.tokenizer is not a tokenizer.json: {error}; convert the model again") from error
        # A tokenizer.json may ask for both, which would change the prompt unseen.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        special = dict(special_tokens or {})
        self.bos: int | None = special.get("bos")
        self.eos: frozenset[int] = frozenset(special.get("eos") or ())
        self._add_bos = bool(special.get("add_bos"))
        self._special = special
        self._chat_template = chat_template

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> Tokenizer:
        """The tokenizer in a model's metadata; ``UnsupportedError`` when there is none."""
        definition = metadata.get("tenonnx.tokenizer")
        if not definition:
            raise UnsupportedError(
                "the model carries no tokenizer (metadata tenonnx.tokenizer): text needs one; convert it from a GGUF, or from an "
                "export with its tokenizer.json beside it"
            )
        return cls(definition, _special_tokens(metadata), metadata.get("tenonnx.chat_template", ""))

    def encode(self, text: str, *, special: bool = True, add_bos: bool | None = None) -> list[int]:
        """Token ids of ``text``; with ``special``, spelled-out special tokens in it count as such.

        A leading beginning-of-sequence token is added where the model asks for one (or ``add_bos`` says so) and the text
        does not bring it. ``OptionError`` for text that is not valid Unicode.
        """
        if not isinstance(text, str):
            raise OptionError(f"the prompt: expected text, found {type(text).__name__}; pass a str")
        self._tokenizer.encode_special_tokens = not special
        try:
            ids = list(self._tokenizer.encode(text, add_special_tokens=False).ids)
        except (UnicodeEncodeError, TypeError) as error:
            raise OptionError(f"the text is not valid Unicode: {error}; pass UTF-8") from error
        wanted = self._add_bos if add_bos is None else add_bos
        if wanted and self.bos is not None and ids[:1] != [self.bos]:
            ids.insert(0, self.bos)
        return ids

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids to continue from: never none, or ``OptionError``."""
        ids = self.encode(text) or ([] if self.bos is None else [self.bos])
        if not ids:
            raise OptionError(
                "the prompt is empty, and the model has no beginning-of-sequence token to start from; give a prompt"
            )
        return ids

    def encode_messages(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a conversation in the model's chat template, up to where its answer starts."""
        return self.encode_prompt(self.chat_template.render(messages))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, without special tokens; bytes that are no UTF-8 become U+FFFD."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    @property
    def has_chat_template(self) -> bool:
        return bool(self._chat_template)

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """The model's chat template; ``UnsupportedError`` when it has none."""
        if not self._chat_template:
            raise UnsupportedError(
                "the model has no chat template (metadata tenonnx.chat_template), as base models do; "
                "use `tenonnx generate` without --system, with the whole text as its prompt"
            )
        from tenonnx.text.template import ChatTemplate  # Jinja, which most uses of a model do not need

        eos = sorted(self.eos)[:1]
        ids = {"bos": self.bos, "eos": eos[0] if eos else None, "unk": self._special.get("unk"), "pad": self._special.get("pad")}
        texts = {f"{name}_token": self._tokenizer.id_to_token(token) or "" for name, token in ids.items() if token is not None}
        return ChatTemplate(self._chat_template, {"bos_token": "", "eos_token": "", **texts})


def _special_tokens(metadata: Mapping[str, str]) -> dict[str, Any]:
    text = metadata.get("tenonnx.special_tokens") or "{}"
    try:
        special = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"metadata tenonnx.special_tokens is not JSON: {error}; convert the model again") from error
    if not isinstance(special, dict):
        raise PayloadError(f"metadata tenonnx.special_tokens is {text[:40]!r}; expected a JSON object of token ids")
    eos = special.get("eos")
    special["eos"] = eos if isinstance(eos, list) else [] if eos is None else [eos]
    single = [special.get(name) for name in ("bos", "unk", "pad")]
    for token in [*special["eos"], *(token for token in single if token is not None)]:
        if not isinstance(token, int) or not 0 <= token < 2**31:
            raise PayloadError(f"metadata tenonnx.special_tokens names the token {token!r}; expected an id from 0 on")
    return special
