"""How much memory this process may still take: what the machine has free, or less where a control group says so."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_CGROUP = Path("/sys/fs/cgroup")
# Version 2 and 1 of control groups: the limit, what is used of it, and the statistics on that.
_LIMITS = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)


class Memory(NamedTuple):
    """``available`` bytes, and who leaves them."""

    available: int
    limit: str


def memory() -> Memory:
    """The smaller of the machine's available memory and what is left under the limit of the control group."""
    found = [Memory(_machine(), "this machine has free")]
    for maximum, used, statistics in _LIMITS:
        limit, taken = _number(_CGROUP / maximum), _number(_CGROUP / used)
        if limit is not None and taken is not None:
            free = limit - taken + _line(_CGROUP / statistics, "inactive_file", " ")  # cached files give way
            found.append(Memory(max(0, free), "the control group leaves"))
    return min(found)


def _machine() -> int:
    kibibytes = _line(Path("/proc/meminfo"), "MemAvailable", ":")
    return kibibytes * 1024 or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _line(path: Path, name: str, separator: str) -> int:
    """The number in the line of a name; 0 where there is none."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(name + separator)), 0)


def _number(path: Path) -> int | None:
    """A file's number; None where there is no file, or it says that there is no limit."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
