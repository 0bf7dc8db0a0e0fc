"""Python's garbage collector, and what it costs where very many objects are kept."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

__all__ = ["old_left_alone"]

NEVER = 1 << 30

_lock = Lock()
_users = 0
_before = (0, 0, 0)


@contextmanager
def old_left_alone() -> Iterator[None]:
    """Within it only young objects are searched for cycles.

    A run keeps its events, hundreds of thousands of objects without a cycle among them; going through them anew whenever
    their number has grown by a quarter took a tenth of the time of a long one. Several threads may be within at a time.
    """
    global _users, _before
    with _lock:
        if not _users:
            _before = gc.get_threshold()
            gc.set_threshold(*_before[:2], NEVER)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                gc.set_threshold(*_before)
