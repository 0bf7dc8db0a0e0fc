"""A trace in numbers: lengths, arrivals, and what an unbounded cache could reuse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from depthchart.traces.overlap import reusable, seen_prefixes
from depthchart.traces.trace import Trace

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

BLOCKS = (1, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Block sizes, in tokens, at which reuse is shown."""

REQUEST_COLUMNS = (
    "request",
    "session",
    "arrival_s",
    "gap_s",  # since the arrival before; <NA> for the first
    "prompt_tokens",
    "output_tokens",
    "seen_tokens",  # leading prompt tokens that something before has computed, to the token
)
REUSE_COLUMNS = ("block_tokens", "reusable_tokens", "reuse_share", "requests_with_reuse")
TABLE_COLUMNS = ("quantity", "value", "unit")


@dataclass(frozen=True)
class TraceSummary:
    """What ``describe`` gives; shown as a table in a notebook.

    Args:
        trace: the trace described.
        requests: one row per request, columns ``REQUEST_COLUMNS``.
        reuse: one row per block size, columns ``REUSE_COLUMNS``; the cache is unbounded and instant.
        table: totals and quantiles, columns ``TABLE_COLUMNS``.
    """

    trace: Trace
    requests: pd.DataFrame
    reuse: pd.DataFrame
    table: pd.DataFrame

    def figure(self) -> Figure:
        """Lengths, arrivals and reuse against block size, as one figure."""
        from depthchart.charts.traces import trace_figure

        return trace_figure(self.requests, title=f"{self.trace.name}  ({self.trace.source})")

    def __str__(self) -> str:
        parts = (str(self.trace), self.table.to_string(index=False), self.reuse.to_string(index=False))
        notes = "".join(f"\nnote: {note}" for note in self.trace.notes)
        return "\n\n".join(parts) + notes

    def _repr_html_(self) -> str:
        return self.table.to_html(index=False) + self.reuse.to_html(index=False)


def describe(trace: Trace, blocks: Sequence[int] = BLOCKS) -> TraceSummary:
    """Lengths, arrivals and ideal reuse of a trace.

    Reuse is ideal: an unbounded cache in which every earlier request (by arrival) has finished.
    A real cache, with a time model and bounded pools, can only reuse less.

    Args:
        trace: the trace.
        blocks: block (page) sizes in tokens at which to count reusable tokens.
    """
    import pandas as pd

    for block in blocks:
        if block < 1:
            raise ValueError(f"blocks={tuple(blocks)} must be positive; nearest legal value for {block}: 1")
    rows = [
        (r.request_id, r.session, r.arrival_s, r.prompt_tokens, r.output_tokens, seen)
        for r, seen in zip(trace, seen_prefixes(trace), strict=True)
    ]
    frame = pd.DataFrame(rows, columns=[name for name in REQUEST_COLUMNS if name != "gap_s"])
    frame.insert(3, "gap_s", frame["arrival_s"].diff())
    return TraceSummary(trace, frame, reuse_frame(frame, blocks), _table(trace, frame))


def reuse_frame(requests: pd.DataFrame, blocks: Sequence[int] = BLOCKS) -> pd.DataFrame:
    """Reusable tokens against block size, from a frame with ``prompt_tokens`` and ``seen_tokens``."""
    import pandas as pd

    pairs = list(zip(requests["seen_tokens"].tolist(), requests["prompt_tokens"].tolist(), strict=True))
    total = sum(prompt for _, prompt in pairs)
    rows = []
    for block in blocks:
        hits = [reusable(seen, prompt, block) for seen, prompt in pairs]
        share = sum(hits) / total if total else 0.0
        rows.append((block, sum(hits), share, sum(hit > 0 for hit in hits)))
    return pd.DataFrame(rows, columns=list(REUSE_COLUMNS))


def _table(trace: Trace, frame: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    span = trace.duration_s
    rows: list[tuple[str, float | int, str]] = [
        ("requests", len(trace), "requests"),
        ("sessions", trace.sessions, "sessions"),
        ("duration", span, "s"),
        ("mean arrival rate", (len(trace) - 1) / span if span else 0.0, "requests/s"),
        ("prompt", trace.prompt_tokens, "tokens"),
        ("output", trace.output_tokens, "tokens"),
    ]
    for column, name in (("prompt_tokens", "prompt"), ("output_tokens", "output")):
        for share, word in ((0.5, "median"), (0.9, "90 %"), (1.0, "longest")):
            value = frame[column].quantile(share) if len(frame) else 0
            rows.append((f"{name}, {word}", int(value), "tokens"))
    ideal = [reusable(*pair, 1) for pair in zip(frame["seen_tokens"], frame["prompt_tokens"], strict=True)]
    rows.append(("reusable, to the token", int(sum(ideal)), "tokens"))
    return pd.DataFrame(rows, columns=list(TABLE_COLUMNS)).astype({"value": object})
