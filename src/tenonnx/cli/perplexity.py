"""tenonnx perplexity: how well a text is predicted with the cache in given formats."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tenonnx.cli.common import AsJson, Kv, Model, Threads, command, print_json, progress_bar, size
from tenonnx.errors import OptionError


@command("tenonnx perplexity smollm2-135m --file README.md --kv aged")
def perplexity(
    model: Model,
    file: Annotated[Path, typer.Option(help="The text.", show_default=False)],
    kv: Kv = "F16",
    tokens: Annotated[int, typer.Option("-n", "--tokens", min=2, help="Tokens of the text to read.")] = 2000,
    threads: Threads = None,
    json: AsJson = False,
) -> None:
    """Perplexity of a text under a policy for the cache, and its divergence from a FLOAT16 cache."""
    from tenonnx.cache import parse_policy
    from tenonnx.text import load_model
    from tenonnx.text.perplexity import perplexity as measured

    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"--file {file}: cannot be read as UTF-8 text: {error}") from error
    policy = parse_policy(kv or "F16")
    with progress_bar(model) as progress:
        loaded = load_model(model, threads=threads or "auto", paged=True, progress=progress)
    found = measured(loaded, text, policy, tokens=tokens)
    if json:
        print_json(found.as_dict())
        return
    print(
        f"perplexity {found.perplexity:.4f} over {found.tokens} tokens ({found.perplexity / found.f16_perplexity:.4f} of F16), "
        f"KL to F16 {found.kl:.6f} nats; cache {size(found.cache_bytes)} ({found.cache_bytes / found.f16_bytes:.3f} of F16)"
    )
