"""Files that are whole or not there: written beside their place, then renamed."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["whole_file", "write_table", "write_text", "write_whole"]


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


def write_table(
    path: str | os.PathLike[str],
    facts: Mapping[str, object],
    columns: Sequence[str],
    rows: Iterable[Iterable[object]],
) -> Path:
    """Write a CSV with ``facts`` as ``# key: value`` lines in its head; no half file is ever seen. Returns the path."""
    with whole_file(path) as draft, draft.open("w", newline="") as out:
        out.writelines(f"# {key}: {value}\n" for key, value in facts.items())
        writer = csv.writer(out)
        writer.writerow(columns)
        writer.writerows(rows)
    return Path(path)
