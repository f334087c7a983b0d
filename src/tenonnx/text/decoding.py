"""Text from tokens as they come: characters split over tokens, and stop strings split over pieces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tenonnx.errors import OptionError
from tenonnx.text.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"  # what an incomplete character decodes to
_CONTEXT = range(4, 8)  # tokens before the first that decide on its leading space; a character is up to 4 byte tokens


class StreamDecoder:
    """Decodes one token at a time; what was returned, joined, is the text of all.

    Whether a token starts with a space, or ends a character, depends on its neighbours. So a window of tokens is decoded
    anew at each step, and of its text only what later tokens cannot change is returned: all but trailing U+FFFD. The window
    always begins with a token that has text, for the leading space of the next depends on it.
    """

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int] = ()) -> None:
        """``context``: the tokens before the first one, for its leading space."""
        self._tokenizer = tokenizer
        self._window = self._whole_characters(context)
        self._settled = len(self._window)  # tokens of the window whose text was returned whole
        self._shown = len(tokenizer.decode(self._window))  # characters of the window's text already returned

    def _whole_characters(self, context: Sequence[int]) -> list[int]:
        """The end of ``context``, cut between characters: with half of one in front, a run of byte tokens never decodes."""
        ends = (list(context[-count:]) for count in _CONTEXT)
        return next((end for end in ends if _REPLACEMENT not in self._tokenizer.decode(end)), [])

    def push(self, token: int) -> str:
        """The text that ``token`` completes; empty while a character is incomplete."""
        self._window.append(token)
        text = self._tokenizer.decode(self._window)
        settled = text.rstrip(_REPLACEMENT)
        piece = settled[self._shown :]
        self._shown += len(piece)
        if piece and settled == text:
            # The last settled tokens stay in front as context for the next; the ones before them are done with.
            del self._window[: self._settled]
            self._settled = len(self._window)
            self._shown = len(self._tokenizer.decode(self._window))
        return piece

    def finish(self) -> str:
        """What was held back, with U+FFFD for characters that stayed incomplete."""
        text = self._tokenizer.decode(self._window)
        piece = text[self._shown :]
        self._shown = max(self._shown, len(text))
        return piece


class StopStrings:
    """Cuts a text that comes in pieces before the first of some strings, holding back what may become one."""

    def __init__(self, stops: Iterable[str] = ()) -> None:
        self._stops = tuple(stops)
        if not all(self._stops):
            raise OptionError("a stop string is empty; give at least one character")
        self._held = ""
        self.found = False

    def push(self, piece: str) -> str:
        """The part of the text that is sure to come before any stop string; ``found`` says whether one was met."""
        if self.found:
            return ""
        text = self._held + piece
        starts = [at for at in map(text.find, self._stops) if at >= 0]
        if starts:
            self.found, self._held = True, ""
            return text[: min(starts)]
        sure = len(text) - max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[sure:]
        return text[:sure]

    def finish(self) -> str:
        """What was held back and never became a stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of ``text`` that is a proper start of ``stop``."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
