"""tenonnx quantize: write a model's weights in other formats."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tenonnx.cli.common import AsJson, Model, command, print_json, progress_bar, prose, size, table
from tenonnx.errors import OptionError

if TYPE_CHECKING:
    from tenonnx.convert import WeightError

_HEAD = ("weight", "from", "to", "bytes", "max abs", "rms", "relative")


@command(
    "tenonnx quantize model.onnx small.onnx --weights '*=Q4_0'",
    "tenonnx quantize in.onnx out.onnx --weights '*=Q4_0' --weights 'head*=Q8_0'",
)
def quantize(
    source: Model,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The .onnx file to write.", show_default=False)],
    weights: Annotated[
        list[str],
        typer.Option(
            metavar="'PATTERN=FORMAT'",
            help="Which weights, by name or with * and ?, in which format: a known one, or module:format of your own code. "
            "May be repeated; the last that matches decides.",
            show_default=False,
        ),
    ],
    copy: Annotated[bool, typer.Option("--copy", help="Copy weights kept in other files beside OUT as well.")] = False,
    json: AsJson = False,
) -> None:
    """Write a model's weights in other formats. Prints the error of each weight; new bytes go to OUT.data."""
    targets = dict(map(_target, weights))
    from tenonnx.convert import quantize as quantize_model
    from tenonnx.text.loading import find_model

    start, done = time.perf_counter(), 0
    with progress_bar(source) as progress:
        path = find_model(source, progress)
        about = path.stat().st_size

        def count(length: int) -> None:
            nonlocal done
            done += length
            progress("quantize", done, max(done, about))

        made = quantize_model(path, targets, out, copy=copy, progress=count)
    took = time.perf_counter() - start
    total = sum(row.nbytes for row in made.weights)
    if json:
        rows = [dataclasses.asdict(row) for row in made.weights]
        skipped = [{"name": name, "reason": reason} for name, reason in made.skipped]
        print_json({"path": str(out), "weights": rows, "skipped": skipped, "weight_bytes": total, "seconds": took})
        return
    for line in table([_HEAD, *map(_row, made.weights)], numbers=range(3, 7)):
        print(line)
    for name, reason in made.skipped:
        print(prose(f"skipped {name}: {reason}"))
    print(prose(f"{out}: {size(out.stat().st_size)}, and {size(total)} of new weights in {out.name}.data; {took:.2f} s"))


def _target(text: str) -> tuple[str, str]:
    pattern, equals, format = text.rpartition("=")
    if not (equals and pattern and format):
        raise OptionError(f"--weights {text!r}: expected PATTERN=FORMAT, for example '*=Q4_0'")
    return pattern, format


def _row(weight: WeightError) -> tuple[str, ...]:
    errors = f"{weight.max_abs:.2e}", f"{weight.rms:.2e}", f"{weight.relative:.2%}"
    return weight.name, weight.before, weight.after, f"{weight.nbytes:,}", *errors
