"""What packs a model has, and whether they are right."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tenonnx.check.compiled import check_compiled
from tenonnx.codecs import Decoder
from tenonnx.compiled import packers
from tenonnx.compiled.device import Host
from tenonnx.compiled.digest import ALGORITHMS, digest
from tenonnx.compiled.load import LAYOUT, SEAL, Matcher, Verdict, metadata, seal_header
from tenonnx.compiled.store import opened
from tenonnx.errors import TenonnxError
from tenonnx.plan import Planner
from tenonnx.schema.external import DataRoot
from tenonnx.schema.messages import TensorProto
from tenonnx.schema.payload import struct_payload, tensor_array


class Fault(NamedTuple):
    """What is wrong with a pack: its place, its source, and why."""

    where: str
    source: str
    message: str


class Inventory:
    """The packs of one model file."""

    def __init__(self, path: str | os.PathLike[str], data_root: str | os.PathLike[str] | None = None, threads: int = 1) -> None:
        self.path = Path(path).resolve()
        self.model, self.data, self.folder, self.damaged = opened(self.path, data_root)
        self.planner = Planner(self.model)
        self.wanted = packers.wanted(self.planner)
        self.root = DataRoot(self.folder)
        self._threads = threads

    def matcher(self, here: Host | None = None, *, strict: bool = False) -> Matcher:
        """What decides for a host; this one if none is given."""
        return Matcher(self.model, self.wanted, self.root, here=here, strict=strict, threads=self._threads)

    def verdicts(self) -> list[Verdict]:
        """The verdict of this host on every entry, each hashed."""
        return self.matcher().match(every=True).verdicts

    def lacking(self) -> list[str]:
        """The weights that this host would pack at load."""
        arrays = self.matcher().match().arrays
        return [name for name in self.wanted if name not in arrays]

    # ---- Verifying

    def faults(self) -> Iterator[Fault]:
        """Everything wrong with the packs on any host: sources and payloads are hashed again, and packs decoded."""
        if self.damaged:
            yield Fault("compiled_tensors", "", "its packs are damaged beyond reading; build them again, or prune them")
        for finding in check_compiled(self.model, self.root):
            yield Fault(finding.where, "", finding.message)
        matcher = self.matcher(strict=True)
        decoder = Decoder(self.model, self.root)
        for position, entry in enumerate(self.model.compiled_tensors):
            where = f"compiled_tensors[{position}]"
            if len(matcher.initializers.get(entry.source_name, ())) != 1 or not entry.HasField("value"):
                continue  # found by the checker
            try:
                for message in self._entry_faults(matcher, decoder, entry):
                    yield Fault(where, entry.source_name, message)
            except TenonnxError as error:
                yield Fault(where, entry.source_name, str(error))

    def _entry_faults(self, matcher: Matcher, decoder: Decoder, entry: Any) -> Iterator[str]:
        stale = False
        if entry.digest_algorithm in ALGORITHMS:
            stale = (
                matcher.hashes.of_source(matcher.initializers[entry.source_name][0], entry.digest_algorithm)
                != entry.source_digest
            )
            if stale:
                yield "stale: the initializer has changed since the pack was made; build it again, or prune it"
            yield from self._seal_faults(entry)
        if stale or not self._declared(entry).HasField("decoder"):
            return
        source = matcher.initializers[entry.source_name][0]
        decoded = tensor_array(source, self.root) if isinstance(source, TensorProto) else decoder(source)
        if not same_values(decoder(entry.value), decoded):
            yield "it does not decode to the tensor it was made from; build it again, or prune it"

    def _seal_faults(self, entry: Any) -> Iterator[str]:
        recorded, want = metadata(entry).get(SEAL), self.wanted.get(entry.source_name)
        if recorded is None or want is None:
            return
        payload = struct_payload(entry.value, self.root, "it")
        header = seal_header(entry.source_digest, metadata(entry).get(LAYOUT, ""), want.rows, want.columns)
        if digest([header, payload.data], entry.digest_algorithm, self._threads).hex() != recorded:
            yield "its payload is not what was written: its digest differs; build it again, or prune it"

    def _declared(self, entry: Any) -> Any:
        value = entry.value
        return value.struct_type if value.type < 0 else self.model.struct_types[value.type]


def same_values(found: np.ndarray, expected: np.ndarray) -> bool:
    """Whether two tensors are equal, NaN to NaN; the sign of a zero is not kept by every layout."""
    if found.shape != expected.shape:
        return False
    return bool(np.array_equal(found, expected.astype(found.dtype, copy=False), equal_nan=True))
