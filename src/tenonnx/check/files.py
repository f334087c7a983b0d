"""The rule on external files: each can be opened inside the model's folder. One finding a file, however many values it holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from tenonnx.check.diagnostics import Diagnostic
from tenonnx.errors import PayloadError
from tenonnx.schema.external import DataRoot, parse_external
from tenonnx.schema.files import payloads


def unreadable_files(model: Any, root: DataRoot) -> Iterator[Diagnostic]:
    """External files that values of the model lie in and that cannot be read."""
    values: dict[str, list[str]] = defaultdict(list)
    for value in payloads(model):
        if value.external_data:
            try:
                location = parse_external(value.name, value.external_data).location
            except PayloadError:
                continue  # a finding about that value alone
            values[location].append(value.name)
    for location, names in values.items():
        others = f" and {len(names) - 1} more values" if len(names) > 1 else ""
        try:
            root.file(f"value {names[0]!r}{others}", location)
        except PayloadError as error:
            yield Diagnostic("error", "invalid", "external-file", f"external file {location!r}", str(error))
