"""Files that are whole or not there: written beside their place, then renamed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["whole_file", "write_text"]


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """A temporary path with the same suffix beside ``path``: it takes its place when the block ends well, and
    is removed when the block fails. Folders on the way are made."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix="".join(target.suffixes), dir=target.parent)
    os.close(handle)
    draft = Path(name)
    try:
        yield draft
        os.chmod(draft, 0o666 & ~_umask())
        os.replace(draft, target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file whole (UTF-8) and return its path."""
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8")
    return Path(path)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
