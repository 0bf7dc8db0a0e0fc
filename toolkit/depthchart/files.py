"""Files that are whole or not there: written beside their place, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["whole_file", "write_text", "write_whole"]


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path with the same suffix beside ``path``: it takes its place when the block ends well, and
    is removed when the block fails. Folders on the way are made."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{os.getpid()}.{target.name}")
    try:
        yield draft
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def write_whole(path: str | os.PathLike[str], data: bytes) -> Path:
    """Write bytes so that no half file is ever seen; returns the path."""
    with whole_file(path) as draft:
        draft.write_bytes(data)
    return Path(path)


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write text (UTF-8) so that no half file is ever seen; returns the path."""
    return write_whole(path, text.encode())
