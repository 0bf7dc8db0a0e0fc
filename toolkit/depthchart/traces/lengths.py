"""Readers of traces that tell lengths and arrivals only: Azure and BurstGPT. Nothing is ever reused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from depthchart.traces.lines import DamageLog, csv_requests, seconds, whole, words
from depthchart.traces.segments import Segments
from depthchart.traces.trace import TraceRequest

AZURE_SOURCE = "Azure LLM inference trace, github.com/Azure/AzurePublicDataset (CC-BY 4.0)"
BURSTGPT_SOURCE = "BurstGPT, github.com/HPMLL/BurstGPT (CC-BY 4.0)"


def read_azure(path: Path, log: DamageLog) -> Iterator[TraceRequest]:
    """Azure CSV: ``TIMESTAMP,ContextTokens,GeneratedTokens``; no prefix identity, no sessions.

    Time counts from the first row; a row before it is damaged.
    """
    segments = Segments()
    first: list[int] = []

    def parse(record: dict[str, Any], line: int) -> Iterable[TraceRequest]:
        tokens, reply = whole(record, "ContextTokens", 1), whole(record, "GeneratedTokens")
        ticks = _ticks(record["TIMESTAMP"])
        if not first:
            first.append(ticks)
        yield _plain(f"a{line:07d}", (ticks - first[0]) / 1e9, tokens, reply, segments)

    return csv_requests(path, log, parse)


def read_burstgpt(path: Path, log: DamageLog, keep_failures: bool = False) -> Iterator[TraceRequest]:
    """BurstGPT CSV of any release; no prefix identity. Time counts from the first row.

    Args:
        path: the file.
        log: where damaged lines go.
        keep_failures: keep requests of 0 response tokens, which failed.
    """
    segments = Segments()
    first: list[float] = []

    def parse(record: dict[str, Any], line: int) -> Iterable[TraceRequest]:
        time_s, tokens = seconds(record, "Timestamp"), whole(record, "Request tokens", 1)
        reply = whole(record, "Response tokens")
        if not first:
            first.append(time_s)
        if reply == 0 and not keep_failures:
            log.skip("0 response tokens, a failed request")
            return
        name, session = f"b{line:07d}", words(record, "Session ID")
        model = words(record, "Model")
        yield _plain(name, time_s - first[0], tokens, reply, segments, session, model)

    return csv_requests(path, log, parse)


def _plain(
    name: str,
    at_s: float,
    tokens: int,
    reply: int,
    segments: Segments,
    session: str | None = None,
    model: str | None = None,
) -> TraceRequest:
    if at_s < 0:
        raise ValueError(f"the time lies {-at_s:g} s before the first row's")
    prompt, output = segments.fresh(tokens), segments.fresh(reply)
    return TraceRequest(name, at_s, prompt, output, session, extra_key=model)


def _ticks(text: str) -> int:
    """Nanoseconds since 1970; any number of fractional digits, with or without a UTC offset."""
    clock, dot, rest = text.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    moment = datetime.fromisoformat(clock + rest[len(digits) :])
    if dot and not digits:
        raise ValueError(f"TIMESTAMP={text!r} ends in a bare point")
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return round(moment.timestamp()) * 10**9 + int(digits[:9].ljust(9, "0"))
