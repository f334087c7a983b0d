"""tenonnx bench: how fast a model is on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from tenonnx.cli.common import AsJson, Kv, Model, Threads, command, print_json, progress_bar, size

Lengths = Annotated[list[int], typer.Option("--prompt", min=1, help="Tokens of a prompt; may be repeated.")]
Depths = Annotated[list[int], typer.Option("--depth", min=0, help="Tokens in the cache while decoding; may be repeated.")]


@command(
    "tenonnx bench smollm2-135m",
    "tenonnx bench smollm2-135m --depth 0 --depth 3000 --threads 2",
    "tenonnx bench model.gguf --prompt 512 --json",
)
def bench(
    model: Model,
    prompt: Lengths = [128, 512],  # noqa: B006 -- typer reads it and never keeps it
    depth: Depths = [0, 1024],  # noqa: B006
    tokens: Annotated[int, typer.Option("-n", "--tokens", min=1, help="Tokens decoded at each depth.")] = 32,
    repeat: Annotated[int, typer.Option(min=1, help="Runs of which the median counts.")] = 5,
    kv: Kv = None,
    threads: Threads = None,
    json: AsJson = False,
) -> None:
    """Measure how fast a model is on this machine. Prompts, decoding, load and memory, beside what reading memory allows."""
    from tenonnx.cache import parse_policy
    from tenonnx.text import load_model
    from tenonnx.text.speed import speed

    policy = parse_policy(kv) if kv else None
    with progress_bar(model) as progress:
        loaded = load_model(model, threads=threads or "auto", paged=policy is not None, progress=progress)
    with progress_bar(model, "figures") as progress:
        found = speed(loaded, prompts=prompt, depths=depth, decoded=tokens, repeat=repeat, kv=policy, progress=progress)
    if json:
        print_json(found.as_dict())
        return
    print(f"load {found.load_s:.3f} s, first token after {found.first_token_s:.3f} s more")
    print(f"weights {size(found.weight_bytes)}, caches {size(found.cache_bytes)}, peak memory {size(found.peak_rss_bytes)}")
    print(f"{found.threads} threads, which read {found.read_bytes_per_s / 1e9:.1f} GB/s of memory")
    for count, rate in found.prompt.items():
        print(f"  prompt of {count:>6,}  {rate:9,.1f} tokens/s")
    for count, rate in found.decode.items():
        print(f"  decode at {count:>6,}  {rate:9,.1f} tokens/s  {found.decode_share[count]:4.0%} of what reading allows")
