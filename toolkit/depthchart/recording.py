"""Events as a file: gzipped JSON lines, one event each, that give back exactly the values that were written.

The first line is a head (any JSON object), then come the events, then a line that counts them, so that a file which was
cut off is known as such.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from depthchart import events
from depthchart.events import Entry
from depthchart.files import write_whole

__all__ = ["FORMAT", "read_recording", "write_recording"]

FORMAT = "depthchart-run-1"
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in get_args(events.Event)}


def write_recording(path: Path, head: Mapping[str, Any], entries: Iterable[Entry]) -> Path:
    """Write a head and events whole; the same ones give the same bytes."""
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=6, mtime=0, filename="") as packed:

        def line(value: object) -> None:
            packed.write(json.dumps(value, separators=(",", ":"), default=_plain).encode() + b"\n")

        line({"format": FORMAT, **head})
        count = 0
        for time_s, step, event in entries:
            line([time_s, step, type(event).__name__, *event])
            count += 1
        line({"events": count})
    return write_whole(path, out.getvalue())


def read_recording(path: Path) -> tuple[dict[str, Any], list[Entry]]:
    """The head and the events of a file. Raises ValueError, naming the file and the line, where it is damaged or of
    another format; OSError where it cannot be read."""
    try:
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
        head = json.loads(lines[0])
    except (
        EOFError,
        zlib.error,
        gzip.BadGzipFile,
        UnicodeDecodeError,
        json.JSONDecodeError,
        IndexError,
    ) as fault:
        raise ValueError(f"{path}: is damaged or was cut off: {fault}") from None
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        found = head.get("format") if isinstance(head, dict) else head
        raise ValueError(f"{path}: format {found!r} is not known; must be {FORMAT!r}")
    count = len(lines) - 2
    if lines[-1].replace(" ", "") != f'{{"events":{count}}}':
        raise ValueError(
            f"{path}: was cut off: its last line must count the {max(0, count)} events before it"
        )
    return head, [_entry(path, number, line) for number, line in enumerate(lines[1:-1], 2)]


def _entry(path: Path, number: int, line: str) -> Entry:
    try:
        time_s, step, kind, *fields = json.loads(line)
        return Entry(time_s, step, _KINDS[kind](*map(_restored, fields)))
    except (ValueError, KeyError, TypeError) as fault:
        raise ValueError(f"{path}: line {number} is no event: {fault}") from None


def _restored(value: Any) -> Any:
    """JSON has lists alone; events have tuples alone."""
    return tuple(map(_restored, value)) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    """Whole numbers that a rule worked out with numpy."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{value!r} of type {type(value).__name__} cannot be written as JSON")
