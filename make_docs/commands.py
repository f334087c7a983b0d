"""The page of commands, from what typer knows of them: usage, help, arguments and options with their defaults, examples."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from tenonnx import cli

_HEAD = """# Commands

`tenonnx COMMAND --help` shows the same in a terminal.

"""


def page() -> str:
    """The page as Markdown."""
    root = get_command(cli.app)
    sections = (f"\n## {' '.join(words)}\n\n{_body(words, command)}" for words, command in _commands(["tenonnx"], root))
    return _HEAD + _body(["tenonnx"], root) + "".join(sections)


def _commands(words: list[str], group: Any) -> Iterator[tuple[list[str], Any]]:
    """The words and the command of all that a group holds, of inner groups too."""
    for name, command in group.commands.items():
        yield [*words, name], command
        if hasattr(command, "commands"):
            yield from _commands([*words, name], command)


def _body(words: list[str], command: Any) -> str:
    """Usage, help, tables and examples of one command."""
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [parameter for parameter in command.params if parameter.param_type_name == "option" and not parameter.hidden]
    usage = " ".join([*words, *(["[OPTIONS]"] if options else []), *map(_argument, arguments)])
    usage += " COMMAND" if hasattr(command, "commands") else ""
    rows = [f"| `{argument.metavar}` | {_told(argument)} |" for argument in arguments]
    rows += [f"| {_option(option)} | {_told(option)} |" for option in options]
    table = "\n".join(["| Argument or option | |", "| --- | --- |", *rows, "", ""]) if rows else ""
    return f"{_fenced([usage])}\n{_prose(command.help)}\n\n{table}{_epilog(command.epilog or '')}"


def _argument(argument: Any) -> str:
    return str(argument.metavar) if argument.required else f"[{argument.metavar}]"


def _option(option: Any) -> str:
    value = "" if option.is_flag else f" {option.metavar or option.name.upper()}"
    names = [f"`{name}{value if name.startswith('--') else ''}`" for name in (*option.opts, *option.secondary_opts)]
    return ", ".join(names)


def _told(parameter: Any) -> str:
    """The help, and the default where one is shown."""
    shown = parameter.show_default
    default = shown if isinstance(shown, str) else parameter.default if shown else None
    if isinstance(default, list):
        default = ", ".join(map(str, default))
    told = "" if default in (None, False, "") else f" Default: {default}."
    return f"{parameter.help}{told}".replace("|", "\\|")


def _epilog(text: str) -> str:
    """Examples as they are typed, and prose between them."""
    parts = [part.strip("\b\n") for part in text.split("\n\n")]
    return "\n".join(_examples(part) if re.match("Examples?:", part) else f"{_prose(part)}\n" for part in parts if part)


def _examples(part: str) -> str:
    return _fenced([line.strip() for line in re.sub("^Examples?:", "", part).strip().splitlines()])


def _fenced(lines: list[str]) -> str:
    return "\n".join(["```text", *lines, "```", ""])


def _prose(text: str) -> str:
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
