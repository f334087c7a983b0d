"""Writing packs into a model: entries in the .onnx, payloads in one file per device beside it.

A payload file is complete on the disk before it takes its name, and it takes its name before the model points into it. So at
every moment the model loads: entries that do not fit the file beside them are passed over. One process writes at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from tenonnx.check import raise_errors
from tenonnx.compiled import layout_types, packers
from tenonnx.compiled.device import RUNTIME, RUNTIME_VERSION, Host, describe, features_of, needs
from tenonnx.compiled.digest import DEFAULT, Sources, digest
from tenonnx.compiled.load import LAYOUT, SEAL, Matcher, Packs, Wanted, seal_header
from tenonnx.compiled.memory import SETTLED_NS
from tenonnx.errors import PayloadError, UnsupportedError
from tenonnx.plan import Planner
from tenonnx.schema.external import DataRoot
from tenonnx.schema.files import PROTOBUF_LIMIT, data_folder, load_portable, parse
from tenonnx.schema.messages import CompiledTensorProto, ModelProto
from tenonnx.schema.sections import before_packs, portable
from tenonnx.structs.reader import INLINE

PAGE = 4096  # payloads begin on a page, so that each can be mapped and given back alone
SUFFIX = ".packs"
Progress = Callable[[int], object]  # told the bytes of each payload written


@dataclass(frozen=True)
class Plan:
    """What a build would write."""

    path: Path  # of the payload file
    architecture: str
    kept: int  # packs that are there already
    new: int
    nbytes: int  # of the payload file


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """The folder's lock: one process at a time writes packs into it. Nothing is left behind."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    except OSError as error:
        raise PayloadError(f"{folder}: cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    except OSError as error:
        reason = error.strerror or error
        raise PayloadError(
            f"{folder}: packs cannot be written: {reason}; the model is as it was, and runs without them"
        ) from error
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def replacing(path: Path, like: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of ``path``, with the permissions of ``like``, once all of it is on the disk.

    Its temporary name is always the same, so what a killed process left is taken up by the next; call under the lock.
    """
    draft = path.with_name(f".{path.name}.part")
    draft.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as stream:
            os.fchmod(stream.fileno(), like.stat().st_mode & 0o777)
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


class Opened(NamedTuple):
    """A model file as its packs are written: checked as a session checks it."""

    model: Any
    portable: bytes  # the model without its packs
    folder: Path  # of its data
    damaged: bool  # whether its packs could not be parsed


def opened(path: Path, data_root: str | os.PathLike[str] | None) -> Opened:
    """Open a model file; raises as a session does."""
    model, file = load_portable(path)
    raise_errors(model)
    data = file.data.tobytes()
    kept = portable(data)
    damaged = not _parses(kept, path)
    if damaged:
        kept = before_packs(data) or data
    return Opened(model, kept, Path(data_root) if data_root is not None else data_folder(model, path).resolve(), damaged)


def _parses(data: bytes, path: Path) -> bool:
    try:
        parse(data, path)
    except PayloadError:
        return False
    return True


def build(
    path: str | os.PathLike[str],
    *,
    architecture: str = "auto",
    data_root: str | os.PathLike[str] | None = None,
    agree: Callable[[Plan], bool] = lambda plan: True,
    threads: int = 1,
    progress: Progress = lambda nbytes: None,
) -> Plan:
    """Write the packs that the model at ``path`` lacks for an architecture; those that are there and right are kept.

    ``agree`` is asked before anything is written. Raises ``OptionError`` for an unknown architecture, ``UnsupportedError`` for
    a model without a weight to pack, ``PayloadError`` when a file cannot be written; then the model is as it was.
    """
    path = Path(path).resolve()
    with locked(path.parent):
        model, kept, folder, _ = opened(path, data_root)
        planner = Planner(model)
        wanted = {name: want for name, want in packers.wanted(planner).items() if layout_types.storable(want.layout)}
        if not wanted:
            raise UnsupportedError(f"{path}: has no weight that kernels read in a layout of their own; there is nothing to pack")
        device = describe(architecture, [want.layout for want in wanted.values()])
        root = DataRoot(folder)
        positions = range(len(model.compiled_tensors))
        mine = [position for position in positions if is_for(model, position, device.architecture)]
        there = _present(model, mine, wanted, root, device, threads)
        side = folder / f"{path.name}.{device.architecture}{SUFFIX}"
        size = sum(_padded(want.nbytes) for want in wanted.values())
        plan = Plan(side, device.architecture, len(there), len(wanted) - len(there), size)
        if (not plan.new and len(mine) == len(wanted)) or not agree(plan):
            return plan
        writer = _Writer(planner, root, wanted, there, threads)
        made = []
        with replacing(side, path) as stream:
            for name in sorted(wanted, key=lambda name: name not in there):
                made.append(writer.entry(name, stream, side.name))
                progress(wanted[name].nbytes)
        others = [position for position in positions if position not in mine and in_range(model, position)]
        replace_packs(path, kept, [*grouped(model, others), (device, made)])
    verified(path, data_root, threads)
    return plan


def in_range(model: Any, position: int) -> bool:
    """Whether the device of ``compiled_tensors[position]`` exists."""
    return 0 <= model.compiled_tensors[position].device < len(model.devices)


def is_for(model: Any, position: int, architecture: str) -> bool:
    """Whether ``compiled_tensors[position]`` is a pack of this runtime's for any processor of an architecture."""
    if not in_range(model, position):
        return False
    device = model.devices[model.compiled_tensors[position].device]
    found = (device.type, device.architecture, device.runtime, device.runtime_version, device.HasField("index"))
    return found == ("cpu", architecture, RUNTIME, RUNTIME_VERSION, False)


def _present(
    model: Any, entries: list[int], wanted: dict[str, Wanted], root: DataRoot, device: Any, threads: int
) -> dict[str, np.ndarray]:
    """The payloads of entries that are right on the host that ``device`` describes, by source."""
    here = Host(needs(device.architecture)[0], device.architecture, features_of(device))
    return Matcher(model, wanted, root, here=here, threads=threads).match(entries).arrays


class _Writer:
    """Payloads, one after the other, and the entries that point at them."""

    def __init__(
        self, planner: Planner, root: DataRoot, wanted: dict[str, Wanted], there: dict[str, np.ndarray], threads: int
    ) -> None:
        self._values = {**planner.index.main.structs, **planner.index.main.initializers}
        self._formats = planner.formats
        self._root = root
        self._wanted = wanted
        self._there = there
        self._threads = threads
        self._sources = Sources(planner.model, root)

    def entry(self, name: str, stream: BinaryIO, location: str) -> Any:
        """The entry of one source, whose payload is appended to ``stream``."""
        want, value = self._wanted[name], self._values[name]
        source = self._sources.digest(value, self._threads)
        payload = self._there.get(name)
        if payload is None:
            payload = packers.pack(self._sources.content(value), self._formats[name], want, self._threads, self._root.release)
        entry: Any = CompiledTensorProto(source_name=name, device=0, source_digest=source, digest_algorithm=DEFAULT)
        entry.value.type = INLINE
        entry.value.name = f"{name} in {want.identity}"
        entry.value.struct_type.ParseFromString(layout_types.declaration(*want))
        copy_payload(entry.value, payload, stream, location)
        header = seal_header(source, want.identity, want.rows, want.columns)
        seal = digest([header, payload.data], DEFAULT, self._threads)
        for key, text in ((LAYOUT, want.identity), (SEAL, seal.hex())):
            entry.metadata_props.add(key=key, value=text)
        return entry


def copy_payload(value: Any, payload: np.ndarray, stream: BinaryIO, location: str) -> None:
    """Append a payload to the file ``location``, which ends on a page, and let ``value`` point at it."""
    offset = stream.tell()
    stream.write(payload.data)
    stream.write(b"\0" * (_padded(payload.size) - payload.size))
    del value.external_data[:]
    for key, text in (("location", location), ("offset", str(offset)), ("length", str(payload.size))):
        value.external_data.add(key=key, value=text)


def _padded(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE


def replace_packs(path: Path, kept: bytes, groups: list[tuple[Any, list[Any]]]) -> None:
    """Write a model of these bytes with these packs behind it, by device."""
    packs: Any = ModelProto()
    for device, entries in groups:
        packs.devices.append(device)
        for entry in entries:
            added = packs.compiled_tensors.add()
            added.CopyFrom(entry)
            added.device = len(packs.devices) - 1
    if len(kept) + packs.ByteSize() > PROTOBUF_LIMIT:
        raise UnsupportedError(
            f"{path}: with its packs it would be over {PROTOBUF_LIMIT} bytes; move its weights to a file first"
        )
    with replacing(path, path) as stream:
        stream.write(kept)
        stream.write(packs.SerializeToString())


def grouped(model: Any, entries: list[int]) -> list[tuple[Any, list[Any]]]:
    """Entries by their devices, which must exist."""
    found: dict[int, list[Any]] = {}
    for position in entries:
        entry = model.compiled_tensors[position]
        found.setdefault(entry.device, []).append(entry)
    return [(model.devices[device], group) for device, group in sorted(found.items())]


def verified(path: Path, data_root: str | os.PathLike[str] | None, threads: int) -> Packs:
    """The packs of the model at ``path`` as a session would find them, remembered as verified on this machine."""
    time.sleep(SETTLED_NS / 1e9)
    found = opened(path, data_root)
    return Matcher(found.model, packers.wanted(Planner(found.model)), DataRoot(found.folder), threads=threads).match()
