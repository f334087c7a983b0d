"""Chat templates: Jinja programs that come with a model, run in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from tenonnx.errors import TenonnxError, UnsupportedError


def _raise_exception(message: str) -> NoReturn:
    raise TenonnxError(f"the model's chat template refuses the conversation: {message}")


def _tojson(value: Any, indent: int | None = None) -> str:
    # Jinja's own filter escapes for HTML, which would change what the model reads.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


class ChatTemplate:
    """Renders a conversation as the text that a model was trained on."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """``special_tokens``: the texts of ``bos_token``, ``eos_token`` and their kin. ``UnsupportedError``: bad syntax."""
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        environment.filters["tojson"] = _tojson
        environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise UnsupportedError(
                f"the model's chat template cannot be read: {error}; use `generate` without --system"
            ) from error

    def render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """The text of ``messages`` ({"role", "content"} each), ending where the model's answer starts."""
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except TenonnxError:
            raise
        except Exception as error:  # a template is a program from a file: it may raise anything
            raise UnsupportedError(f"the model's chat template failed: {type(error).__name__}: {error}") from error
