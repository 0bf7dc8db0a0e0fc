"""Open any trace: a bundled one by name, or a file whose format is found by looking at it."""

from __future__ import annotations

import gzip
import inspect
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from depthchart.traces import blocks, chat_logs, coding_agent, lengths, ragpulse, tables, token_ids
from depthchart.traces.bundle import BUNDLED, bundled_path
from depthchart.traces.lines import DamageLog, as_object, csv_fields, json_requests, numbered, open_bytes
from depthchart.traces.neutral import read_header, request_from_record, write_trace
from depthchart.traces.trace import Trace, TraceRequest


@dataclass(frozen=True)
class Format:
    """A trace format.

    Args:
        name: what ``format=`` and the command line call it.
        fits: whether these keys (of a JSON object, or columns of a CSV header) are its own.
        read: path and log, and options of its own, to requests in file order.
        source: what the trace's source says, unless the file says more.
        table: True where the keys are columns of a CSV file.
    """

    name: str
    fits: Callable[[dict[str, Any]], bool]
    read: Callable[..., Iterator[TraceRequest]]
    source: str
    table: bool = False


def load_trace(
    path_or_name: str | os.PathLike[str],
    *,
    format: str | None = None,
    strict: bool = False,
    limit: int | None = None,
    log: DamageLog | None = None,
    **options: Any,
) -> Trace:
    """The trace in a file or folder, or a bundled one by name.

    Args:
        path_or_name: a path (plain or gzip), or one of ``depthchart.traces.bundle.BUNDLED``.
        format: a name of ``FORMATS``; None looks at the file.
        strict: stop at the first damaged line instead of leaving it out.
        limit: read only this many requests, in the file's order.
        log: receives every damaged line; the trace's notes count them in any case.
        **options: the reader's own; see the ``read_...`` function of the format.
    """
    log = log or DamageLog(strict)
    path = resolve(path_or_name)
    chosen = detect(path) if format is None else _named(format)
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit} must be 1 or more; nearest legal value: 1")
    _check_options(chosen, options)
    requests = list(islice(chosen.read(path, log, **options), limit))
    if not requests and log.count:
        first = log.damages[0]
        raise ValueError(
            f"{path.name}: no request could be read as {chosen.name}; "
            f"{log.count} damaged lines, first: line {first.line}: {first.reason}"
        )
    fields = {"name": trace_name(path), "source": chosen.source, **log.header}
    notes = [*fields.pop("notes", ()), *log.notes()]
    requests, loose = _tied(requests)
    if loose:
        notes.append(f"{loose} requests name an 'after' that is not in the trace; it was dropped")
    if limit is not None and len(requests) == limit:
        notes.append(f"first {limit} requests of the file")
    if not requests:
        raise ValueError(f"{path.name}: holds no request in the format {chosen.name!r}")
    given = {"path": os.fspath(path_or_name), **({} if format is None else {"format": format}), **options}
    return Trace(requests=tuple(requests), notes=tuple(notes), loaded=given, **fields)


def stream_trace(
    path_or_name: str | os.PathLike[str],
    *,
    format: str | None = None,
    log: DamageLog | None = None,
    **options: Any,
) -> Iterator[TraceRequest]:
    """Requests one by one in the file's order, which may not be the order of arrival; see ``load_trace``."""
    path = resolve(path_or_name)
    chosen = detect(path) if format is None else _named(format)
    _check_options(chosen, options)
    return chosen.read(path, log or DamageLog(), **options)


def save_trace(trace: Trace, path: str | os.PathLike[str]) -> Path:
    """Write ``trace`` in the neutral form that the file's name asks for; returns the path."""
    path = Path(path)
    ending = "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix
    if ending not in _WRITERS:
        raise ValueError(f"out={path.name!r} must end in one of: {', '.join(_WRITERS)}")
    return _WRITERS[ending](trace, path)


def detect(path: Path) -> Format:
    """The format of a file or folder, from the first lines that can be read.

    Raises:
        ValueError: nothing fits; the message lists what was seen and the formats.
    """
    if path.is_dir():
        return _named("ragpulse" if any(path.glob("0_trace.jsonl*")) else "coding-agent")
    try:
        with open_bytes(path) as stream:
            if stream.read(4) == b"PAR1":
                return _named("parquet")
    except (EOFError, zlib.error, gzip.BadGzipFile) as fault:
        raise ValueError(f"{path.name}: begins like a gzip file, but is none: {fault}") from fault
    seen: list[str] = []
    for table, keys in _samples(path):
        for each in FORMATS.values():
            if each.table == table and each.fits(keys):
                return each
        seen.extend(str(key) for key in list(keys)[:6])
    raise ValueError(
        f"{path.name}: no trace format fits; keys seen: {', '.join(seen[:8]) or 'none'}; "
        f"formats: {', '.join(FORMATS)}"
    )


def resolve(path_or_name: str | os.PathLike[str]) -> Path:
    """The file or folder meant: an existing path first, else a bundled name."""
    path = Path(path_or_name)
    if path.exists():
        return path
    if str(path_or_name) in BUNDLED:
        return bundled_path(str(path_or_name))
    raise ValueError(
        f"trace={str(path_or_name)!r} is neither a file nor a bundled trace; bundled: {', '.join(BUNDLED)}"
    )


def trace_name(path: Path) -> str:
    """File name without its format endings."""
    return path.name.split(".")[0] or path.name


def read_neutral_file(path: Path, log: DamageLog) -> Iterator[TraceRequest]:
    """Neutral JSON Lines; the header line's fields go to ``log.header``."""

    def parse(record: dict[str, Any], line: int) -> Iterable[TraceRequest]:
        if "depthchart_trace" in record:
            log.header.update(read_header(record))
            return ()
        return (request_from_record(record),)

    return json_requests(path, log, parse)


def _check_options(chosen: Format, options: dict[str, Any]) -> None:
    legal = list(inspect.signature(chosen.read).parameters)[2:]
    for key, value in options.items():
        if key not in legal:
            known = ", ".join(legal) or "none"
            raise ValueError(f"{key}={value!r} is no option of the format {chosen.name!r}; legal: {known}")


def _has(*names: str) -> Callable[[dict[str, Any]], bool]:
    return lambda keys: all(name in keys for name in names)


def _is_chat(keys: dict[str, Any]) -> bool:
    body = keys.get("body", keys.get("request", keys))
    return isinstance(body, dict) and ("messages" in body or "text_input" in body)


FORMATS: dict[str, Format] = {
    each.name: each
    for each in (
        Format("neutral", lambda k: "depthchart_trace" in k or _has("id", "arrival_s", "prompt")(k),
               read_neutral_file, "neutral trace file"),
        Format("ragpulse", lambda k: isinstance(k.get("hash_ids"), dict), ragpulse.read_ragpulse,
               ragpulse.SOURCE),
        Format("bailian", _has("chat_id", "parent_chat_id", "hash_ids"), blocks.read_bailian,
               blocks.BAILIAN_SOURCE),
        Format("mooncake", _has("hash_ids", "input_length"), blocks.read_mooncake, blocks.MOONCAKE_SOURCE),
        Format("coding-agent", _has("requests"), coding_agent.read_coding_agent, coding_agent.SOURCE),
        Format("token-ids", lambda k: "input_toks" in k or "sub_requests" in k, token_ids.read_token_ids,
               token_ids.SOURCE),
        Format("chat", _is_chat, chat_logs.read_chat_log, chat_logs.SOURCE),
        Format("azure", _has("TIMESTAMP", "ContextTokens"), lengths.read_azure, lengths.AZURE_SOURCE, True),
        Format("burstgpt", _has("Timestamp", "Request tokens"), lengths.read_burstgpt,
               lengths.BURSTGPT_SOURCE, True),
        Format("csv", lambda k: "arrival_s" in k and ("prompt" in k or "prompt_tokens" in k),
               tables.read_csv, tables.SOURCE, True),
        Format("parquet", lambda k: False, tables.read_parquet, tables.SOURCE, True),
    )
}  # fmt: skip
"""Every format by name, in the order in which they are tried."""


_WRITERS: dict[str, Callable[[Trace, Path], Path]] = {
    ".jsonl": write_trace,
    ".jsonl.gz": write_trace,
    ".csv": tables.write_csv,
    ".csv.gz": tables.write_csv,
    ".parquet": tables.write_parquet,
}


def _named(name: str) -> Format:
    if name not in FORMATS:
        raise ValueError(f"format={name!r} is unknown; formats: {', '.join(FORMATS)}")
    return FORMATS[name]


def _samples(path: Path, lines: int = 50) -> Iterator[tuple[bool, dict[str, Any]]]:
    """Keys of the first readable lines: (is a CSV header, keys); a pretty-printed JSON file counts whole."""
    for count, (_, text) in enumerate(islice(numbered(path, DamageLog()), lines)):
        try:
            yield False, as_object(text)
            continue
        except ValueError:
            pass
        if count == 0:
            if text.strip() == b"{":
                yield from _whole_file(path)
                return
            try:
                yield True, dict.fromkeys(csv_fields(text))
            except ValueError:
                continue


def _whole_file(path: Path) -> Iterator[tuple[bool, dict[str, Any]]]:
    try:
        with open_bytes(path) as stream:
            yield False, as_object(stream.read())
    except ValueError:
        return


def _tied(requests: list[TraceRequest]) -> tuple[list[TraceRequest], int]:
    """Requests whose ``after`` is in the trace or None, and how many had to be cut loose."""
    ids = {request.request_id for request in requests}
    loose = sum(request.after is not None and request.after not in ids for request in requests)
    if not loose:
        return requests, 0
    return [r if r.after is None or r.after in ids else replace(r, after=None) for r in requests], loose
