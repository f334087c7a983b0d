"""tenonnx chat: a conversation in the terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tenonnx.cli.common import (
    Kv,
    MinP,
    Model,
    RepeatPenalty,
    Seed,
    Stop,
    System,
    Temperature,
    Threads,
    TopK,
    TopP,
    command,
    progress_bar,
    size,
    tell,
)
from tenonnx.cli.generate import tell_end, write
from tenonnx.errors import CapacityError

if TYPE_CHECKING:
    from tenonnx.text import Conversation


@command(
    "tenonnx chat smollm2-135m",
    'tenonnx chat smollm2-135m --system "Answer in one sentence."',
    "tenonnx chat model.onnx --context 8192 --temperature 0.3",
)
def chat(
    model: Model,
    max_tokens: Annotated[
        int | None, typer.Option("-n", "--max-tokens", min=1, help="Tokens of one answer at most.", show_default="no limit")
    ] = None,
    system: System = None,
    stop: Stop = None,
    temperature: Temperature = 0.8,
    top_k: TopK = 40,
    top_p: TopP = 0.95,
    min_p: MinP = 0.05,
    repeat_penalty: RepeatPenalty = 1.0,
    seed: Seed = None,
    threads: Threads = None,
    context: Annotated[
        int | None, typer.Option(min=1, help="Tokens that the caches hold.", show_default="the model's, at most 4096")
    ] = None,
    kv: Kv = None,
) -> None:
    """Talk with a model over one cache. /reset starts anew, /exit or Ctrl-D ends; Ctrl-C stops the current answer."""
    from tenonnx.cache import parse_policy
    from tenonnx.text import Conversation, load_model

    policy = parse_policy(kv) if kv else None
    with progress_bar(model) as progress:
        loaded = load_model(model, threads=threads or "auto", paged=policy is not None, progress=progress)
    conversation = Conversation(
        loaded,
        system=system,
        context=context,
        kv=policy,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repeat_penalty=repeat_penalty,
        seed=seed,
    )
    cache = conversation.context.cache
    tell(f"context {cache.capacity} tokens, cache {size(cache.nbytes)}; /reset starts anew, /exit or Ctrl-D ends")
    while _turn(conversation, max_tokens, stop or ()):
        pass


def _turn(conversation: Conversation, max_tokens: int | None, stop: Sequence[str]) -> bool:
    """Read one line and answer it; False at the end. On a terminal Ctrl-C ends the turn, wherever it strikes."""
    try:
        said = _read()
        if said == "/reset":
            conversation.reset()
        elif said:
            _answer(conversation, said, max_tokens, stop)
        return said is not None
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise
        print()
        return True


def _answer(conversation: Conversation, said: str, max_tokens: int | None, stop: Sequence[str]) -> None:
    try:
        pieces = conversation.reply(said, max_tokens=max_tokens, stop=stop)
        write(pieces)
    except CapacityError as error:  # the conversation goes on: a shorter message or /reset may fit
        tell(f"error: {error}; or start anew with /reset")
        return
    tell_end(pieces.generation, show_figures=sys.stderr.isatty())


def _read() -> str | None:
    """The user's next line, None at the end. On a terminal it can be edited."""
    prompt = ""
    if sys.stdin.isatty():
        prompt = "> "
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 -- input() edits lines once it is imported
    try:
        said = input(prompt).strip()
    except EOFError:
        return None
    return None if said == "/exit" else said
