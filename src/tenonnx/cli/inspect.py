"""tenonnx inspect: what a model holds, and where each bit of its packed values belongs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tenonnx.cli import completion
from tenonnx.cli.common import AsJson, command, print_json, print_lines, write_text
from tenonnx.errors import OptionError


@command(
    "tenonnx inspect smollm2-135m",
    "tenonnx inspect smollm2-135m --values 'blk.0.attn_q.weight[3]'",
    "tenonnx inspect Q4_K --svg q4_k.svg",
    "tenonnx inspect model.onnx --json",
)
def inspect(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="An .onnx file, a GGUF, a known name, a saved cache, or a format: Q4_K, module:format.",
            show_default=False,
            autocompletion=completion.models,
        ),
    ],
    type: Annotated[
        str | None, typer.Option(metavar="NAME|INDEX", help="Show one type: its fields and bits.", show_default=False)
    ] = None,
    values: Annotated[
        str | None, typer.Option(metavar="NAME[i]", help="Show the fields of one element of a weight.", show_default=False)
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(metavar="OUT", help="Draw the bits of the type into an SVG file.", show_default=False)
    ] = None,
    json: AsJson = False,
) -> None:
    """Show a model's size, inputs, caches, weights and types. No weight is read but those asked for."""
    if values is not None and (type is not None or svg is not None):
        raise OptionError("--values shows an element, --type and --svg a type: ask for one of the two")
    if Path(file).is_file() and (_shows_pages(file, svg, json) or _shows_rows(file, svg, json)):
        return
    from tenonnx.inspection import open_subject

    subject = open_subject(file)
    if values is not None:
        _show_element(subject, values, json)
    elif type is not None or svg is not None or subject.format is not None:
        _show_type(subject, type, svg, json)
    else:
        _show_model(subject, json)


def _shows_pages(file: str, drawing: Path | None, json: bool) -> bool:
    """Show the page map of a saved cache; False for any other file."""
    from tenonnx.cache.store import is_saved

    if not is_saved(file):
        return False
    from tenonnx.inspection.pages import described, page_lines, page_svg, read_page_map

    saved = read_page_map(file)
    if drawing is not None:
        write_text(drawing, page_svg(saved), f"the pages of {file}", ".svg")
    if json:
        print_json(described(saved))
    elif drawing is None:
        print_lines(page_lines(saved))
    return True


def _shows_rows(file: str, drawing: Path | None, json: bool) -> bool:
    """Show the tensors of a saved dense cache; False for any other file."""
    from tenonnx.cache.rows import is_saved, read_header

    if not is_saved(file):
        return False
    if drawing is not None:
        raise OptionError(f"--svg draws types and pages; {file} is a dense cache, which has neither")
    from tenonnx.inspection.cached import described, row_lines

    saved = read_header(file)
    if json:
        print_json(described(saved))
    else:
        print_lines(row_lines(saved))
    return True


def _show_model(subject: Any, json: bool) -> None:
    from tenonnx.inspection import summary

    found = summary(subject)
    if json:
        print_json(found)
        return
    from tenonnx.inspection.show import summary_lines

    path = Path(subject.name)
    print_lines(summary_lines(found, path.stat().st_size if path.is_file() else None))


def _show_type(subject: Any, wanted: str | None, drawing: Path | None, json: bool) -> None:
    title, node = subject.only_type() if wanted is None else subject.type_named(wanted)
    if drawing is not None:
        from tenonnx.inspection.svg import svg

        write_text(drawing, svg(title, node), f"the bits of {title}", ".svg")
    if json:
        from tenonnx.inspection import described

        print_json({"name": title, **described(node)})
    elif drawing is None:
        from tenonnx.inspection.show import type_lines

        print_lines(type_lines(title, node))


def _show_element(subject: Any, wanted: str, json: bool) -> None:
    from tenonnx.inspection.values import element_of, jsonable

    element = element_of(subject, wanted)
    if not json:
        from tenonnx.inspection.show import element_lines

        print_lines(element_lines(element))
        return
    fields = {name: jsonable(array) for name, array in element.fields.items()}
    raw = None if element.payload is None else element.payload.tobytes().hex()
    decoded = None if element.decoded is None else jsonable(element.decoded)
    print_json({"name": element.title, "bytes": raw, "fields": fields, "decoded": decoded})
