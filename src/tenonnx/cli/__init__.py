"""The command line: one small file per command, heavy imports inside the commands."""

from __future__ import annotations

from typing import Annotated

import typer

from tenonnx.cli import bench, chat, check, convert, demo, generate, inspect, packs, perplexity, plan, pull, quantize
from tenonnx.cli.common import leave_unwritable, open_closed_streams

# Plain help and errors: rich would cost every command its import.
app = typer.Typer(
    name="tenonnx",
    help="ONNX models with storage that fits exactly: caches updated in place, packed weights, text generation.",
    epilog='Example: tenonnx generate smollm2-135m "The capital of France is" -n 24 --temperature 0',
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    generate.generate,
    chat.chat,
    pull.pull,
    convert.convert,
    quantize.quantize,
    inspect.inspect,
    plan.plan,
    perplexity.perplexity,
    bench.bench,
    check.check,
    demo.demo,
):
    app.command(epilog=f"Example: {command.__dict__['example']}")(command)
app.add_typer(packs.app, name="packs")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"tenonnx {version('tenonnx')}")
        except PackageNotFoundError:  # run from a source tree
            typer.echo("tenonnx (not installed)")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> None:
    """The ``tenonnx`` command."""
    open_closed_streams()
    try:
        app()
    except OSError as error:
        leave_unwritable(error)
