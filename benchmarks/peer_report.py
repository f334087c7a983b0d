"""What a race of engines looks like: a Markdown table for each, and a plot of decode speed over depth."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from peers import Race

OURS = "tenonnx"
_UNITS = {"load": ("s", 1.0, 3), "first_token": ("s", 1.0, 3), "rss": ("MB", 1e-6, 0)}


def markdown(races: dict[str, Race], kl: dict[str, float]) -> str:
    """Medians of every engine, and our ratio to each peer with its spread."""
    return "\n\n".join(_table(title, race, kl if title == "2 threads" else {}) for title, race in races.items()) + "\n"


def _table(title: str, race: Race, kl: dict[str, float]) -> str:
    ratios = race.ratios()
    peers = list(ratios)
    lines = [
        f"**{title}**, medians of {race.rounds} rounds, tokens/s; ratio (min-max) of {OURS} to each",
        "",
        f"| | {OURS} | " + " | ".join(peers) + " |",
        "|---|" + "---|" * (1 + len(peers)),
    ]
    for measure, row in race.figures.items():
        unit, scale, digits = _UNITS.get(measure, ("", 1.0, 1))
        cells = [f"{measure} {unit}".strip(), f"{statistics.median(row[OURS]) * scale:,.{digits}f}"]
        for peer in peers:
            spread = sorted(ratios[peer][measure])
            ratio = f"{statistics.median(spread):.2f}x ({spread[0]:.2f}-{spread[-1]:.2f})"
            cells.append(f"{statistics.median(row[peer]) * scale:,.{digits}f}, **{ratio}**")
        lines.append(f"| {' | '.join(cells)} |")
    if kl:
        lines.append(f"| KL to float32 | {' | '.join(f'{kl[name]:.4f}' for name in (OURS, *peers))} |")
    return "\n".join(lines)


def plot(race: Race, path: Path) -> None:
    """Decode speed over depth, one line an engine."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    measures = [measure for measure in race.figures if measure.startswith("decode_")]
    depths = [int(measure.removeprefix("decode_")) for measure in measures]
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for name in race.entries:
        speeds = [statistics.median(race.figures[measure][name]) for measure in measures]
        axes.plot(depths, speeds, marker="o", linewidth=2.5 if name == OURS else 1.2, label=name)
    axes.set(xlabel="tokens in the cache", ylabel="decoded tokens per second", title=f"Decode, {race.threads} threads")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)
