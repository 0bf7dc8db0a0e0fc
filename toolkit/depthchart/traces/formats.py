"""Open any trace: by the name of a bundled one or by the path of a file."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import IO

from depthchart.traces.bundle import BUNDLED, bundled_path
from depthchart.traces.neutral import read_neutral
from depthchart.traces.trace import Trace


def load_trace(path_or_name: str | os.PathLike[str]) -> Trace:
    """The trace in a file, or a bundled one by name.

    Args:
        path_or_name: a file (plain or gzip), or one of ``depthchart.traces.bundle.BUNDLED``.
    """
    path = resolve(path_or_name)
    with open_text(path) as lines:
        header, requests = read_neutral(lines)
    return Trace(requests=tuple(requests), **{"name": trace_name(path), **header})


def resolve(path_or_name: str | os.PathLike[str]) -> Path:
    """The file meant: an existing path first, else a bundled name."""
    path = Path(path_or_name)
    if path.exists():
        return path
    if str(path_or_name) in BUNDLED:
        return bundled_path(str(path_or_name))
    raise ValueError(
        f"trace={str(path_or_name)!r} is neither a file nor a bundled trace; bundled: {', '.join(BUNDLED)}"
    )


def open_text(path: Path) -> IO[str]:
    """The file as text, decompressed if its first bytes are gzip's, whatever its name."""
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rt", encoding="utf-8") if packed else path.open(encoding="utf-8")


def trace_name(path: Path) -> str:
    """File name without its format endings."""
    return path.name.split(".")[0]
