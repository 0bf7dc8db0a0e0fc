"""A run's schedule in the Chrome trace format, which ui.perfetto.dev and chrome://tracing open.

Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU (Trace Event Format). Times in the
file are microseconds of simulated time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from depthchart.events import (
    Aborted,
    Admitted,
    Arrived,
    Donated,
    Entry,
    Extended,
    Finished,
    FirstToken,
    NodeRemoved,
    NotDonated,
    Rejected,
    Retracted,
    StateDropped,
    Violation,
)
from depthchart.files import write_text
from depthchart.geometry import Geometry
from depthchart.scheduler.loop import StepRecord

__all__ = ["trace_events", "write_perfetto"]

REQUESTS, CACHE, MEMORY = 1, 2, 3  # "processes": groups of tracks
STATES, NODES = 1, 2  # "threads" of the cache
US = 1_000_000


def write_perfetto(
    path: Path,
    log: Iterable[Entry],
    records: Sequence[StepRecord],
    geometry: Geometry,
    provenance: Mapping[str, str],
) -> Path:
    """Write the file whole and return its path."""
    about = {**provenance, **{f"geometry.{name}": value for name, value in asdict(geometry).items()}}
    body = {"traceEvents": trace_events(log, records), "displayTimeUnit": "ms", "otherData": about}
    return write_text(path, json.dumps(body, separators=(",", ":"), default=int) + "\n")


def trace_events(log: Iterable[Entry], records: Sequence[StepRecord]) -> list[dict[str, Any]]:
    """The trace's events, in order of time, names of the tracks first.

    Each request has a track: ``wait`` until it is admitted, a ``prefill`` slice for each extend, a ``decode`` slice for
    its decode rows together, and instants for donations, refusals and broken invariants. The cache has a track for evicted
    states and one for evicted nodes, memory has counters.
    """
    tracks = _Tracks(records)
    for entry in log:
        tracks.take(entry)
    tracks.end()
    timed = sorted([*tracks.events, *_counters(records)], key=lambda event: event["ts"])
    return [*tracks.names(), *timed]


class _Tracks:
    """Slices and instants as the events come in; times in seconds until they are written."""

    def __init__(self, records: Sequence[StepRecord]) -> None:
        self.events: list[dict[str, Any]] = []
        self._steps = {record.step: record for record in records}
        self._last = 0.0
        self._end_of_steps = records[-1].time_s + records[-1].duration_s if records else 0.0
        self._track: dict[str, int] = {}
        self._waiting: dict[str, float] = {}
        self._extended: dict[str, tuple[float, int]] = {}  # when the last extend ended, and at which token
        self._decoding: set[str] = set()

    def take(self, entry: Entry) -> None:
        now, event = entry.time_s, entry.event
        self._last = max(self._last, now)
        match event:
            case Arrived(request, prompt, session):
                self._track[request] = len(self._track) + 1
                self._waiting[request] = now
                self._mark(request, "arrives", now, {"prompt_tokens": prompt, "session": session})
            case Admitted(request, prefix):
                if (since := self._waiting.pop(request, None)) is not None:
                    self._slice(request, "wait", since, now, {"reused_tokens": prefix})
            case Extended(request, prefix, end, wanted, donate, reason):
                start = self._start(entry)
                what = {"from": prefix, "to": end, "checkpoint": wanted, "donate": donate, "why": reason}
                self._slice(
                    request, "prefill", start, now, what | {"tokens": end - prefix, "step": entry.step}
                )
                self._extended[request] = (now, end)
            case FirstToken(request):
                self._decoding.add(request)
            case Donated(request, node_id, _, depth, node_end, fits):
                what = {"depth": depth, "node": node_id, "node_end": node_end, "fits": fits}
                self._mark(request, "donate" if fits else "donate MISPLACED", now, what)
            case NotDonated(request, wanted, depth, outcome, reason):
                self._mark(
                    request, f"not donated: {outcome}", now, {"wanted": wanted, "depth": depth, "why": reason}
                )
            case Finished(request, tokens) | Aborted(request, tokens) | Retracted(request, tokens):
                self._leave(request, type(event).__name__.lower(), tokens, now)
            case Rejected(request, reason):
                self._waiting.pop(request, None)
                self._mark(request, "rejected", now, {"why": reason})
            case NodeRemoved(node_id, tokens, why):
                what = {"node": node_id, "tokens": tokens, "why": why}
                self._add("i", f"evict node {node_id}", now, CACHE, NODES, cat="evict", s="t", args=what)
            case StateDropped(node_id, why):
                what = {"node": node_id, "why": why}
                self._add("i", f"evict state of {node_id}", now, CACHE, STATES, cat="evict", s="t", args=what)
            case Violation(kind, message, request):
                tid = self._track.get(request, 0)
                self._add("i", kind, now, REQUESTS, tid, cat="fault", s="g", args={"message": message})

    def end(self) -> None:
        """What still waits or decodes when the run ends."""
        now = max(self._last, self._end_of_steps)
        for request, since in self._waiting.items():
            self._slice(request, "wait", since, now, {"unfinished": True})
        for request in self._decoding:
            if request in self._extended:
                self._slice(request, "decode", self._extended[request][0], now, {"unfinished": True})

    def names(self) -> Iterator[dict[str, Any]]:
        """Metadata: what the groups and tracks are called, in order of arrival."""
        for pid, name in ((REQUESTS, "requests"), (CACHE, "cache"), (MEMORY, "memory and queues")):
            yield _meta("process_name", pid, 0, {"name": name})
            yield _meta("process_sort_index", pid, 0, {"sort_index": pid})
        threads = [(REQUESTS, track, name) for name, track in self._track.items()]
        for pid, tid, name in [*threads, (CACHE, STATES, "states evicted"), (CACHE, NODES, "nodes evicted")]:
            yield _meta("thread_name", pid, tid, {"name": name})
            yield _meta("thread_sort_index", pid, tid, {"sort_index": tid})

    def _start(self, entry: Entry) -> float:
        """When the step of an event began; a step that a fault ended has no record and began after the last one."""
        record = self._steps.get(entry.step)
        return min(entry.time_s, self._end_of_steps if record is None else record.time_s)

    def _leave(self, request: str, how: str, tokens: int, now: float) -> None:
        since, end = self._extended.pop(request, (now, tokens))
        if tokens > end:
            self._slice(request, "decode", since, now, {"tokens": tokens - end})
        self._decoding.discard(request)
        self._waiting.pop(request, None)
        if how == "retracted":
            self._waiting[request] = now
        self._mark(request, how, now, {"tokens": tokens})

    def _slice(self, request: str, name: str, start: float, end: float, args: dict[str, Any]) -> None:
        tid = self._track.get(request, 0)
        self._add("X", name, start, REQUESTS, tid, cat="request", dur=_us(end) - _us(start), args=args)

    def _mark(self, request: str, name: str, now: float, args: dict[str, Any]) -> None:
        self._add("i", name, now, REQUESTS, self._track.get(request, 0), cat="request", s="t", args=args)

    def _add(self, ph: str, name: str, time_s: float, pid: int, tid: int, **more: Any) -> None:
        self.events.append({"ph": ph, "name": name, "ts": _us(time_s), "pid": pid, "tid": tid, **more})


def _counters(records: Sequence[StepRecord]) -> Iterator[dict[str, Any]]:
    for r in records:
        for name, values in (
            ("KV tokens", {"free": r.free_kv_tokens, "evictable": r.evictable_kv_tokens}),
            ("state slots", {"free": r.free_state_slots, "evictable": r.evictable_state_slots}),
            ("requests", {"running": r.running, "waiting": r.waiting}),
        ):
            yield {"ph": "C", "name": name, "ts": _us(r.time_s), "pid": MEMORY, "tid": 0, "args": values}


def _meta(name: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "ts": 0, "pid": pid, "tid": tid, "args": args}


def _us(seconds: float) -> float:
    return round(seconds * US, 3)
