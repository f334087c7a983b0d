"""Chat templates: Jinja programs that come with a model, run in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from itertools import count
from typing import Any, NoReturn

from jinja2 import pass_context
from jinja2.ext import Extension
from jinja2.lexer import Token
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tenonnx.errors import TenonnxError, UnsupportedError

# Far over what conversations need; a template beyond them is damaged or malicious.
_TURNS = 200_000  # of all loops and macros in one rendering
_CHARACTERS = 10_000_000  # of one text

_turns: ContextVar[Iterator[int]] = ContextVar("turns")


def _raise_exception(message: str) -> NoReturn:
    raise TenonnxError(f"the model's chat template refuses the conversation: {message}")


def _tojson(value: Any, indent: int | None = None) -> str:
    # Jinja's own filter escapes for HTML, which would change what the model reads.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


@pass_context  # keeps Jinja from computing it once and for all
def _count_turn(context: Any, value: Any) -> str:
    if next(_turns.get()) >= _TURNS:
        raise UnsupportedError(f"the model's chat template takes more than {_TURNS:,} turns of its loops: it may have no end")
    return ""


class _CountedTurns(Extension):
    """Begins the body of each loop and macro with a call of ``_count_turn``, as a filter: names can be redefined."""

    def filter_stream(self, stream: Any) -> Iterable[Token]:
        first, repeats = False, False
        for token in stream:
            yield token
            if token.type == "block_begin":
                first = True
                continue
            if first:
                repeats = token.value in ("for", "macro", "call")
            elif repeats and token.type == "block_end":
                repeats = False
                for kind, text in (("variable_begin", "{{"), ("name", "none"), ("pipe", "|"), ("name", "count_turn")):
                    yield Token(token.lineno, kind, text)
                yield Token(token.lineno, "variable_end", "}}")
            first = False


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, without products and powers that would fill the memory."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        sizes = [value if isinstance(value, (int, float)) else len(value) for value in (left, right)]
        power = operator == "**" and sizes[0] not in (-1, 0, 1) and abs(sizes[1]) > 64
        repeat = operator == "*" and not all(isinstance(value, (int, float)) for value in (left, right))
        if power or (repeat and sizes[0] * sizes[1] > _CHARACTERS):
            raise UnsupportedError(f"the model's chat template computes {operator!r} over numbers too large for a text")
        return super().call_binop(context, operator, left, right)


class ChatTemplate:
    """Renders a conversation as the text that a model was trained on."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """``special_tokens``: the texts of ``bos_token``, ``eos_token`` and their kin. ``UnsupportedError``: bad syntax."""
        environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _CountedTurns])
        environment.filters.update(tojson=_tojson, count_turn=_count_turn)
        environment.globals.pop("lipsum")
        environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except Exception as error:  # beside Jinja's errors those of Python, which compiles what Jinja makes of it
            raise UnsupportedError(
                f"the model's chat template cannot be read: {type(error).__name__}: {error}; use `generate` without --system"
            ) from error

    def render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """The text of ``messages`` ({"role", "content"} each), ending where the model's answer starts."""
        _turns.set(count())
        pieces: list[str] = []
        length = 0
        try:
            for piece in self._template.generate(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            ):
                pieces.append(piece)
                length += len(piece)
                if length > _CHARACTERS:
                    raise UnsupportedError(f"the model's chat template writes more than {_CHARACTERS:,} characters")
        except TenonnxError:
            raise
        except Exception as error:  # a template is a program from a file: it may raise anything
            raise UnsupportedError(f"the model's chat template failed: {type(error).__name__}: {error}") from error
        return "".join(pieces)
