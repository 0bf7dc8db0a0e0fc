"""The neutral trace format: JSON Lines, one request a line, read and written without loss.

An optional first line carries the trace's own fields::

    {"depthchart_trace": 1, "name": "agentic", "source": "...", "seed": 7, "notes": ["..."]}

and every other line is one request; keys with their default are left out::

    {"id": "s0001-003", "arrival_s": 12.5, "prompt": [[1, 0, 1400], [9, 0, 220]],
     "output": [[10, 0, 87]], "session": "s0001", "priority": 0, "extra_key": null,
     "after": "s0001-002", "think_s": 1.25}

``prompt`` and ``output`` are runs [segment, start, length] (see ``depthchart.traces.trace``). A name
that ends in ``.gz`` is compressed, without a time stamp, so that equal traces give equal files.
"""

from __future__ import annotations

import gzip
import json
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from depthchart.files import write_whole
from depthchart.traces.trace import Run, Runs, Trace, TraceRequest, canonical

VERSION = 1
KEYS = ("id", "arrival_s", "prompt", "output", "session", "priority", "extra_key", "after", "think_s")


def write_trace(trace: Trace, path: str | os.PathLike[str]) -> Path:
    """Write ``trace`` as neutral JSON Lines; the file appears whole or not at all. Returns its path."""
    target = Path(path)
    data = trace_bytes(trace)
    if target.suffix == ".gz":
        data = gzip.compress(data, compresslevel=9, mtime=0)
    write_whole(target, data)
    return target


def trace_bytes(trace: Trace) -> bytes:
    """The neutral JSON Lines of ``trace``, uncompressed."""
    return "".join(line + "\n" for line in trace_lines(trace)).encode()


def trace_lines(trace: Trace) -> Iterator[str]:
    """Header and request lines, without line ends."""
    header = {"depthchart_trace": VERSION, "name": trace.name, "source": trace.source, "seed": trace.seed}
    yield _dumps({**header, "notes": list(trace.notes)})
    for request in trace:
        yield _dumps(request_record(request))


def request_record(request: TraceRequest) -> dict[str, Any]:
    """One request as the neutral format's dictionary, defaults left out."""
    record: dict[str, Any] = {"id": request.request_id, "arrival_s": request.arrival_s}
    record |= {"prompt": request.prompt, "output": request.output}
    optional = {
        "session": request.session,
        "priority": request.priority,
        "extra_key": request.extra_key,
        "after": request.after,
        "think_s": request.think_s,
    }
    return record | {key: value for key, value in optional.items() if value not in (None, 0)}


def request_from_record(record: dict[str, Any]) -> TraceRequest:
    """The request of one neutral dictionary.

    Raises:
        ValueError: a missing or unknown key, or a value that is not what the format says.
    """
    unknown = sorted(set(record) - set(KEYS))
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r}; legal keys: {', '.join(KEYS)}")
    for key in ("id", "arrival_s", "prompt"):
        if key not in record:
            raise ValueError(f"key {key!r} is missing")
    prompt = parse_runs("prompt", record["prompt"])
    if not prompt:
        raise ValueError("prompt is empty; a request needs at least one token")
    return TraceRequest(
        request_id=str(record["id"]),
        arrival_s=number("arrival_s", record["arrival_s"]),
        prompt=prompt,
        output=parse_runs("output", record.get("output", [])),
        session=_text(record.get("session")),
        priority=int(number("priority", record.get("priority", 0), least=None)),
        extra_key=_text(record.get("extra_key")),
        after=_text(record.get("after")),
        think_s=number("think_s", record.get("think_s", 0.0)),
    )


def parse_runs(name: str, value: object) -> Runs:
    """Canonical runs of a JSON list of [segment, start, length] triples."""
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list of [segment, start, length], got {type(value).__name__}")
    return canonical(_run(name, item) for item in value)


def number(name: str, value: object, least: float | None = 0.0) -> float:
    """A finite JSON number, at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name}={value!r} must be a finite number")
    if least is not None and value < least:
        raise ValueError(f"{name}={value!r} must be {least:g} or more")
    return float(value)


def read_header(record: dict[str, Any]) -> dict[str, Any]:
    """Fields of the header line as keyword arguments of ``Trace``; raises for another version."""
    if record["depthchart_trace"] != VERSION:
        raise ValueError(f"depthchart_trace={record['depthchart_trace']!r}: this version reads {VERSION}")
    fields: dict[str, Any] = {key: record[key] for key in ("name", "source", "seed") if key in record}
    return {**fields, "notes": tuple(record.get("notes", ()))}


def read_neutral(lines: Iterable[str]) -> tuple[dict[str, Any], list[TraceRequest]]:
    """Header fields and requests of neutral lines; the first fault raises with its line number."""
    header: dict[str, Any] = {}
    requests: list[TraceRequest] = []
    for count, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError("a line must be a JSON object")
            if "depthchart_trace" in record:
                header = read_header(record)
            else:
                requests.append(request_from_record(record))
        except ValueError as fault:
            raise ValueError(f"line {count}: {fault}") from fault
    return header, requests


def _run(name: str, item: object) -> Run:
    if not isinstance(item, list) or len(item) != 3 or not all(type(part) is int for part in item):
        raise ValueError(f"{name} holds {item!r}, which is no [segment, start, length] of whole numbers")
    return (item[0], item[1], item[2])


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _dumps(record: dict[str, Any]) -> str:
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False)
