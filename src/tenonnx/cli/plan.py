"""tenonnx plan: the steps of a run, where each value lies, and whether it all fits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tenonnx.cli.common import AsJson, Model, command, print_json, print_lines, write_text
from tenonnx.errors import OptionError


@command(
    "tenonnx plan smollm2-135m",
    "tenonnx plan smollm2-135m --context 4096 --dim n=512",
    "tenonnx plan smollm2-135m --html plan.html",
)
def plan(
    file: Model,
    dim: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=N", help="A dimension of the inputs; may be repeated.", show_default="one new token"),
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=1, help="Positions that the caches hold.", show_default="what the model was trained for")
    ] = None,
    fusions: Annotated[
        str, typer.Option(metavar="NAMES", help="Fusions to make: all, none, or some, as in gate,residual.")
    ] = "all",
    every: Annotated[bool, typer.Option("--all", help="Show every step, also those of layers that are alike.")] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="OUT", help="Draw the memory over the steps into an HTML page.", show_default=False)
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(metavar="OUT", help="Draw the same as one picture, an SVG file.", show_default=False)
    ] = None,
    json: AsJson = False,
) -> None:
    """Say what a run takes, and whether it fits in memory. Shows its steps, the storage that each writes, and the peak.

    Dimensions of a decoder that are not given are those of one new token, its context what it was trained for.
    """
    dims = _dims(dim or [])
    from tenonnx.check import raise_errors
    from tenonnx.inspection.planned import as_json, lengths, plan_for
    from tenonnx.plan import Planner
    from tenonnx.plan.fusion import chosen
    from tenonnx.text import read_model
    from tenonnx.text.loading import Names, context_length

    model, _ = read_model(file)
    raise_errors(model)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    longest, names, planner = context_length(metadata), Names.from_metadata(metadata), Planner(model)
    joined = chosen(fusions if fusions in ("all", "none") else fusions.split(","))
    planned = plan_for(file, planner, dims, context, longest=longest, names=names, fusions=joined)
    if html is not None:
        from tenonnx.inspection.timeline import page

        write_text(html, page(planned), "the memory of the plan, step by step", ".html")
    if svg is not None:
        from tenonnx.inspection.timeline_svg import picture

        write_text(svg, picture(planned), "the memory of the plan, step by step", ".svg")
    if json:
        from tenonnx.inspection.machine import memory

        print_json(as_json(planned, memory().available))
    elif html is None and svg is None:
        from tenonnx.inspection.machine import memory
        from tenonnx.inspection.plan_text import length_lines, plan_lines

        print_lines(plan_lines(planned, memory(), every))
        if not dims and context is None and longest is not None:
            print_lines(length_lines(lengths(planner, planned, dims, longest, names)))


def _dims(pairs: list[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for pair in pairs:
        name, _, value = pair.rpartition("=")
        if not name or not (value.isascii() and value.isdecimal()) or len(value) > 15:
            raise OptionError(f"--dim {pair}: expected NAME=N, a dimension of an input and a number")
        found[name] = int(value)
    return found
