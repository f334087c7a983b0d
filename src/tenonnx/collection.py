"""The garbage collector kept away from work that makes many objects which all live on."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_within = 0  # threads that are within now
_paused = False  # whether it was they who disabled the collector


@contextmanager
def uncollected() -> Iterator[None]:
    """Without collections of reference cycles: they would walk all that a load or a plan has made so far, and free nothing.

    Threads may be within at the same time; the last to leave enables the collector again, unless it was disabled before.
    """
    global _within, _paused
    within = False
    try:
        with _lock:
            within = True
            _within += 1
            if _within == 1 and gc.isenabled():
                _paused = True
                gc.disable()
        yield
    finally:
        with _lock:
            _within = max(0, _within - within)
            if _within == 0 and _paused:
                _paused = False
                gc.enable()


def _in_child() -> None:
    """Threads that were within are not there after a fork."""
    global _lock, _within, _paused
    _lock, _within = threading.Lock(), 0
    if _paused:
        _paused = False
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
