"""tenonnx pull: fetch a known model."""

from __future__ import annotations

from typing import Annotated

import typer

from tenonnx.cli import completion
from tenonnx.cli.common import AsJson, command, print_json, progress_bar, size


@command("tenonnx pull smollm2-135m")
def pull(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="A known model: smollm2-135m.", show_default=False, autocompletion=completion.known_models
        ),
    ],
    json: AsJson = False,
) -> None:
    """Fetch a known model. Its SHA-256 is checked, and it is kept in the user's cache directory."""
    from tenonnx.text import known

    model = known(name)
    with progress_bar(model.name) as progress:
        path = model.pull(progress)
    if json:
        print_json({"name": model.name, "path": str(path), "bytes": model.size, "sha256": model.sha256})
    else:
        print(f"{path} ({size(model.size)}, SHA-256 as expected)")
