"""Results of a sweep by configuration, in memory and in a folder: what is known already need not run again.

The key of a result is a digest of its configuration, of the trace and of the version of the format. In a folder each
result is a file of its own, whole or absent: one row of Parquet where pyarrow is installed (all of them together are one
table, ``pandas.read_parquet(folder / "results")``), else JSON. Both are read, whichever is written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from depthchart import __version__
from depthchart.columns import SWEEP
from depthchart.files import whole_file, write_text
from depthchart.provenance import provenance
from depthchart.sweep_task import Config
from depthchart.traces.trace import Trace

__all__ = ["WHOLE", "Store"]

FORMAT = 2  # part of every key: raise it when a result's meaning changes
WHOLE = tuple(
    name
    for name in SWEEP
    if name.endswith(("_tokens", "_requests")) or name in ("violations", "memory_bytes")
)
"""Columns that hold whole numbers."""
WORDS = ("status", "reason")


class Store:
    """``rows`` by key: all that was asked for or put so far. ``folder=None`` keeps them in memory only."""

    def __init__(self, folder: Path | None, trace: Trace, timed: bool) -> None:
        self.folder = None if folder is None else folder / "results"
        self.digest = _digest(trace, timed)
        self.rows: dict[str, dict[str, Any]] = {}

    def key(self, config: Config) -> str:
        """Equal for equal configurations of the same trace."""
        return sha256((json.dumps(config, sort_keys=True) + self.digest).encode()).hexdigest()[:20]

    def get(self, key: str) -> dict[str, Any] | None:
        """The result, or None where there is none yet. Raises ValueError where its file is damaged."""
        if key not in self.rows and self.folder is not None:
            for path, read in ((self._parquet(key), _read_parquet), (self._json(key), _read_json)):
                if path.exists():
                    self.rows[key] = read(path)
                    break
        return self.rows.get(key)

    def put(self, key: str, config: Config, row: Mapping[str, Any]) -> None:
        """Keep a result, on disk as well where there is a folder."""
        self.rows[key] = dict(row)
        if self.folder is None:
            return
        if find_spec("pyarrow") is not None:
            _write_parquet(self._parquet(key), key, config, row)
        else:
            facts = {"config": config, "result": row, "provenance": provenance()}
            write_text(self._json(key), json.dumps(facts))

    def _parquet(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{key}.parquet"

    def _json(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{key}.json"


def _digest(trace: Trace, timed: bool) -> str:
    parts = [
        (r.prompt, r.output, r.extra_key, r.priority, *((r.arrival_s, r.after, r.think_s) if timed else ()))
        for r in trace
    ]
    return sha256(repr((FORMAT, __version__, timed, parts)).encode()).hexdigest()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())["result"]
    except (ValueError, KeyError, TypeError) as fault:
        raise ValueError(
            f"{path}: is no result of a sweep ({fault}); delete it to have it run again"
        ) from None
    return found


def _read_parquet(path: Path) -> dict[str, Any]:
    if find_spec("pyarrow") is None:
        raise ValueError(f"{path}: reading it needs pyarrow: pip install 'depthchart[parquet]'")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        row = pq.read_table(path).to_pylist()[0]
        return {name: row[name] for name in SWEEP}
    except (pa.ArrowException, OSError, KeyError, IndexError) as fault:
        raise ValueError(
            f"{path}: is no result of a sweep ({fault}); delete it to have it run again"
        ) from None


def _write_parquet(path: Path, key: str, config: Config, row: Mapping[str, Any]) -> None:
    """One row; the types are the same in every file, so that all of them read as one table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    facts = {
        "key": key,
        "config": json.dumps(config),
        **{name: row[name] for name in SWEEP},
        "provenance": json.dumps(provenance()),
    }
    kinds = {name: pa.float64() for name in SWEEP} | dict.fromkeys(WHOLE, pa.int64())
    schema = pa.schema(
        [(name, pa.string() if name in WORDS else kinds.get(name, pa.string())) for name in facts]
    )
    with whole_file(path) as draft:
        pq.write_table(pa.Table.from_pylist([facts], schema), draft)
