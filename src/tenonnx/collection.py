"""The garbage collector kept away from work that makes many objects which all live on."""

from __future__ import annotations

import gc
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
    with _lock:
        if _within == 0 and gc.isenabled():
            gc.disable()
            _paused = True
        _within += 1
    try:
        yield
    finally:
        with _lock:
            _within -= 1
            if _within == 0 and _paused:
                _paused = False
                gc.enable()
