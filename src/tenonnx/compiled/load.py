"""Which stored packs a session may use: every loading rule of the specification, and a verdict for every entry.

A pack is used only when all rules hold. One that cannot be used is left alone, with the reason: "miss" for what is merely not
for this source, host or runtime, "damaged" for what breaks a rule on any host.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from tenonnx.compiled import layout_types
from tenonnx.compiled.device import Host, features_of, host, layout_misfit, misfit
from tenonnx.compiled.digest import ALGORITHMS
from tenonnx.compiled.hashes import Hashes
from tenonnx.compiled.watch import Sealed, WatchedFile
from tenonnx.errors import TenonnxError
from tenonnx.layouts import Layout
from tenonnx.schema.external import DataRoot, MappedFile
from tenonnx.schema.payload import is_external, struct_payload
from tenonnx.structs.physical import Node
from tenonnx.structs.reader import INLINE, Types

ALIGNMENT = 64  # of a payload that kernels read where it lies
LAYOUT, SEAL = "layout", "payload_digest"  # metadata of an entry
UNMAPPED = "its format has no layout in this process: import the module that maps it (tenonnx.layouts.add) first"

Kind = Literal["hit", "usable", "miss", "damaged"]


class Wanted(NamedTuple):
    """A weight as kernels read it: a layout, and its [rows, columns]; the source may be stored as [columns, rows]."""

    layout: Layout
    rows: int
    columns: int
    columns_first: bool = False

    @property
    def identity(self) -> str:
        return layout_types.identity(self.layout, self.columns_first)

    @property
    def nbytes(self) -> int:
        return self.layout.nbytes(self.rows, self.columns)


@dataclass(frozen=True)
class Verdict:
    """What becomes of ``compiled_tensors[entry]``, and why."""

    entry: int
    source: str
    device: str
    layout: str
    nbytes: int
    kind: Kind
    why: str = ""


class Rejected(Exception):
    """An entry that is not used."""

    def __init__(self, kind: Kind, why: str) -> None:
        super().__init__(why)
        self.kind = kind


@dataclass
class Packs:
    """The packs that a session uses, by source, the files that they are mapped from, and the verdict on every entry."""

    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)
    files: dict[str, WatchedFile] = field(default_factory=dict)


class Matcher:
    """Finds the packs of a model for the weights that a planner wants."""

    def __init__(
        self,
        model: Any,
        wanted: Mapping[str, Wanted],
        root: DataRoot,
        *,
        here: Host | None = None,
        strict: bool = False,
        threads: int = 1,
        model_file: MappedFile | None = None,
    ) -> None:
        self.model = model
        self.wanted = wanted
        self.pack_root = DataRoot(root.folder)  # apart, so that giving back the sources' pages leaves the packs'
        self.here = here or host()
        self._types = Types(model.struct_types)
        self._nodes: dict[Any, Node] = {}
        self.hashes = Hashes(model, root, model_file, strict, threads)
        self._misfits = [misfit(device, self.here) for device in model.devices]
        self._asks = [len(features_of(device)) for device in model.devices]

    @cached_property
    def initializers(self) -> dict[str, list[Any]]:
        """The initializers of the main graph by name; a list, as a damaged model may repeat one."""
        found: dict[str, list[Any]] = {}
        for value in (*self.model.graph.initializer, *self.model.graph.struct_initializer):
            found.setdefault(value.name, []).append(value)
        return found

    def match(self, entries: Iterable[int] | None = None, *, every: bool = False) -> Packs:
        """The best usable pack of each source among ``entries`` (all). With ``every`` the others are hashed as well."""
        packs = Packs()
        verdicts: dict[int, Verdict] = {}
        usable: dict[str, list[int]] = {}
        for position in range(len(self.model.compiled_tensors)) if entries is None else entries:
            entry = self.model.compiled_tensors[position]
            try:
                self._fits(entry)
                usable.setdefault(entry.source_name, []).append(position)
            except Rejected as reason:
                verdicts[position] = self._verdict(position, reason.kind, str(reason))
            except TenonnxError as error:
                verdicts[position] = self._verdict(position, "damaged", str(error))
        for source, positions in usable.items():
            for position in sorted(positions, key=self._rank):
                verdicts[position] = self._settle(packs, source, position, every)
        self.hashes.remember()
        packs.verdicts = [verdicts[position] for position in sorted(verdicts)]
        return packs

    def _rank(self, position: int) -> tuple[int, int]:
        """Better packs first: what asks more of the host was made for it."""
        return -self._asks[self.model.compiled_tensors[position].device], position

    def _settle(self, packs: Packs, source: str, position: int, every: bool) -> Verdict:
        taken = source in packs.arrays
        if taken and not every:
            return self._verdict(position, "usable", "a better one exists")
        entry = self.model.compiled_tensors[position]
        try:
            self.source_matches(entry)
            data = self.sealed_payload(entry)
        except Rejected as reason:
            return self._verdict(position, reason.kind, str(reason))
        except TenonnxError as error:
            return self._verdict(position, "damaged", str(error))
        if taken:
            return self._verdict(position, "usable", "a better one exists")
        packs.arrays[source] = _aligned(data)
        if is_external(entry.value):
            self._watch(packs, entry, data)
        return self._verdict(position, "hit")

    def _verdict(self, position: int, kind: Kind, why: str = "") -> Verdict:
        entry = _declared(self.model, self.model.compiled_tensors[position])
        return Verdict(position, entry.source, entry.device, entry.layout, entry.nbytes, kind, why)

    # ---- The loading rules, cheap ones first

    def _fits(self, entry: Any) -> None:
        self.source_is_one_initializer(entry)
        self.device_is_in_range(entry)
        self.device_is_compatible(entry)
        self.type_is_recognized(entry)

    def source_is_one_initializer(self, entry: Any) -> None:
        count = len(self.initializers.get(entry.source_name, ()))
        if count != 1:
            raise Rejected("damaged", f"{count or 'no'} initializers are named {entry.source_name!r}; expected one")
        if entry.source_name not in self.wanted:
            mapped = metadata(entry).get(LAYOUT, "").startswith("lut")
            raise Rejected("miss", UNMAPPED if mapped else "no kernel reads this initializer packed")

    def device_is_in_range(self, entry: Any) -> None:
        if not entry.HasField("device") or not 0 <= entry.device < len(self.model.devices):
            raise Rejected("damaged", f"its device {entry.device} is not in devices, which has {len(self.model.devices)} entries")

    def device_is_compatible(self, entry: Any) -> None:
        why = self._misfits[entry.device] or layout_misfit(
            self.model.devices[entry.device], self.wanted[entry.source_name].layout
        )
        if why is not None:
            raise Rejected("miss", why)

    def type_is_recognized(self, entry: Any) -> None:
        """Its type is that of the wanted layout and shape, and its payload as long as that says."""
        wanted = self.wanted[entry.source_name]
        expected = wanted.identity
        found = metadata(entry).get(LAYOUT)
        if found != expected:
            raise Rejected("miss", f"its layout is {found}, this runtime reads {expected}")
        if self._node(entry.value) != layout_types.node(wanted.layout, wanted.rows, wanted.columns):
            raise Rejected("damaged", f"its type is not that of a [{wanted.rows}, {wanted.columns}] matrix in layout {expected}")
        if _size(entry.value) != wanted.nbytes:
            raise Rejected("damaged", f"its type takes {wanted.nbytes} bytes, found {_size(entry.value)}")

    def source_matches(self, entry: Any) -> None:
        """The source has the content that the pack was made from."""
        if not entry.source_digest or not entry.digest_algorithm:
            raise Rejected("damaged", "it has no digest of its source, or does not name the algorithm")
        if entry.digest_algorithm not in ALGORITHMS:
            raise Rejected("miss", f"digest algorithm {entry.digest_algorithm!r} is not known")
        if self.hashes.of_source(self.initializers[entry.source_name][0], entry.digest_algorithm) != entry.source_digest:
            raise Rejected("miss", "stale: the initializer has changed since the pack was made")

    def sealed_payload(self, entry: Any) -> np.ndarray:
        """UINT8[n]: the payload, whose own digest was checked now or on this machine before."""
        data = struct_payload(entry.value, self.pack_root, f"pack of {entry.source_name!r}")
        recorded = metadata(entry).get(SEAL, "")
        found = self.hashes.of_payload(entry.value, self.pack_root, self._seal_header(entry), data, entry.digest_algorithm)
        if found.hex() != recorded:
            raise Rejected("damaged", "its payload is not what was written: its digest differs")
        return data

    # ---- Types and files

    def _seal_header(self, entry: Any) -> bytes:
        want = self.wanted[entry.source_name]
        return seal_header(entry.source_digest, want.identity, want.rows, want.columns)

    def _node(self, value: Any) -> Node:
        key = value.type if value.type != INLINE else value.struct_type.SerializeToString(deterministic=True)
        if key not in self._nodes:
            self._nodes[key] = self._types.of_value(value, "its value")
        return self._nodes[key]

    def _watch(self, packs: Packs, entry: Any, data: np.ndarray) -> None:
        location = _external(entry.value, "location")
        file = self.pack_root.file("pack", location)
        watched = packs.files.setdefault(location, WatchedFile(file, self.hashes.memory(file).identity))
        watched.payloads.append(
            Sealed(data, self._seal_header(entry), bytes.fromhex(metadata(entry)[SEAL]), entry.digest_algorithm)
        )


def seal_header(source_digest: bytes, layout: str, rows: int, columns: int) -> bytes:
    """What a pack's own digest covers before its payload: its source's content, its layout with version, and its shape."""
    name = layout.encode()
    return struct.pack("<QQQ", len(name), rows, columns) + name + source_digest


def metadata(entry: Any) -> dict[str, str]:
    """The metadata_props of an entry."""
    return {item.key: item.value for item in entry.metadata_props}


class Declared(NamedTuple):
    """An entry as it stands in the model."""

    source: str
    layout: str
    device: str
    nbytes: int
    file: str


def declared(model: Any) -> list[Declared]:
    """Every entry as it stands, right or not."""
    return [_declared(model, entry) for entry in model.compiled_tensors]


def _declared(model: Any, entry: Any) -> Declared:
    in_range = 0 <= entry.device < len(model.devices)
    device = model.devices[entry.device].architecture if in_range else f"devices[{entry.device}]"
    layout = metadata(entry).get(LAYOUT, "")
    return Declared(entry.source_name, layout, device, _size(entry.value), _external(entry.value, "location"))


def _size(value: Any) -> int:
    """Bytes of a payload as its entry states them; whether they are there is found when it is read."""
    if not value.external_data:
        return len(value.raw_data)
    stated = _external(value, "length")
    return int(stated) if stated.isascii() and stated.isdecimal() and len(stated) < 20 else 0


def _external(value: Any, key: str) -> str:
    return next((str(item.value) for item in value.external_data if item.key == key), "")


def _aligned(data: np.ndarray) -> np.ndarray:
    """The payload where it lies, or a copy where kernels cannot read it there."""
    if data.ctypes.data % ALIGNMENT == 0:
        return data
    spare = np.empty(data.size + ALIGNMENT, np.uint8)
    begin = -spare.ctypes.data % ALIGNMENT
    spare[begin : begin + data.size] = data
    return spare[begin : begin + data.size]


def summary(verdicts: list[Verdict]) -> str:
    """Counts of each kind, for one line."""
    counts = Counter(verdict.kind for verdict in verdicts)
    return ", ".join(f"{counts[kind]} {kind}" for kind in ("hit", "usable", "miss", "damaged") if counts[kind])
