"""Lines of a trace file, one at a time, with a log of the damaged ones."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from depthchart.traces.trace import TraceRequest


class Damage(NamedTuple):
    """A line that could not be used: its number (from 1) and why."""

    line: int
    reason: str


class DamageLog:
    """Collects damaged lines; with ``strict`` the first one stops the reading.

    Args:
        strict: raise ``ValueError`` with line number and reason instead of going on.
        keep: how many damages to keep in full; all are counted.
    """

    def __init__(self, strict: bool = False, keep: int = 1000) -> None:
        self.strict = strict
        self.keep = keep
        self.damages: list[Damage] = []
        self.count = 0
        self.skipped: dict[str, int] = {}
        self.header: dict[str, Any] = {}

    def damaged(self, line: int, reason: str) -> None:
        """Report one damaged line."""
        if self.strict:
            raise ValueError(f"line {line}: {reason}")
        self.count += 1
        if len(self.damages) < self.keep:
            self.damages.append(Damage(line, reason))

    def skip(self, reason: str) -> None:
        """Count a line that is sound but no request of the trace, such as a failed one."""
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def notes(self) -> tuple[str, ...]:
        """What was left out, in words."""
        out = [f"{count} lines left out: {reason}" for reason, count in self.skipped.items()]
        if self.count:
            first = self.damages[0]
            out.append(f"{self.count} damaged lines left out; first: line {first.line}: {first.reason}")
        return tuple(out)


Parse = Callable[[dict[str, Any], int], Iterable[TraceRequest]]


def json_requests(path: Path, log: DamageLog, parse: Parse) -> Iterator[TraceRequest]:
    """Requests of a JSON Lines file; ``parse(record, line)`` gives those of one line or raises ValueError."""
    return requests_of(((n, partial(as_object, text)) for n, text in numbered(path, log)), log, parse)


def csv_requests(path: Path, log: DamageLog, parse: Parse) -> Iterator[TraceRequest]:
    """Requests of a CSV file whose first line names the columns; values reach ``parse`` as text."""
    lines = numbered(path, log)
    _, first = next(lines, (0, b""))
    header = csv_fields(first)

    def row(text: bytes) -> dict[str, Any]:
        fields = csv_fields(text)
        if len(fields) != len(header):
            raise ValueError(f"{len(fields)} fields where the header names {len(header)}")
        return dict(zip(header, fields, strict=True))

    return requests_of(((n, partial(row, text)) for n, text in lines), log, parse)


def numbered(path: Path, log: DamageLog) -> Iterator[tuple[int, bytes]]:
    """Line numbers (from 1) and lines, blank ones left out; gzip is seen from the first bytes."""
    line = 0
    with open_bytes(path) as stream:
        while True:
            try:
                text = stream.readline()
            except (EOFError, zlib.error, gzip.BadGzipFile) as fault:
                log.damaged(line + 1, f"the compressed file is cut or broken here: {fault}")
                return
            if not text:
                return
            line += 1
            if text.strip():
                yield line, text


def open_bytes(path: Path) -> IO[bytes]:
    """The file's bytes, decompressed if they are gzip's, whatever the file's name."""
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
    opened: IO[bytes] = gzip.open(path, "rb") if packed else path.open("rb")  # type: ignore[assignment]  # noqa: SIM115
    return opened


def as_object(text: bytes) -> dict[str, Any]:
    """The JSON object in one line."""
    record = json.loads(text.decode("utf-8-sig"))
    if not isinstance(record, dict):
        raise ValueError(f"a line must be a JSON object, got {type(record).__name__}")
    return record


def csv_fields(text: bytes) -> list[str]:
    """The fields of one CSV line, trimmed."""
    return [field.strip() for row in csv.reader([text.decode("utf-8-sig")]) for field in row]


def whole(record: dict[str, Any], key: str, least: int = 0) -> int:
    """A whole number of at least ``least``; text from CSV is accepted."""
    value = record[key]
    if isinstance(value, str):
        value = float(value) if not value.lstrip("-").isdigit() else int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise ValueError(f"{key}={record[key]!r} must be a whole number")
    if value < least:
        raise ValueError(f"{key}={record[key]!r} must be {least} or more")
    return int(value)


def seconds(record: dict[str, Any], key: str, per_second: float = 1.0) -> float:
    """A time of 0 or more in seconds; ``per_second`` is the number of the file's units in a second."""
    value = record[key]
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{key}={value!r} must be a number")
    time = float(value)
    if not 0 <= time < float("inf"):
        raise ValueError(f"{key}={value!r} must be a finite number of 0 or more")
    return time / per_second


def words(record: dict[str, Any], key: str) -> str | None:
    """The value as text, None where it is absent, null or empty."""
    value = record.get(key)
    return None if value is None or value == "" else str(value)


def requests_of(
    rows: Iterable[tuple[int, Callable[[], dict[str, Any]]]], log: DamageLog, parse: Parse
) -> Iterator[TraceRequest]:
    """Requests of numbered rows; a row that cannot be had or parsed is reported, a repeated id too."""
    seen: set[str] = set()
    for line, record in rows:
        try:
            found = list(parse(record(), line))
            for request in found:
                if not request.prompt:
                    raise ValueError("the prompt is empty; a request needs at least one token")
                if request.request_id in seen:
                    raise ValueError(f"request id {request.request_id!r} was used before")
            seen.update(request.request_id for request in found)
        except KeyError as fault:
            log.damaged(line, f"{fault} is missing")
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as fault:
            log.damaged(line, str(fault) or type(fault).__name__)
        else:
            yield from found
