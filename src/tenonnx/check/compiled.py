"""The rules of packs (CompiledTensorProto and DeviceProto): what is malformed on any host.

Whether a pack fits this host, or its source still has the content it was made from, is not asked here: such a pack is passed
over when the model is loaded. Each rule yields all that it finds; none stops another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tenonnx.check import structs
from tenonnx.check.diagnostics import Diagnostic
from tenonnx.check.subject import Subject, packed_values
from tenonnx.schema.external import DataRoot
from tenonnx.structs.reader import INLINE
from tenonnx.structs.rules import Finding

DIGEST_BYTES = {"blake3": 32, "sha256": 32}  # of the algorithms that are known here


def _entries(subject: Subject) -> Iterator[tuple[str, Any]]:
    for index, entry in enumerate(subject.model.compiled_tensors):
        yield f"compiled_tensors[{index}]", entry


def devices_are_unique(subject: Subject) -> Iterator[Finding]:
    seen: dict[bytes, int] = {}
    for index, device in enumerate(subject.model.devices):
        first = seen.setdefault(_device_key(device), index)
        if first != index:
            message = f"it describes the same device as devices[{first}]; keep one and let all packs name it"
            yield Finding("devices-are-unique", "invalid", f"devices[{index}]", message)


def _device_key(device: Any) -> bytes:
    """A device as bytes, whatever the order of its metadata."""
    ordered = type(device)()
    ordered.CopyFrom(device)
    del ordered.metadata_props[:]
    ordered.metadata_props.extend(sorted(device.metadata_props, key=lambda entry: (entry.key, entry.value)))
    return bytes(ordered.SerializeToString(deterministic=True))


def device_index_is_valid(subject: Subject) -> Iterator[Finding]:
    count = len(subject.model.devices)
    for where, entry in _entries(subject):
        if not entry.HasField("device"):
            yield Finding("device-index-is-valid", "invalid", f"{where}.device", "it names no device; give the index of one")
        elif not 0 <= entry.device < count:
            message = f"device {entry.device} is not in devices, which has {count} entries"
            yield Finding("device-index-is-valid", "invalid", f"{where}.device", message)


def cache_keys_are_unique(subject: Subject) -> Iterator[Finding]:
    """One pack for each source, device and physical type; names and metadata of types tell formats of equal bits apart."""
    seen: dict[Any, str] = {}
    for (where, entry), value in zip(_packed(subject), subject.values, strict=True):
        if value.node is None:
            continue
        declared = entry.value.struct_type if entry.value.type == INLINE else subject.model.struct_types[entry.value.type]
        described = sorted((item.key, item.value) for item in (*declared.metadata_props, *entry.metadata_props))
        layout = tuple(pair for pair in described if pair[0] != "payload_digest")
        key = entry.source_name, entry.device, value.node, declared.name, layout
        first = seen.setdefault(key, where)
        if first != where:
            message = f"it is for the same source, device and type as {first}; remove one, or run tenonnx packs prune"
            yield Finding("cache-keys-are-unique", "invalid", where, message)


def _packed(subject: Subject) -> Iterator[tuple[str, Any]]:
    """The entries that have a value, as ``subject.values`` has them."""
    return ((where, entry) for where, entry in _entries(subject) if entry.HasField("value"))


def source_exists(subject: Subject) -> Iterator[Finding]:
    """The source is one initializer of the main graph; those of nested graphs are not addressed."""
    graph = subject.model.graph
    counts = Counter(value.name for value in (*graph.initializer, *graph.struct_initializer))
    for where, entry in _entries(subject):
        if counts[entry.source_name] != 1:
            found = f"{counts[entry.source_name] or 'no'} initializers of the graph are named {entry.source_name!r}"
            yield Finding("source-exists", "invalid", f"{where}.source_name", f"{found}; expected one")


def digest_is_declared(subject: Subject) -> Iterator[Finding]:
    """A digest and its algorithm are given, and agree in length where the algorithm is known."""
    for where, entry in _entries(subject):
        if not entry.digest_algorithm:
            message = "no algorithm is named, so a stale pack cannot be told; name one, for example blake3"
            yield Finding("digest-is-declared", "invalid", f"{where}.digest_algorithm", message)
        expected, found = DIGEST_BYTES.get(entry.digest_algorithm), len(entry.source_digest)
        if not found:
            message = "it has no digest of its source, so a stale pack cannot be told; build the pack again"
            yield Finding("digest-is-declared", "invalid", f"{where}.source_digest", message)
        elif expected is not None and found != expected:
            message = f"a {entry.digest_algorithm} digest has {expected} bytes, found {found}; build the pack again"
            yield Finding("digest-is-declared", "invalid", f"{where}.source_digest", message)


def value_is_present(subject: Subject) -> Iterator[Finding]:
    for where, entry in _entries(subject):
        if not entry.HasField("value"):
            yield Finding("value-is-present", "invalid", f"{where}.value", "it holds no value; build the pack again")


def type_is_concrete(subject: Subject) -> Iterator[Finding]:
    """The value's own type says what its bytes are; a type that stands for any, or for another, does not."""
    for where, entry in _packed(subject):
        kind = entry.value.struct_type.WhichOneof("kind")
        if entry.value.HasField("struct_type") and kind in (None, "type_index"):
            message = "its type is left open; declare an array, structure or bit packing, or name one in struct_types"
            yield Finding("type-is-concrete", "invalid", f"{where}.value.struct_type", message)


def metadata_keys_are_unique(subject: Subject) -> Iterator[Finding]:
    devices = ((f"devices[{index}]", device) for index, device in enumerate(subject.model.devices))
    for where, message in (*devices, *_entries(subject)):
        for key in _repeated([entry.key for entry in message.metadata_props]):
            yield Finding("metadata-keys-are-unique", "invalid", f"{where}.metadata_props", f"key {key!r} is repeated; keep one")


def _repeated(keys: Sequence[str]) -> list[str]:
    return [key for key, count in Counter(keys).items() if count > 1]


RULES: tuple[Callable[[Subject], Iterator[Finding]], ...] = (
    devices_are_unique,
    device_index_is_valid,
    cache_keys_are_unique,
    source_exists,
    digest_is_declared,
    value_is_present,
    structs.values_have_valid_types,
    structs.payload_has_one_source,
    structs.root_is_whole_bytes,
    structs.payload_is_exact,
    type_is_concrete,
    metadata_keys_are_unique,
)


def check_compiled(model: Any, data_root: DataRoot | None = None) -> Iterator[Diagnostic]:
    """Every finding on the packs of a model; external payloads are looked at only with a ``data_root``."""
    if not model.compiled_tensors and not model.devices:
        return
    subject = Subject(model, data_root, packed_values(model))
    for rule in RULES:
        for finding in rule(subject):
            yield Diagnostic("error", finding.kind, finding.rule, finding.where, finding.message)
