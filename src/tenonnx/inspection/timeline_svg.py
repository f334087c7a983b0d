"""A plan's memory as one picture: the bands of the page, with their names, scales and legend in the drawing itself."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from tenonnx.inspection.bitmap import printable
from tenonnx.inspection.planned import Planned
from tenonnx.inspection.timeline import Band, bands, kernel_colours, scale

_LEFT, _PLOT, _TOP, _MARGIN = 150, 820, 62, 16  # pixels
_WIDTH = _LEFT + _PLOT + _MARGIN
_LEGEND, _LINE = 20, 18  # pixels: below the plot, and of one line of the legend
_CHARACTER = 6.2  # pixels of one in the legend, about
_STYLE = (
    "text{font:11px system-ui,'DejaVu Sans',sans-serif;fill:#333}.title{font-size:15px;font-weight:600}.name{font-weight:600}"
    "rect,path{vector-effect:non-scaling-stroke}.value,.lane{stroke:#fff;stroke-width:.6}.lane{fill:#cfe8cf}.caller{fill:#dcd7ec}"
    ".read{fill:#7fbf7b}.write{fill:#1b5e20}.live{fill:none;stroke:#000;stroke-width:1.2}.frame{fill:none;stroke:#bbb}"
)


def picture(planned: Planned) -> str:
    """A self-contained SVG: steps across, bytes up, caches and outputs as lanes that steps read and write."""
    plan, strips = planned.plan, list(bands(planned))
    steps, below = len(plan.steps), _TOP + sum(band.height for band in strips)
    legend = list(_legend(planned, below + 2 * _LEGEND))
    height = below + 2 * _LEGEND + _LINE * (1 + max((line for line, _ in legend), default=0))
    sizes = ", ".join(f"{name} = {value:,}" for name, value in planned.dims.items())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}">',
        f'<style>{_STYLE}</style><rect width="100%" height="100%" fill="#fff"/>',
        _text(_MARGIN, 26, f"{planned.name}: peak of a run {plan.peak_bytes:,} bytes", css="title"),
        _text(_MARGIN, 46, sizes),
        *_drawn(strips, steps),
        _text(_LEFT, below + 15, "step 0"),
        _text(_LEFT + _PLOT, below + 15, f"{steps:,}", anchor="end"),
        *(part for _, part in legend),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _drawn(strips: list[Band], steps: int) -> Iterator[str]:
    top = _TOP
    for band in strips:
        box = f'x="{_LEFT}" y="{top}" width="{_PLOT}" height="{band.height}"'
        yield f'<svg {box} viewBox="0 0 {max(steps, 1)} {band.units}" preserveAspectRatio="none">{"".join(band.parts)}</svg>'
        yield f'<rect class="frame" {box}/>'
        yield _text(_MARGIN, top + 14, band.name, css="name")
        yield _text(_MARGIN, top + 28, f"{band.nbytes:,} bytes")
        for count, place in scale(band):
            if place * band.height > 100 * 40:  # below the name
                yield _text(_LEFT - 5, top + place * band.height / 100, f"{count:,}", anchor="end")
        top += band.height


def _legend(planned: Planned, top: int) -> Iterator[tuple[int, str]]:
    """(line, drawing) of what each colour stands for."""
    marks = [*kernel_colours(planned.plan).items(), ("writes a cache or an output", "#1b5e20"), ("reads it", "#7fbf7b")]
    marks.append(("line: bytes in use", "#000"))
    x, line = float(_MARGIN), 0
    for name, fill in marks:
        taken = 30 + len(name) * _CHARACTER
        if x + taken > _WIDTH:
            x, line = float(_MARGIN), line + 1
        y = top + line * _LINE
        yield line, f'<rect x="{x:g}" y="{y - 9}" width="10" height="10" fill="{fill}"/>{_text(x + 14, y, name)}'
        x += taken


def _text(x: float, y: float, text: str, *, css: str = "", anchor: str = "") -> str:
    more = (f' class="{css}"' if css else "") + (f' text-anchor="{anchor}"' if anchor else "")
    return f'<text x="{x:g}" y="{y:g}"{more}>{escape(printable(text))}</text>'
