"""tenonnx packs: weights stored in the layouts that kernels read, beside the initializers that they were made from."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from tenonnx.cli import completion
from tenonnx.cli.common import FAILED, AsJson, command, print_json, progress_bar, prose, size, table
from tenonnx.cli.group import Commands, examples

app = typer.Typer(
    help="Store weights as kernels read them. Later starts map them; list, explain, verify or prune what is stored.",
    cls=Commands,
    rich_markup_mode=None,
)

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="An .onnx file; list takes all others too.", show_default=False, autocompletion=completion.models
    ),
]
_LIMIT_MB = 1000


@command("tenonnx packs build model.onnx", "tenonnx packs build model.onnx --device aarch64 --yes")
def build(
    model: Model,
    device: Annotated[str, typer.Option(help="An archspec architecture; auto: any that reads these layouts.")] = "auto",
    limit: Annotated[int, typer.Option(min=0, help="Megabytes from which on to ask before writing.")] = _LIMIT_MB,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write without asking.")] = False,
    json: AsJson = False,
) -> None:
    """Write the packs that MODEL lacks. Entries go into the .onnx, payloads into one file beside it."""
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

    with progress_bar(Path(model).name) as report:
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


@command("tenonnx packs list model.onnx", "tenonnx packs list model.onnx --json")
def list_(model: Model, json: AsJson = False) -> None:
    """List every pack of MODEL as it is declared. Nothing is hashed."""
    from tenonnx.compiled.load import declared
    from tenonnx.text import read_model

    rows = [row._asdict() for row in declared(read_model(model)[0])]
    if json:
        print_json({"model": model, "packs": rows})
        return
    columns = [(row["source"], row["layout"], row["device"], size(row["nbytes"]), row["file"] or "inline") for row in rows]
    for line in table(columns, numbers={3}):
        print(line)
    print(f"{len(rows)} packs, {size(sum(row['nbytes'] for row in rows))}")


@command("tenonnx packs explain model.onnx", "tenonnx packs explain model.onnx --json")
def explain(model: Model, json: AsJson = False) -> None:
    """Say of every pack whether this machine uses it, and why not."""
    from tenonnx.compiled.device import host
    from tenonnx.compiled.inventory import Inventory
    from tenonnx.compiled.load import summary

    inventory = Inventory(_onnx(model))
    verdicts, lacking = inventory.verdicts(), inventory.lacking()
    if json:
        packs = [dataclasses.asdict(verdict) for verdict in verdicts]
        print_json({"model": model, "host": host().architecture, "packs": packs, "packed_at_load": lacking})
        return
    _print_verdicts(verdicts)
    print(f"this host: {summary(verdicts) or 'no packs'}; {len(lacking)} weights are packed at load")


@command("tenonnx packs verify model.onnx", "tenonnx packs verify model.onnx --json")
def verify(model: Model, json: AsJson = False) -> None:
    """Check all packs against their sources. All is hashed again, packs are decoded. Exit code 1 for any fault."""
    from tenonnx.compiled.inventory import Inventory
    from tenonnx.runtime import default_threads

    inventory = Inventory(_onnx(model), threads=default_threads())
    faults = list(inventory.faults())
    count = len(inventory.model.compiled_tensors)
    if json:
        print_json({"model": model, "packs": count, "faults": [fault._asdict() for fault in faults]})
    else:
        for fault in faults:
            print(f"{fault.where} {fault.source}: {fault.message}")
        print(f"{count} packs, {len(faults)} faults")
    if faults:
        raise SystemExit(FAILED)


@command("tenonnx packs prune model.onnx", "tenonnx packs prune model.onnx --host-only")
def prune(
    model: Model,
    host_only: Annotated[bool, typer.Option("--host-only", help="Remove what this machine does not use as well.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Remove every pack.")] = False,
    json: AsJson = False,
) -> None:
    """Remove packs that no machine uses. They are stale, damaged or duplicates; the files they lie in shrink."""
    from tenonnx.compiled.prune import prune as remove

    removed = remove(_onnx(model), host_only=host_only, everything=everything)
    if json:
        print_json(dataclasses.asdict(removed))
        return
    _print_verdicts(removed.verdicts)
    print(f"{len(removed.verdicts)} packs removed, {removed.kept} kept, {size(removed.freed)} freed")


def _print_verdicts(verdicts: Iterable[Any]) -> None:
    """A line for each pack, and one more that says why it is not used."""
    found = list(verdicts)
    columns = [(pack.kind, pack.source, pack.layout, pack.device, size(pack.nbytes)) for pack in found]
    for pack, line in zip(found, table(columns, numbers={4}, flexible=1), strict=True):
        print(line)
        if pack.why:
            print(prose(f"  {pack.why}"))


def _onnx(name: str) -> Path:
    from tenonnx.errors import UnsupportedError
    from tenonnx.text.loading import find_model

    path = find_model(name)
    if path.suffix.lower() == ".gguf":
        raise UnsupportedError(f"{name}: a GGUF holds no packs; convert it first: tenonnx convert {name} model.onnx --copy")
    return path


for name, function in (("build", build), ("list", list_), ("explain", explain), ("verify", verify), ("prune", prune)):
    app.command(name, epilog=examples(function.__dict__["examples"]))(function)
