"""tenonnx packs: weights stored in the layouts that kernels read, beside the initializers that they were made from."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from tenonnx.cli.common import FAILED, AsJson, command, print_json, progress_bar, size

app = typer.Typer(
    help="Store weights as kernels read them, so that later starts map them; list, explain, verify and prune what is stored.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="An .onnx file.", show_default=False)]
_LIMIT_MB = 1000


@command("tenonnx packs build smollm2.onnx")
def build(
    model: Model,
    device: Annotated[str, typer.Option(help="An archspec architecture; auto: any that reads these layouts.")] = "auto",
    limit: Annotated[int, typer.Option(min=0, help="Megabytes from which on to ask before writing.")] = _LIMIT_MB,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write without asking.")] = False,
    json: AsJson = False,
) -> None:
    """Write the packs that MODEL lacks into it: entries in the .onnx, payloads in one file beside it."""
    from tenonnx.compiled import store
    from tenonnx.errors import OptionError
    from tenonnx.runtime import default_threads

    def agree(plan: store.Plan) -> bool:
        if not yes and plan.nbytes > limit * 1_000_000:
            question = f"{plan.path.name}: {size(plan.nbytes)}, over the limit of {limit} MB. Write it?"
            if not sys.stdin.isatty():
                raise OptionError(f"{question} Say so with --yes, or raise --limit")
            typer.confirm(question, abort=True, err=True)
        return True

    with progress_bar(model.name) as report:
        done = 0

        def progress(nbytes: int) -> None:
            nonlocal done
            done += nbytes
            report("pack", done, max(done, 1))

        plan = store.build(_onnx(model), architecture=device, agree=agree, threads=default_threads(), progress=progress)
    if json:
        print_json({**dataclasses.asdict(plan), "path": str(plan.path)})
    elif plan.new:
        print(f"{plan.path.name}: {size(plan.nbytes)}, {plan.new} packs written and {plan.kept} kept for {plan.architecture}")
    else:
        print(f"{plan.path.name}: all {plan.kept} packs for {plan.architecture} are there")


@command("tenonnx packs list smollm2.onnx")
def list_(model: Model, json: AsJson = False) -> None:
    """List every pack of MODEL as it is declared, without hashing anything."""
    from tenonnx.compiled.load import declared
    from tenonnx.schema.files import load

    rows = [row._asdict() for row in declared(load(_onnx(model)))]
    if json:
        print_json({"model": str(model), "packs": rows})
        return
    for row in rows:
        print(f"{row['source']:40s} {row['layout']:8s} {row['device']:12s} {size(row['nbytes']):>14s}  {row['file'] or 'inline'}")
    print(f"{len(rows)} packs, {size(sum(row['nbytes'] for row in rows))}")


@command("tenonnx packs explain smollm2.onnx")
def explain(model: Model, json: AsJson = False) -> None:
    """Say of every pack whether this machine uses it, and why not."""
    from tenonnx.compiled.device import host
    from tenonnx.compiled.inventory import Inventory
    from tenonnx.compiled.load import summary

    inventory = Inventory(_onnx(model))
    verdicts, lacking = inventory.verdicts(), inventory.lacking()
    if json:
        packs = [dataclasses.asdict(verdict) for verdict in verdicts]
        print_json({"model": str(model), "host": host().architecture, "packs": packs, "packed_at_load": lacking})
        return
    _print_verdicts(verdicts)
    print(f"this host: {summary(verdicts) or 'no packs'}; {len(lacking)} weights are packed at load")


@command("tenonnx packs verify smollm2.onnx")
def verify(model: Model, json: AsJson = False) -> None:
    """Hash all sources and payloads again, and decode packs against their sources. Exit code 1 when anything is wrong."""
    from tenonnx.compiled.inventory import Inventory
    from tenonnx.runtime import default_threads

    inventory = Inventory(_onnx(model), threads=default_threads())
    faults = list(inventory.faults())
    count = len(inventory.model.compiled_tensors)
    if json:
        print_json({"model": str(model), "packs": count, "faults": [fault._asdict() for fault in faults]})
    else:
        for fault in faults:
            print(f"{fault.where} {fault.source}: {fault.message}")
        print(f"{count} packs, {len(faults)} faults")
    if faults:
        raise SystemExit(FAILED)


@command("tenonnx packs prune smollm2.onnx")
def prune(
    model: Model,
    host_only: Annotated[bool, typer.Option("--host-only", help="Remove what this machine does not use as well.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Remove every pack.")] = False,
    json: AsJson = False,
) -> None:
    """Remove packs that are stale, damaged, duplicate or of no use to any machine, and shrink the files they lie in."""
    from tenonnx.compiled.prune import prune as remove

    removed = remove(_onnx(model), host_only=host_only, everything=everything)
    if json:
        print_json(dataclasses.asdict(removed))
        return
    _print_verdicts(removed.verdicts)
    print(f"{len(removed.verdicts)} packs removed, {removed.kept} kept, {size(removed.freed)} freed")


def _print_verdicts(verdicts: Iterable[Any]) -> None:
    for verdict in verdicts:
        why = f": {verdict.why}" if verdict.why else ""
        print(f"{verdict.kind:8s} {verdict.source:40s} {verdict.layout:8s} {verdict.device:12s} {size(verdict.nbytes)}{why}")


def _onnx(path: Path) -> Path:
    from tenonnx.errors import UnsupportedError

    if path.exists() and path.suffix.lower() == ".gguf":
        raise UnsupportedError(f"{path}: a GGUF holds no packs; convert it first: tenonnx convert {path.name} model.onnx")
    return path


for name, function in (("build", build), ("list", list_), ("explain", explain), ("verify", verify), ("prune", prune)):
    app.command(name, epilog=f"Example: {function.__dict__['example']}")(function)
