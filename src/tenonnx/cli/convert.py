"""tenonnx convert: write a model as ONNX."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Annotated

import typer

from tenonnx.cli import completion
from tenonnx.cli.common import AsJson, command, print_json, progress_bar, prose, size
from tenonnx.errors import OptionError


@command(
    "tenonnx convert model.gguf model.onnx",
    "tenonnx convert smollm2-135m smollm2.onnx --copy",
    "tenonnx convert model.gguf paged.onnx --paged 64",
    "tenonnx convert exported.onnx model.onnx --alias present.0.key=past.0.key",
    "tenonnx convert model.gguf stock.onnx --portable float16",
)
def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="IN",
            help="A GGUF, an .onnx file, an onnxruntime-genai folder, or a known name.",
            show_default=False,
            autocompletion=completion.models,
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The .onnx file to write.", show_default=False)],
    copy: Annotated[bool, typer.Option("--copy", help="Copy the weights beside OUT instead of pointing at IN.")] = False,
    alias: Annotated[
        list[str] | None, typer.Option(metavar="OUT=IN", help="Let an output share an input's storage.", show_default=False)
    ] = None,
    portable: Annotated[
        str | None,
        typer.Option(metavar="WEIGHTS", help="For stock onnxruntime: float32, float16 or nbits.", show_default=False),
    ] = None,
    paged: Annotated[
        int, typer.Option(metavar="TOKENS", help="Keep K and V of a GGUF in pages of so many tokens, 64 being a good size.")
    ] = 0,
    json: AsJson = False,
) -> None:
    """Write a model as ONNX, its caches declared. Weights stay in their file, which lies in OUT's folder, unless --copy."""
    from tenonnx.text.loading import find_model

    aliases = _aliases(alias or [])
    with progress_bar(source) as progress:
        path = find_model(source, progress)
        if out.suffix.lower() == ".gguf" and not out.exists():
            raise OptionError(f"{out}: is to hold an ONNX model; name a file that ends in .onnx")
        from tenonnx.convert import convert as convert_model

        start, copied, total = time.perf_counter(), 0, path.stat().st_size

        def count(length: int) -> None:
            nonlocal copied
            copied += length
            progress("copy", copied, max(copied, total))

        report = convert_model(path, out, copy=copy, aliases=aliases, portable=portable, paged=paged, progress=count)
    took = time.perf_counter() - start
    weights, files = _external(out)
    if json:
        figures = {"path": str(out), "bytes": out.stat().st_size, "weight_bytes": weights, "weight_files": files, "seconds": took}
        caches = [dataclasses.asdict(cache) for cache in report.caches]
        print_json({**figures, "caches": caches, "notes": list(report.notes)})
    else:
        elsewhere = f", and {size(weights)} of weights in {', '.join(files)}" if files else " with its weights"
        print(prose(f"{out}: {size(out.stat().st_size)}{elsewhere}; {took:.2f} s"))
        for line in (*report.caches, *report.notes):
            print(prose(f"  {line}", indent=4))


def _aliases(pairs: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        output, equals, source = pair.partition("=")
        if not output or not equals or not source:
            raise OptionError(f"--alias {pair}: expected OUT=IN, an output of the graph and an input")
        found[output] = source
    return found


def _external(path: Path) -> tuple[int, list[str]]:
    """Bytes that a written model points at, and the files that hold them."""
    from tenonnx.schema.external import parse_external
    from tenonnx.schema.files import load, payloads

    ranges = [parse_external(value.name, value.external_data) for value in payloads(load(path)) if value.external_data]
    return sum(found.length or 0 for found in ranges), sorted({found.location for found in ranges})
