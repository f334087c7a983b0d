"""How commands are found, and how each ends: help with several examples, one line for every error, and four exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from tenonnx.cli.common import INTERRUPTED, USAGE, fail, leave_unwritable, tell

_UsageError: Any = typer.BadParameter.__base__  # typer gives it no name of its own

EXIT_CODES = "Exit codes: 0 done, 1 failed, 2 wrong usage, 130 stopped by Ctrl-C."


def examples(commands: Sequence[str], *paragraphs: str) -> str:
    """The end of a help text: commands as they are, one a line, then prose."""
    lines = ["\b", f"Example{'s'[: len(commands) != 1]}:", *(f"  {command}" for command in commands)]
    return "\n\n".join(["\n".join(lines), *paragraphs])


class Commands(TyperGroup):
    """The commands of ``tenonnx``, or of ``tenonnx packs``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            tell(ctx.get_help())
            raise SystemExit(USAGE)
        return super().parse_args(ctx, args)

    def main(self, args: Any = None, prog_name: str | None = None, *_: Any, **options: Any) -> Any:
        """Run a command and end the process, or the test that calls this."""
        options["standalone_mode"] = False  # the errors come here
        try:
            code = super().main(args, prog_name or "tenonnx", **options)
        except _UsageError as error:
            path = error.ctx.command_path if error.ctx else "tenonnx"
            fail(f"{error.format_message().rstrip('.')}; see {path} --help", USAGE)
        except typer.Abort as error:
            if isinstance(error.__context__, KeyboardInterrupt):
                raise SystemExit(INTERRUPTED) from None
            fail("the question was answered with no; nothing was done")
        except OSError as error:
            leave_unwritable(error)
        sys.exit(code or 0)
