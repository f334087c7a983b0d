"""Pages of docs/, and parts of pages, that are made from the code: ``python -m make_docs`` writes them.

A test says when one is stale.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from make_docs import api, architecture, commands, errors, rules
from tenonnx.codecs import table

DOCS = Path(__file__).parents[1] / "docs"
WHOLE: dict[str, Callable[[], str]] = {
    "errors.md": errors.page,
    "commands.md": commands.page,
    "import-order.svg": architecture.svg,
    "api/session.md": api.session,
    **{f"api/{name}.md": partial(api.page, *what) for name, what in api.PAGES.items()},
}
# What stands between <!-- NAME --> and <!-- end of NAME -->.
PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "mutable-caches.md": {"rules": partial(rules.table, "mutable caches")},
    "paged-caches.md": {"rules": partial(rules.table, "paged caches")},
    "structured-types.md": {
        "rules": partial(rules.table, "structured types"),
        "formats": lambda: f"{table.markdown()}\n",
    },
    "compiled-tensors.md": {"rules": partial(rules.table, "compiled tensors")},
    "checking.md": {"rules": partial(rules.table, "every model")},
}


def made(name: str) -> str:
    """What the file ``name`` of docs/ has to hold."""
    if name in WHOLE:
        return WHOLE[name]()
    text = (DOCS / name).read_text(encoding="utf-8")
    for part, content in PARTS[name].items():
        between = re.compile(rf"(?<=<!-- {part} -->\n).*?(?=<!-- end of {part} -->)", re.DOTALL)
        text, count = between.subn(lambda _, content=content: content(), text)
        if count != 1:
            raise ValueError(f"{name}: has {count} places for {part}; expected one, between <!-- {part} --> and its end")
    return text
