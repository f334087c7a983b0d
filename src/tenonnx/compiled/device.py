"""What a pack needs of the machine and runtime that would use it, and whether this host has it.

Compatibility is a partial order: a host runs what needs no more than it has. Each verdict says why.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from tenonnx.compiled.layout_types import identity
from tenonnx.errors import OptionError
from tenonnx.layouts import Layout
from tenonnx.schema.messages import DeviceProto

RUNTIME = "tenonnx"
RUNTIME_VERSION = "1"  # of the rules by which packs are sealed and described; each layout has a version of its own
_LAYOUT, _FEATURES = "layout.", "features"  # metadata: layout.<name> = <version>; features = names, joined by commas

# Features that go with each instruction set of the kernels: a process held to a lower one is a lesser host.
_BEYOND = {"avx2": ("avx512", "avx_vnni"), "portable": ("avx", "fma", "f16c")}


@dataclass(frozen=True)
class Host:
    """This machine, as far as kernels can tell: an archspec family, its generic architecture, and its features."""

    family: str
    architecture: str
    features: frozenset[str]


@cache
def host() -> Host:
    """The machine that this process runs on, held to the instruction set that its kernels use."""
    import archspec.cpu
    import archspec.cpu.detect

    from tenonnx._native import host_isa

    target = archspec.cpu.host()
    features = set(target.features) | set(archspec.cpu.detect.detected_info().features)
    features = {feature for feature in features if not feature.startswith(_BEYOND.get(host_isa(), ()))}
    generic = [known for known in (target.generic, *target.ancestors) if known.features <= features and known.vendor == "generic"]
    return Host(str(target.family), generic[0].name if generic else str(target.family), frozenset(features))


def known(architecture: str) -> bool:
    """Whether an architecture says what it needs: an archspec name, or one with features behind dashes."""
    from archspec.cpu import TARGETS

    return bool(re.fullmatch(r"[a-z0-9_.]+(-[a-z0-9_.]+)*", architecture)) and architecture.split("-")[0] in TARGETS


def needs(architecture: str) -> tuple[str, frozenset[str]]:
    """Family and features that a known architecture stands for."""
    from archspec.cpu import TARGETS

    name, *more = architecture.split("-")
    return str(TARGETS[name].family), frozenset(TARGETS[name].features) | set(more)


def describe(architecture: str, layouts: Iterable[Layout]) -> Any:
    """The DeviceProto of packs in these layouts for an architecture.

    "auto" is the least architecture of the host's family that has what the layouts need, so that one pack serves every
    machine that can read it. Raises ``OptionError`` for an architecture that archspec does not know.
    """
    used = sorted({layout.name: layout for layout in layouts}.values(), key=lambda layout: layout.name)
    features = sorted({feature for layout in used for feature in layout.features})
    if architecture == "auto":
        architecture = _least(frozenset(features))
    if not known(architecture):
        raise OptionError(f"architecture {architecture!r} is not known; use auto, or an archspec name such as x86_64_v3")
    device: Any = DeviceProto(type="cpu", architecture=architecture, runtime=RUNTIME, runtime_version=RUNTIME_VERSION)
    missing = [feature for feature in features if feature not in needs(architecture)[1]]
    if missing:
        device.metadata_props.add(key=_FEATURES, value=",".join(missing))
    for layout in used:
        device.metadata_props.add(key=f"{_LAYOUT}{layout.name}", value=str(layout.version))
    return device


def _least(features: frozenset[str]) -> str:
    from archspec.cpu import TARGETS

    here = host()
    levels = [target for target in TARGETS.values() if target.vendor == "generic" and str(target.family) == here.family]
    levels = [target for target in levels if features <= target.features and target.features <= here.features]
    return min(levels, key=lambda target: len(target.features)).name if levels else here.architecture


def features_of(device: Any) -> frozenset[str]:
    """Every feature that a device names, by its architecture and by itself."""
    found = needs(device.architecture)[1] if known(device.architecture) else frozenset()
    named = {entry.value for entry in device.metadata_props if entry.key == _FEATURES}
    return found | {feature for text in named for feature in text.split(",") if feature}


def misfit(device: Any, here: Host) -> str | None:
    """Why a pack for ``device`` is of no use on this host and to this runtime; None when it is."""
    if device.type != "cpu":
        return f"it is for a device of type {device.type!r}, this runtime computes on a cpu"
    if device.HasField("index") and device.index != 0:
        return f"it is for cpu number {device.index} alone; this host has one, number 0"
    if device.runtime != RUNTIME:
        return f"it is for runtime {device.runtime!r}, not {RUNTIME!r}"
    if device.runtime_version != RUNTIME_VERSION:
        return f"it is for version {device.runtime_version!r} of the runtime's packs, this is {RUNTIME_VERSION!r}"
    if not known(device.architecture):
        return f"its architecture {device.architecture!r} is not known"
    family, _ = needs(device.architecture)
    if family != here.family:
        return f"its architecture {device.architecture!r} is of family {family}, this host's of {here.family}"
    for entry in device.metadata_props:
        if entry.key != _FEATURES and not entry.key.startswith(_LAYOUT):
            return f"it needs {entry.key} = {entry.value!r}, which this runtime does not know"
    missing = sorted(features_of(device) - here.features)
    if missing:
        return f"this host lacks {', '.join(missing)} of {device.architecture}"
    return None


def layout_misfit(device: Any, layout: Layout) -> str | None:
    """Why the packs of ``device`` in this layout cannot be read; None when they can."""
    versions = {entry.key: entry.value for entry in device.metadata_props}
    found = versions.get(f"{_LAYOUT}{layout.name}")
    if found is None:
        return f"its device names no layout {layout.name}"
    if found != str(layout.version):
        return f"its layout is {layout.name}.{found}, this runtime's is {identity(layout)}"
    return None
