"""The neutral format as a table: CSV, and Parquet where pyarrow is installed.

Columns: ``id``, ``arrival_s``, then ``prompt`` and ``output`` (JSON runs) or, where identities are not
known, ``prompt_tokens`` and ``output_tokens``; and as wanted ``session``, ``priority``, ``extra_key``,
``after``, ``think_s``. Units as in ``depthchart.traces.neutral``.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from depthchart.files import write_whole
from depthchart.traces.lines import DamageLog, Parse, csv_requests, requests_of, whole
from depthchart.traces.neutral import KEYS, request_from_record, request_record
from depthchart.traces.segments import Segments
from depthchart.traces.trace import SEGMENT_LIMIT, Trace, TraceRequest

SOURCE = "neutral table"
LENGTHS = {"prompt_tokens": "prompt", "output_tokens": "output"}


def read_csv(path: Path, log: DamageLog) -> Iterator[TraceRequest]:
    """Neutral CSV with a header line."""
    return csv_requests(path, log, _parser())


def read_parquet(path: Path, log: DamageLog) -> Iterator[TraceRequest]:
    """Neutral Parquet; ``line`` in damage reports is the row, from 1."""
    file = _pyarrow("pyarrow.parquet").ParquetFile(path)
    rows = (row for batch in file.iter_batches() for row in batch.to_pylist())

    def ready(row: dict[str, Any]) -> Callable[[], dict[str, Any]]:
        return lambda: row

    return requests_of(((number, ready(row)) for number, row in enumerate(rows, start=1)), log, _parser())


def write_csv(trace: Trace, path: Path) -> Path:
    """Write ``trace`` as neutral CSV (plain or by its name gzip); name, source and seed are not kept."""
    text = io.StringIO()
    writer = csv.DictWriter(text, KEYS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_row(request) for request in trace)
    data = text.getvalue().encode()
    write_whole(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


def write_parquet(trace: Trace, path: Path) -> Path:
    """Write ``trace`` as neutral Parquet; needs pyarrow."""
    table = _pyarrow("pyarrow").Table.from_pylist([_row(request) for request in trace])
    sink = io.BytesIO()
    _pyarrow("pyarrow.parquet").write_table(table, sink)
    write_whole(path, sink.getvalue())
    return path


def _row(request: TraceRequest) -> dict[str, Any]:
    record = dict.fromkeys(KEYS) | {"priority": 0, "think_s": 0.0} | request_record(request)
    return record | {side: json.dumps(record[side], separators=(",", ":")) for side in ("prompt", "output")}


def _parser() -> Parse:
    """Fresh tokens are counted down from the last segment, away from a file's own numbers."""
    fresh = Segments(first=SEGMENT_LIMIT - 1, step=-1)

    def parse(row: dict[str, Any], line: int) -> Iterable[TraceRequest]:
        record = {key: value for key, value in row.items() if value is not None and value != ""}
        for side in ("prompt", "output"):
            if side in record:
                record[side] = json.loads(record[side])
        for key, side in LENGTHS.items():
            if key in record:
                tokens = whole(record, key)
                record.pop(key)
                if side not in record:
                    record[side] = [list(run) for run in fresh.fresh(tokens)]
        for key in ("arrival_s", "think_s", "priority"):
            if key in record:
                record[key] = float(record[key])
        record.setdefault("id", f"n{line:07d}")
        yield request_from_record(record)

    return parse


def _pyarrow(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as fault:
        raise ValueError("a .parquet trace needs pyarrow (the extra 'parquet'); install it or use .csv or .jsonl") from fault
