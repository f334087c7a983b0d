"""The command line: one small file per command, heavy imports inside the commands."""

from __future__ import annotations

from typing import Annotated

import typer

from tenonnx.cli import bench, chat, check, convert, demo, generate, inspect, packs, perplexity, plan, pull, quantize
from tenonnx.cli.common import open_closed_streams
from tenonnx.cli.group import EXIT_CODES, Commands, examples

_EXAMPLES = (
    'tenonnx generate smollm2-135m "The capital of France is" -n 24',
    "tenonnx chat smollm2-135m",
    "tenonnx convert model.gguf model.onnx",
    "tenonnx plan model.onnx --context 4096",
    "tenonnx --install-completion",
)

# Plain help and errors: rich would cost every command its import.
app = typer.Typer(
    name="tenonnx",
    cls=Commands,
    help="ONNX models with storage that fits exactly: caches updated in place, packed weights, text generation.",
    epilog=examples(_EXAMPLES, EXIT_CODES, "NO_COLOR=1 turns colours off. TENONNX_CACHE is the folder of fetched models."),
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
    app.command(epilog=examples(command.__dict__["examples"]))(command)
app.add_typer(packs.app, name="packs")


def _print_version(wanted: bool) -> None:
    if wanted:
        from tenonnx.cli.version import version_lines

        typer.echo("\n".join(version_lines()))
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version, the build, and the libraries in use.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """The ``tenonnx`` command."""
    open_closed_streams()
    app()
