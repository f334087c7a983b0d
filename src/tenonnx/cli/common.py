"""What the commands share: errors as one line, figures, options, the progress bar."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, ParamSpec

import typer

from tenonnx.cli import completion
from tenonnx.errors import OptionError, PayloadError, TenonnxError

if TYPE_CHECKING:
    from rich.text import Text

P = ParamSpec("P")

FAILED, USAGE, INTERRUPTED = 1, 2, 130
_NARROWEST = 12  # columns that a name is cut to
_LONGEST_TEXT = 50_000_000  # characters: more than any context holds
_PATIENCE_S = 1.0  # before a bar is shown: most work is done by then

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="An .onnx file, a GGUF, an onnxruntime-genai folder, or a known name.",
        show_default=False,
        autocompletion=completion.models,
    ),
]
System = Annotated[str | None, typer.Option(help="A system message; the model's chat template is applied.", show_default=False)]
Stop = Annotated[list[str] | None, typer.Option(help="End before this text; may be repeated.", show_default=False)]
Temperature = Annotated[float, typer.Option(min=0, help="0 always takes the most probable token.")]
TopK = Annotated[int, typer.Option(min=0, help="Draw from the K most probable tokens; 0: from all.")]
TopP = Annotated[
    float, typer.Option(min=0, max=1, help="Draw from the most probable tokens that reach this probability; 1: all.")
]
MinP = Annotated[float, typer.Option(min=0, max=1, help="Drop tokens under this share of the greatest probability.")]
RepeatPenalty = Annotated[float, typer.Option(help="Weaken the tokens among the last 64; 1: not.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Draw the same tokens again.", show_default="another each time")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads to compute with.", show_default="one per core")]
Kv = Annotated[
    str | None,
    typer.Option(
        metavar="POLICY",
        help="Keep K and V in pages: a format such as INT8_PAGE, aged, budget:64MiB, or module:object.",
        show_default=False,
        autocompletion=completion.policies,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, and nothing else, on standard output.")]


def command(*examples: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """A command whose errors end as one line on standard error and an exit code: 1, 2 for usage, 130 for Ctrl-C."""

    def wrap(body: Callable[P, None]) -> Callable[P, None]:
        @functools.wraps(body)
        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                _accept_any_text()
                body(*args, **kwargs)
                sys.stdout.flush()
            except OptionError as error:
                fail(_as_options(str(error), kwargs), USAGE)
            except TenonnxError as error:
                fail(_as_options(str(error), kwargs))
            except MemoryError as error:
                fail(f"out of memory: {error}".rstrip(": "))
            except BrokenPipeError:  # the reader has left, as `| head` does
                _drop_output()
                raise SystemExit(FAILED) from None
            except KeyboardInterrupt:
                raise SystemExit(INTERRUPTED) from None

        run.__dict__["examples"] = examples
        return run

    return wrap


def _as_options(message: str, parameters: Iterable[str]) -> str:
    """A message with its arguments of Python, top_p or "the option copy", by the names that they have on the command line."""
    message = re.sub(r"\bthe option (\w+)", r"--\1", message)
    for name in parameters:
        if "_" in name:
            message = re.sub(rf"\b{name}\b", f"--{name.replace('_', '-')}", message)
    return message


def fail(message: str, code: int = FAILED) -> NoReturn:
    """End the command with one ``error:`` line."""
    tell("error: " + " ".join(message.split()))
    raise SystemExit(code)


def tell(line: str) -> None:
    """A line for the reader, on standard error, beside the command's result; lost where that cannot be written."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def open_closed_streams() -> None:
    """Standard streams that the caller has closed lead nowhere; else a model's file would get their number, and be written."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 -- open for the rest of the process


def leave_unwritable(error: OSError) -> NoReturn:
    """End a command that met a file, or the output, that cannot be used, as on a full disk."""
    _drop_output()
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    way = "make room there, or name another place" if full else "check its folder and permissions, or name another place"
    fail(f"{error.filename or 'standard output'}: {error.strerror or error}; {way}")


def _accept_any_text() -> None:
    # A model may write characters that the terminal's encoding lacks: show a stand-in rather than fail.
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def _drop_output() -> None:
    # What is buffered must not be written at exit, which would fail once more.
    with contextlib.suppress(io.UnsupportedOperation):  # a stream of Python's own
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_json(value: Any) -> None:
    import json

    print(json.dumps(value, ensure_ascii=False))


def print_lines(lines: Iterable[Text]) -> None:
    """Lines as wide as the terminal, coloured where it shows colours."""
    from rich.console import Console

    from tenonnx.inspection.bitmap import printable

    console = Console(highlight=False)  # no colours where NO_COLOR is set, or the output is no terminal
    for line in lines:
        line.plain = printable(line.plain)
        console.print(line, no_wrap=True, overflow="ellipsis", crop=True)


def read_text(source: str) -> str:
    """The text of a file, or of standard input for ``-``; ``PayloadError`` for what is no text, or too long for any model."""
    named = "standard input" if source == "-" else source
    try:
        with contextlib.nullcontext(sys.stdin) if source == "-" else Path(source).open(encoding="utf-8") as stream:
            text = stream.read(_LONGEST_TEXT + 1)
    except OSError as error:
        raise PayloadError(f"{named}: cannot be read: {error.strerror}; name a text file, or - for standard input") from error
    except UnicodeDecodeError as error:
        raise PayloadError(f"{named}: is not UTF-8 text: {error.reason} at byte {error.start}; convert it first") from error
    if len(text) > _LONGEST_TEXT:
        raise PayloadError(f"{named}: holds more than {_LONGEST_TEXT:,} characters; give a shorter text")
    return text


def write_text(path: Path, text: str, what: str, suffix: str) -> None:
    """Write a drawing or a page, and tell of it; its suffix keeps a slip from replacing a model or its weights."""
    if path.suffix.lower() != suffix:
        raise OptionError(f"{path}: is to hold {what}; name a file that ends in {suffix}")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PayloadError(f"{path}: cannot be written: {error.strerror}; name another place") from error
    tell(f"{path}: {what}")


def width() -> int:
    """Columns of a line: the terminal's, or 80 where there is none."""
    return shutil.get_terminal_size().columns


def prose(line: str, indent: int = 2) -> str:
    """A sentence as lines that fit, those after the first moved in."""
    return textwrap.fill(line, width(), subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def table(rows: Sequence[Sequence[str]], numbers: Collection[int] = (), flexible: int = 0) -> Iterator[str]:
    """Rows as lines that fit: ``numbers`` are columns set flush right, ``flexible`` is the one cut in the middle to make room."""
    if not rows:
        return
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    over = sum(widths) + 2 * (len(widths) - 1) - width()
    if over > 0:
        widths[flexible] = min(widths[flexible], max(widths[flexible] - over, _NARROWEST))
    for row in rows:
        texts = [_cut(text, widths[place]) if place == flexible else text for place, text in enumerate(row)]
        cells = zip(texts, widths, strict=True)
        yield "  ".join(text.rjust(size) if at in numbers else text.ljust(size) for at, (text, size) in enumerate(cells)).rstrip()


def _cut(text: str, length: int) -> str:
    """A name without its middle: numbers of layers stand before it, roles behind."""
    if len(text) <= length:
        return text
    end = length // 2
    return f"{text[: length - end - 1]}…{text[-end:]}"


def size(count: int) -> str:
    """Bytes as people read them."""
    if count < 10_000:
        return f"{count:,} bytes"
    return f"{count / 1e6:,.2f} MB" if count < 1e9 else f"{count / 1e9:,.2f} GB"


@contextlib.contextmanager
def progress_bar(name: str, unit: str = "") -> Iterator[Callable[[str, int, int], object]]:
    """A report (stage, done, total) of bytes, or of what ``unit`` names: a bar with its rate, where a terminal shows it."""
    with contextlib.ExitStack() as stack:
        bars: dict[str, Any] = {}
        begin = time.perf_counter()

        def report(stage: str, done: int, total: int) -> None:
            if not sys.stderr.isatty() or time.perf_counter() - begin < _PATIENCE_S:
                return
            if "bar" not in bars:
                # Only now: rich costs more to import than a command that has nothing to fetch may spend.
                bars["bar"] = stack.enter_context(_bar(unit))
            if stage not in bars:
                bars[stage] = bars["bar"].add_task(f"{stage} {name}", total=total, rate="")
            rate = f"{done / max(time.perf_counter() - begin, 1e-9):,.1f} {unit}/s"
            bars["bar"].update(bars[stage], completed=done, total=total, rate=rate)

        yield report


def _bar(unit: str) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, ProgressColumn, TextColumn, TransferSpeedColumn

    counts: tuple[ProgressColumn, ...] = (DownloadColumn(), TransferSpeedColumn())
    if unit:
        counts = (TextColumn("{task.completed:,.0f} of {task.total:,.0f} " + unit), TextColumn("{task.fields[rate]}"))
    return Progress(TextColumn("{task.description}"), BarColumn(), *counts, console=Console(stderr=True), transient=True)
