"""A conversation over one cache: each turn runs only the tokens that the caches do not hold yet."""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from typing import Unpack

from tenonnx.cache import Policy, saved_note
from tenonnx.errors import PayloadError
from tenonnx.text.generation import Context, TextStream
from tenonnx.text.loading import TextModel
from tenonnx.text.sampling import Sampling, SamplingOptions

DEFAULT_CONTEXT = 4096  # tokens, where the model was trained for more


class Conversation:
    """Messages in the model's chat template, and the caches that hold them.

    Every turn renders the whole conversation and keeps the longest common prefix with what the caches hold, so a template
    that changes earlier text (dates, trimmed answers) costs time, never correctness.
    """

    def __init__(
        self,
        model: TextModel,
        *,
        system: str | None = None,
        context: int | None = None,
        kv: Policy | str | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> None:
        """context: tokens in all, by default what the model was trained for, at most 4096. kv: the policy of caches in pages.

        ``UnsupportedError`` when the model has no chat template, ``CapacityError`` when the caches cannot be that large.
        """
        model.tokenizer.chat_template  # noqa: B018 -- refused here, before the caches are allocated
        self._model, self._sampling = model, Sampling(**sampling)
        self._messages: list[dict[str, str]] = [] if system is None else [{"role": "system", "content": system}]
        self._opening = len(self._messages)
        self._answer: TextStream | None = None
        longest = model.context_length or DEFAULT_CONTEXT
        self.context = Context(model, min(longest, DEFAULT_CONTEXT) if context is None else context, kv)

    @property
    def messages(self) -> list[dict[str, str]]:
        """The messages so far; an interrupted answer counts as far as it was made."""
        self._settle()
        return [dict(message) for message in self._messages]

    def reply(self, text: str, *, max_tokens: int | None = None, stop: Sequence[str] = ()) -> TextStream:
        """The model's answer to ``text``, as it is made; ends at the latest where the context is full."""
        self._settle()
        asked = [*self._messages, {"role": "user", "content": text}]
        tokens = self._model.tokenizer.encode_messages(asked)
        answer = TextStream(self._model, self.context, tokens, max_tokens=max_tokens, stop=stop, sampling=self._sampling)
        self._messages, self._answer = asked, answer
        return answer

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the messages and their caches to one file that ``load`` reads; it is replaced whole or not at all."""
        self._settle()
        self.context.save(path, {"messages": self._messages, "opening": self._opening})

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on with the conversation of a file, from a conversation with the same model; what is cached is not run again.

        Raises ``PayloadError`` for a file that is damaged or holds no conversation; this one is as it was then.
        """
        note = saved_note(path)
        try:
            messages = [{"role": str(each["role"]), "content": str(each["content"])} for each in note["messages"]]
            opening = operator.index(note["opening"])
            if not 0 <= opening <= len(messages):
                raise ValueError("opening")
        except (KeyError, TypeError, ValueError) as error:
            raise PayloadError(f"{path}: holds a cache, but no conversation; save one with Conversation.save") from error
        self._settle()
        self.context.load(path)
        self._messages, self._opening = messages, opening

    def reset(self) -> None:
        """Forget everything but the system message."""
        self._answer = None
        del self._messages[self._opening :]

    def _settle(self) -> None:
        if self._answer is None:
            return
        made = self._answer.generation
        self._answer = None
        if made.generated_tokens:
            self._messages.append({"role": "assistant", "content": made.text})
        else:  # refused or interrupted before its first token: as if it was never asked
            self._messages.pop()
