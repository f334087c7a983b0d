"""A progress bar for what usually takes no time."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

_PATIENCE_S = 2.0


@contextlib.contextmanager
def late_bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A report of bytes done, shown as a bar on the terminal's standard error once the work has taken 2 s."""
    begin, count = time.perf_counter(), 0
    bars: list[Any] = []

    def done(nbytes: int) -> None:
        nonlocal count
        count += nbytes
        if not bars and sys.stderr.isatty() and time.perf_counter() - begin > _PATIENCE_S:
            # Only now: importing rich takes longer than most work that is reported here.
            from rich.console import Console
            from rich.progress import Progress

            bars.append(Progress(console=Console(stderr=True), transient=True))
            bars[0].start()
            bars[0].add_task(what, total=total)
        if bars:
            bars[0].update(0, completed=count)

    try:
        yield done
    finally:
        for bar in bars:
            bar.stop()
