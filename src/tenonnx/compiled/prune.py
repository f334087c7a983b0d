"""Removing packs that are of no use, and the bytes that they took."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenonnx.compiled.device import RUNTIME, Host, features_of, known, needs
from tenonnx.compiled.inventory import Inventory
from tenonnx.compiled.load import UNMAPPED, Verdict
from tenonnx.compiled.store import PAGE, SUFFIX, copy_payload, grouped, in_range, locked, replace_packs, replacing
from tenonnx.schema.external import parse_external


@dataclass(frozen=True)
class Removed:
    """What a prune did."""

    verdicts: list[Verdict]  # on the entries that were removed
    kept: int
    freed: int  # bytes


def prune(
    path: str | os.PathLike[str],
    *,
    data_root: str | os.PathLike[str] | None = None,
    host_only: bool = False,
    everything: bool = False,
    threads: int = 1,
) -> Removed:
    """Remove packs that no host can use: stale, damaged or duplicate ones, and those of another version or of no weight.

    Packs of a format that this process has not mapped to a layout (``tenonnx.layouts.add``) may be of use to one that does.
    With ``host_only`` those that this host does not use go as well, and with ``everything`` all. Packs of other runtimes are
    kept as long as their source is there, unless ``everything`` is asked for. Payload files shrink, or go.

    Raises ``PayloadError`` when a file cannot be written; then the model is as it was, or its packs are passed over.
    """
    path = Path(path).resolve()
    with locked(path.parent):
        inventory = Inventory(path, data_root, threads)
        before = _bytes(inventory)
        dropped = _dropped(inventory, host_only, everything)
        kept = [position for position in range(len(inventory.model.compiled_tensors)) if position not in dropped]
        if dropped or inventory.damaged:
            _compact(inventory, kept)
            replace_packs(path, inventory.data, grouped(inventory.model, kept))
        _sweep(inventory, kept)
        return Removed([dropped[position] for position in sorted(dropped)], len(kept), before - _bytes(inventory))


def _dropped(inventory: Inventory, host_only: bool, everything: bool) -> dict[int, Verdict]:
    """The entries to remove, each with the verdict that says why."""
    model = inventory.model
    count = len(model.compiled_tensors)
    if everything or host_only:
        unwanted = {"hit", "usable", "miss", "damaged"} if everything else {"usable", "miss", "damaged"}
        verdicts = inventory.verdicts()
        foreign = set() if everything else {position for position in range(count) if _foreign(inventory, position)}
        return {verdict.entry: verdict for verdict in verdicts if verdict.kind in unwanted and verdict.entry not in foreign}
    dropped = {}
    for device in {entry.device for entry in model.compiled_tensors}:
        entries = [position for position in range(count) if model.compiled_tensors[position].device == device]
        entries = [position for position in entries if not _foreign(inventory, position)]
        # A second pack of one source for one device is never taken.
        for verdict in inventory.matcher(_host_of(model, device)).match(entries, every=True).verdicts:
            if verdict.kind != "hit" and verdict.why != UNMAPPED:
                dropped[verdict.entry] = verdict
    return dropped


def _host_of(model: Any, device: int) -> Host | None:
    """The least host that has what a device asks for: its packs are not to go for want of that."""
    if not 0 <= device < len(model.devices) or not known(model.devices[device].architecture):
        return None
    described = model.devices[device]
    return Host(needs(described.architecture)[0], described.architecture, features_of(described))


def _foreign(inventory: Inventory, position: int) -> bool:
    """Whether an entry is another runtime's, and may be right."""
    model = inventory.model
    entry = model.compiled_tensors[position]
    if not in_range(model, position) or model.devices[entry.device].runtime == RUNTIME:
        return False
    return len(inventory.matcher().initializers.get(entry.source_name, ())) == 1


def _compact(inventory: Inventory, kept: Iterable[int]) -> None:
    """Write the payload files of this model anew with what is kept, and let the kept entries point there."""
    by_file: dict[str, list[Any]] = {}
    for position in kept:
        value = inventory.model.compiled_tensors[position].value
        location = parse_external("pack", value.external_data).location if value.external_data else ""
        if _is_payload_file(inventory, location):
            by_file.setdefault(location, []).append(value)
    for location, values in by_file.items():
        place = inventory.folder / location
        if sum(-(-_length(value) // PAGE) * PAGE for value in values) == place.stat().st_size:
            continue  # nothing in it goes
        with replacing(place, inventory.path) as stream:
            for value in values:
                copy_payload(value, inventory.root.read("pack", value.external_data), stream, location)


def _length(value: Any) -> int:
    return parse_external("pack", value.external_data).length or 0


def _is_payload_file(inventory: Inventory, name: str) -> bool:
    prefix = f"{inventory.path.name}."
    return name.startswith(prefix) and name.endswith(SUFFIX) and known(name[len(prefix) : -len(SUFFIX)])


def _sweep(inventory: Inventory, kept: Iterable[int]) -> None:
    """Delete payload files that nothing points into, and what a killed writer left."""
    values = [inventory.model.compiled_tensors[position].value for position in kept]
    used = {parse_external("pack", value.external_data).location for value in values if value.external_data}
    for file in inventory.folder.iterdir():
        draft = file.name.startswith(f".{inventory.path.name}") and file.name.endswith(".part")
        if draft or (_is_payload_file(inventory, file.name) and file.name not in used):
            file.unlink(missing_ok=True)


def _bytes(inventory: Inventory) -> int:
    """Bytes of the model and of its payload files."""
    files = [file for file in inventory.folder.iterdir() if _is_payload_file(inventory, file.name)]
    return inventory.path.stat().st_size + sum(file.stat().st_size for file in files)
