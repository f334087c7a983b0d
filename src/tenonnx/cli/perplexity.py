"""tenonnx perplexity: how well a text is predicted with the cache in given formats."""

from __future__ import annotations

from typing import Annotated

import typer

from tenonnx.cli.common import AsJson, Kv, Model, Threads, command, print_json, progress_bar, read_text, size


@command(
    "tenonnx perplexity smollm2-135m --file README.md --kv aged",
    "tenonnx perplexity smollm2-135m --file - -n 500 --kv INT8_PAGE < README.md",
)
def perplexity(
    model: Model,
    file: Annotated[str, typer.Option(metavar="TEXT", help="The text; - is standard input.", show_default=False)],
    kv: Kv = "F16",
    tokens: Annotated[int, typer.Option("-n", "--tokens", min=2, help="Tokens of the text to read.")] = 2000,
    threads: Threads = None,
    json: AsJson = False,
) -> None:
    """Say how well a text is predicted under a cache policy. Prints the perplexity, and the divergence from a FLOAT16 cache."""
    from tenonnx.cache import parse_policy
    from tenonnx.text import load_model
    from tenonnx.text.perplexity import perplexity as measured

    text = read_text(file)
    policy = parse_policy(kv or "F16")
    with progress_bar(model) as progress:
        loaded = load_model(model, threads=threads or "auto", paged=True, progress=progress)
    with progress_bar(file, "tokens") as progress:
        found = measured(loaded, text, policy, tokens=tokens, progress=progress)
    if json:
        print_json(found.as_dict())
        return
    print(f"perplexity  {found.perplexity:,.4f}, {found.perplexity / found.f16_perplexity:.4f} of that with F16")
    print(f"KL to F16   {found.kl:.6f} nats")
    print(f"cache       {size(found.cache_bytes)}, {found.cache_bytes / found.f16_bytes:.3f} of that in F16")
    print(f"read        {found.tokens:,} tokens, {found.tokens_per_s:,.1f} tokens/s")
