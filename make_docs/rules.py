"""The tables of rules that the reference pages show."""

from __future__ import annotations

from tenonnx.check import RULES


def table(contract: str) -> str:
    """The rules of one contract as a Markdown table."""
    rows = "".join(f"| `{rule}` | {text} |\n" for rule, text in RULES[contract].items())
    return f"| Rule | What it asks for |\n| --- | --- |\n{rows}"
