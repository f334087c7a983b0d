"""A plan's memory as one self-contained page: steps across, bytes up, the persistent caches as a band of their own.

Each band has a scale of its own. Names show under the pointer, and without a script as the titles of the picture's parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from html import escape
from importlib import resources
from string import Template
from typing import NamedTuple

from tenonnx.inspection.bitmap import colour, printable
from tenonnx.inspection.plan_text import step_label, value_type, written
from tenonnx.inspection.planned import Planned
from tenonnx.plan import ExecutionPlan, Slot
from tenonnx.plan.timeline import Tenant, in_use, live_bytes, slot_uses, tenants

_ARENA, _WORKSPACE = 340, 110  # pixels
_LANE, _LANES = 16, 220  # pixels of one lane, and of all lanes of a band at most
_LOWEST = 40  # pixels of a band with its name


class Band(NamedTuple):
    """One strip of the picture: its name and bytes, and the inner parts of a drawing as wide as steps and ``units`` high."""

    height: int  # pixels
    name: str
    nbytes: int
    units: int
    parts: Iterator[str]
    is_block: bool  # its height is bytes


def page(planned: Planned) -> str:
    """The page, complete in itself: no other file and no network."""
    plan = planned.plan
    live, strips = live_bytes(plan), list(bands(planned))
    return Template(resources.files(__package__).joinpath("timeline.html").read_text(encoding="utf-8")).substitute(
        title=_text(planned.name),
        sizes=_text(", ".join(f"{name} = {value:,}" for name, value in planned.dims.items())),
        figures="".join(f"<div><dt>{name}</dt><dd>{text}</dd></div>" for name, text in _figures(planned, live)),
        scales="".join(f'<div class="band" style="height:{band.height}px">{_label(band)}</div>' for band in strips),
        bands="\n".join(_drawing(band, len(plan.steps)) for band in strips),
        ticks="".join(_ticks(len(plan.steps))),
        legend="".join(_legend(plan)),
        count=f"{len(plan.steps):,}",
        rows="\n".join(_rows(plan, live)),
    )


def bands(planned: Planned) -> Iterator[Band]:
    """Caches on top, which outlive the run; then its outputs, the workspace and the arena."""
    plan = planned.plan
    for name, nbytes, css, slots in (
        ("caches", planned.cache_bytes, "lane", [slot for slot in plan.slots if slot.is_cache]),
        ("outputs", plan.output_bytes, "lane caller", [slot for slot in plan.slots if slot.is_output]),
    ):
        if slots:
            height = max(min(_LANE * len(slots), _LANES), _LOWEST)
            yield Band(height, f"{name}: {len(slots)}", nbytes, len(slots), _lanes(plan, slots, css), False)
    held = tenants(plan)
    for name, height, nbytes, base in (
        ("workspace", _WORKSPACE, plan.workspace_bytes, plan.arena_bytes),
        ("arena", _ARENA, plan.arena_bytes, 0),
    ):
        if nbytes:
            inside = [tenant for tenant in held if base <= tenant.offset < base + nbytes]
            yield Band(height, name, nbytes, nbytes, _block(plan, inside, base, nbytes), True)


def _label(band: Band) -> str:
    ticks = "".join(
        f'<div class="tick" style="top:{min(place, 94):.2f}%">{count:,}</div>' for count, place in scale(band) if place > 20
    )  # above it stands the name
    return f'<div class="label"><h2>{band.name}</h2>{band.nbytes:,} bytes</div>{ticks}'


def _drawing(band: Band, steps: int) -> str:
    """A band's drawing; it is stretched over all steps, so it holds no text."""
    box = f"0 0 {max(steps, 1)} {band.units}"
    drawn = f'<svg viewBox="{box}" preserveAspectRatio="none">{"".join(band.parts)}</svg>'
    return f'    <div class="band" style="height:{band.height}px">{drawn}</div>'


def _figures(planned: Planned, live: list[int]) -> Iterator[tuple[str, str]]:
    plan = planned.plan
    top = max(range(len(live)), key=live.__getitem__, default=0)
    yield "peak of a run", f"{plan.peak_bytes:,} bytes" + (f"; most in use at step {top}: {live[top]:,}" if any(live) else "")
    yield "arena", f"{plan.arena_bytes:,} bytes"
    yield "workspace", f"{plan.workspace_bytes:,} bytes"
    yield "caches, updated in place", f"{planned.cache_bytes:,} bytes"
    yield "allocated for caches by a run", f"{plan.extra_cache_bytes:,} bytes"
    yield "outputs", f"{plan.output_bytes:,} bytes"
    yield "weights", f"{plan.weight_bytes:,} bytes"


def _lanes(plan: ExecutionPlan, slots: list[Slot], css: str) -> Iterator[str]:
    """One lane for each value that lives as long as the run: marked where steps read it, and where they write it."""
    for lane, slot in enumerate(slots):
        reads, writes = slot_uses(plan, slot.value)
        title = (
            f"{slot.name}: {value_type(plan.values[slot.value])}, {slot.nbytes:,} bytes\n"
            f"written by {_listed(writes)}; read by {_listed(reads)}"
        )
        yield _rect(css, 0, lane, len(plan.steps), 1, title)
        yield from (_rect("read", step, lane + 0.1, 1, 0.8) for step in reads)
        yield from (_rect("write", step, lane + 0.1, 1, 0.8) for step in writes)


def _listed(steps: list[int]) -> str:
    named = ", ".join(map(str, steps[:6])) + (", …" if len(steps) > 6 else "")
    return f"{'step' if len(steps) == 1 else 'steps'} {named}" if steps else "no step"


def _block(plan: ExecutionPlan, held: list[Tenant], base: int, nbytes: int) -> Iterator[str]:
    """Who holds which of the bytes from ``base`` on, and how many are in use."""
    colours = kernel_colours(plan)
    for tenant in held:
        value, maker = plan.values[tenant.value], _maker(plan, tenant.first)
        title = (
            f"{value.name}: {value_type(value)}\n{tenant.nbytes:,} bytes at {tenant.offset:,}, {value.storage.value}\n"
            f"steps {tenant.first} to {tenant.last - 1}, made by {maker}"
        )
        top = base + nbytes - tenant.offset - tenant.nbytes
        yield _rect("value", tenant.first, top, tenant.last - tenant.first, tenant.nbytes, title, colours[maker])
    heights = "".join(f"V{nbytes - count}h1" for count in in_use(held, len(plan.steps)))
    yield f'<path class="live" d="M0 {nbytes}{heights}"/>'


def _maker(plan: ExecutionPlan, step: int) -> str:
    return plan.steps[step].kernel or "onnxruntime"


def kernel_colours(plan: ExecutionPlan) -> dict[str, str]:
    """A colour for each kernel that makes a value, the most frequent first."""
    made = Counter(_maker(plan, tenant.first) for tenant in tenants(plan))
    return {kernel: colour(place) for place, (kernel, _) in enumerate(made.most_common())}


def _rect(css: str, x: float, y: float, width: float, height: float, title: str = "", fill: str = "") -> str:
    drawn = f' fill="{fill}"' if fill else ""
    inner = f"<title>{_text(title)}</title>" if title else ""
    return f'<rect class="{css}" x="{x:g}" y="{y}" width="{width:g}" height="{height}"{drawn}>{inner}</rect>'


def scale(band: Band) -> Iterator[tuple[int, float]]:
    """Round numbers of bytes beside a block, and how far from its top each stands, of 100."""
    if not band.is_block:
        return
    nbytes = band.nbytes
    step = 10 ** len(str(nbytes // 2))
    step = next((size for size in (step, step // 2, step // 4, step // 5, step // 10) if nbytes // max(size, 1) >= 2), nbytes)
    for count in range(0, nbytes, max(step, 1)):
        yield count, 100 * (1 - count / nbytes)


def _ticks(steps: int) -> Iterator[str]:
    every = max(1, steps // 400)
    for number in range(0, steps, every):
        yield f'<span style="left:{100 * number / steps:.4f}%">{number}</span>'


def _legend(plan: ExecutionPlan) -> Iterator[str]:
    for kernel, fill in kernel_colours(plan).items():
        yield f'<span><i style="background:{fill}"></i>{_text(kernel)}</span>'
    yield '<span><i style="background:#1b5e20"></i>writes a cache or an output</span>'
    yield '<span><i style="background:#7fbf7b"></i>reads it</span>'
    yield "<span>black line: bytes in use</span>"


def _rows(plan: ExecutionPlan, live: list[int]) -> Iterator[str]:
    for number, (step, count) in enumerate(zip(plan.steps, live, strict=True)):
        cells = number, step.kernel or "onnxruntime", step_label(plan, number), written(plan, step), f"{count:,}"
        yield f"<tr>{''.join(f'<td>{_text(str(cell))}</td>' for cell in cells)}</tr>"


def _text(text: str) -> str:
    return "\n".join(escape(printable(line)) for line in text.split("\n"))
