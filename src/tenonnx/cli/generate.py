"""tenonnx generate: continue a prompt."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tenonnx.cli.common import (
    INTERRUPTED,
    AsJson,
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
    print_json,
    progress_bar,
    read_text,
    size,
    tell,
)
from tenonnx.errors import OptionError

if TYPE_CHECKING:
    from tenonnx.text import Generation, TextStream


@command(
    'tenonnx generate smollm2-135m "The capital of France is" -n 24',
    "tenonnx generate model.gguf --file story.txt --seed 7",
    "git log -5 | tenonnx generate smollm2-135m - --system 'Sum this up.'",
    "tenonnx generate smollm2-135m Once --kv aged --json",
)
def generate(
    model: Model,
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="The text to continue; - reads standard input.", show_default=False)
    ] = None,
    max_tokens: Annotated[int, typer.Option("-n", "--max-tokens", min=0, help="Tokens to write at most.")] = 128,
    file: Annotated[
        str | None, typer.Option(help="Read the prompt from a file; - is standard input.", show_default=False)
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
    context: Annotated[int | None, typer.Option(min=1, help="Tokens that the caches hold.", show_default="prompt + n")] = None,
    kv: Kv = None,
    json: AsJson = False,
) -> None:
    """Continue a prompt. The text goes to standard output as it is made, figures to standard error."""
    text = _prompt(prompt, file)
    from tenonnx.cache import parse_policy
    from tenonnx.text import load_model, stream

    policy = parse_policy(kv) if kv else None
    with progress_bar(model) as progress:
        loaded = load_model(model, threads=threads or "auto", paged=policy is not None, progress=progress)
    pieces = stream(
        loaded,
        text,
        max_tokens=max_tokens,
        system=system,
        stop=stop or (),
        context=context,
        kv=policy,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repeat_penalty=repeat_penalty,
        seed=seed,
    )
    interrupted = write(pieces, quiet=json)
    made = pieces.generation
    if json:
        print_json(made.as_dict())
    tell_end(made, show_figures=not json)
    if interrupted:
        raise SystemExit(INTERRUPTED)


def _prompt(prompt: str | None, file: str | None) -> str:
    if (prompt is None) == (file is None):
        raise OptionError("give either a PROMPT or --file (- for standard input)")
    if file is None and prompt != "-":
        return prompt or ""
    return read_text(file or "-").removesuffix("\n")  # the end of a text file's last line is not part of the prompt


def write(pieces: TextStream, quiet: bool = False) -> bool:
    """Print text as it is made, ending the line; return whether Ctrl-C cut it short."""
    interrupted = False
    try:
        for piece in pieces:
            if not quiet:
                sys.stdout.write(piece)
                sys.stdout.flush()
    except KeyboardInterrupt:
        interrupted = True
    if not quiet:
        print(flush=True)
    return interrupted


def tell_end(made: Generation, show_figures: bool = True) -> None:
    """The figures of a generation in two lines, after a line on a full context."""
    if made.finish_reason == "context":
        tell("the context is full: the text ends here; give a larger --context for more")
    if show_figures:
        tell(
            f"prompt {made.prompt_tokens} tokens, {made.prompt_tokens_per_s:.1f} tokens/s; "
            f"generated {made.generated_tokens} tokens, {made.decode_tokens_per_s:.1f} tokens/s"
        )
        tell(f"cache {size(made.cache_bytes)}; extra cache {size(made.extra_cache_bytes)}")
