"""Python's garbage collector, and what it costs where very many objects are kept."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

__all__ = ["collecting"]

NEVER = 1 << 30

_lock = Lock()
_users = 0
_before = (0, 0, 0)


@contextmanager
def collecting(young: int | None = None, middle: int | None = None, old: int = NEVER) -> Iterator[None]:
    """Python's collector with these thresholds (``gc.set_threshold``; None: as they are). By default old objects are left
    alone, and young ones searched for cycles as ever.

    A run keeps its events, hundreds of thousands of objects without a cycle among them; going through them anew whenever
    their number has grown by a quarter took a tenth of the time of a long one. Several threads may be within at a time: the
    thresholds of the first hold until the last has left.
    """
    global _users, _before
    with _lock:
        if not _users:
            _before = gc.get_threshold()
            wanted = (young, middle, old)
            gc.set_threshold(*(was if to is None else to for was, to in zip(_before, wanted, strict=True)))
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                gc.set_threshold(*_before)
