"""A finished run: its settings, its events, and the frames that are derived from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from depthchart.counters import counters
from depthchart.display import table_html
from depthchart.events import EventLog, Violation
from depthchart.geometry import Geometry
from depthchart.perfetto import write_perfetto
from depthchart.recording import read_recording, write_recording
from depthchart.redraw import TreeView, redraw
from depthchart.scheduler.loop import StepRecord

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["RECORDING", "Fault", "Run"]

RECORDING = "run.jsonl.gz"


class Fault(NamedTuple):
    """The broken invariant that ended a strict run."""

    kind: str
    message: str
    request: str
    step: int
    time_s: float


@dataclass
class Run:
    """What a simulation leaves behind. ``settings`` and ``geometry`` repeat it; ``violations`` are faults that
    the books show at the end (empty for a sound run); ``fault`` is where a strict run stopped; ``source`` and
    ``notes`` are the trace's own (lines left out, …), ``loaded`` is how its file was read
    (``Trace.loaded``); ``seen`` tells, where it is known, how many leading tokens of a request's prompt an earlier one
    had computed."""

    geometry: Geometry
    settings: Mapping[str, Any]
    log: EventLog
    source: str
    assumptions: str
    provenance: Mapping[str, str]
    records: list[StepRecord] = field(default_factory=list)
    fault: Fault | None = None
    violations: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    loaded: Mapping[str, Any] = field(default_factory=dict)
    seen: Mapping[str, int] = field(default_factory=dict)

    @property
    def requests(self) -> pd.DataFrame:
        """One row per request (columns.REQUESTS): times, prompt, H, C, lost and possible tokens, status."""
        from depthchart import frames

        return frames.requests(self.log, self.seen, self.geometry.tree_page)

    @property
    def hits(self) -> pd.DataFrame:
        """Histogram of KV hit H, reuse C and the gap H - C over the admitted requests (columns.HITS)."""
        from depthchart import frames

        return frames.hits(self.requests, self.geometry.tree_page)

    @property
    def steps(self) -> pd.DataFrame:
        """One row per step (columns.STEPS)."""
        from depthchart import frames

        return frames.steps(self.records)

    @property
    def events(self) -> pd.DataFrame:
        """Everything that happened, in order (columns.EVENTS)."""
        from depthchart import frames

        return frames.events(self.log)

    @property
    def checkpoints(self) -> pd.DataFrame:
        """One row per checkpoint decision and its outcome (columns.CHECKPOINTS)."""
        from depthchart import frames

        return frames.checkpoints(self.log)

    def nodes(self, at: float | None = None) -> pd.DataFrame:
        """The tree's nodes (columns.NODES) as they were at time ``at`` (seconds; None: at the end)."""
        from depthchart import frames

        return frames.nodes(self.tree(at))

    def tree(self, at: float | None = None) -> TreeView:
        """The tree redrawn from the events up to and including time ``at``."""
        return redraw(self.log, at)

    @property
    def end_s(self) -> float:
        """When the last step ended."""
        return self.records[-1].time_s + self.records[-1].duration_s if self.records else 0.0

    def summary(self) -> dict[str, Any]:
        """The run in a few numbers: counts, tokens, times in seconds."""
        from depthchart.frames import times_per_output_token

        table = self.requests
        done = table[table["status"] == "finished"]
        met = table[table["reused_tokens"].notna()]  # reuse is a share of what was admitted
        names = ("prompt", "kv_hit", "reused", "lost", "possible", "seen")
        prompt, hit, reused, lost, possible, seen = (int(met[f"{name}_tokens"].sum()) for name in names)
        ttft = (done["first_token_s"] - done["arrival_s"]).dropna()
        tpot = times_per_output_token(done)
        served = int(done["prompt_tokens"].sum()), int(done["output_tokens"].sum())
        return {
            "rule": self.settings["rule"],
            "requests": len(table),
            "finished": len(done),
            "rejected": int((table["status"] == "rejected").sum()),
            "prompt_tokens": prompt,
            "kv_hit_tokens": hit,
            "reused_tokens": reused,
            "lost_tokens": lost,
            "possible_tokens": possible if self.seen else None,
            "seen_tokens": seen if self.seen else None,
            "reuse": reused / prompt if prompt else 0.0,
            "retractions": int(table["retractions"].sum()),
            "steps": len(self.records),
            "simulated_s": self.end_s,
            "ttft_mean_s": float(ttft.mean()) if len(ttft) else None,
            "tpot_mean_s": float(tpot.mean()) if len(tpot) else None,
            "prompt_tokens_per_s": served[0] / self.end_s if self.end_s else None,
            "output_tokens_per_s": served[1] / self.end_s if self.end_s else None,
            "violations": sum(isinstance(entry.event, Violation) for entry in self.log),
            "fault": None if self.fault is None else f"{self.fault.kind}: {self.fault.message}",
        }

    def counters(self) -> dict[str, int]:
        """Checkpoints kept and not kept, evictions by reason, and what the tree holds at the end."""
        return counters(self.log)

    def save(self, folder: str | Path) -> Path:
        """Write the whole run to ``folder`` (made where it is missing) as one file; returns the folder.

        The file is whole or absent, and the same run gives the same bytes. ``Run.load`` reads it.
        """
        head = {
            "geometry": asdict(self.geometry),
            "settings": dict(self.settings),
            "source": self.source,
            "assumptions": self.assumptions,
            "provenance": dict(self.provenance),
            "fault": self.fault,
            "violations": self.violations,
            "notes": self.notes,
            "loaded": {name: _simple(value) for name, value in self.loaded.items()},
            "seen": dict(self.seen),
            "records": self.records,
        }
        write_recording(Path(folder) / RECORDING, head, self.log)
        return Path(folder)

    @classmethod
    def load(cls, folder: str | Path) -> Run:
        """The run that ``save`` wrote to a folder. Raises ValueError where there is none, or it is damaged."""
        path = Path(folder) / RECORDING
        if not path.is_file():
            raise ValueError(f"folder={str(folder)!r}: has no {RECORDING}; save a run there first")
        head, entries = read_recording(path)
        log = EventLog()
        log.entries = entries
        if entries:
            log.step, log.time_s = entries[-1].step, entries[-1].time_s
        try:
            return cls(
                Geometry(**head["geometry"]),
                head["settings"],
                log,
                head["source"],
                head["assumptions"],
                head["provenance"],
                [StepRecord(*record) for record in head["records"]],
                None if head["fault"] is None else Fault(*head["fault"]),
                head["violations"],
                head["notes"],
                head.get("loaded", {}),
                head.get("seen", {}),
            )
        except (KeyError, TypeError) as fault:
            raise ValueError(f"{path}: its first line is no head of a run: {fault}") from None

    def to_perfetto(self, path: str | Path) -> Path:
        """Write the schedule as a Chrome trace, for ui.perfetto.dev or chrome://tracing; returns the path."""
        return write_perfetto(Path(path), self.log, self.records, self.geometry, self.provenance)

    def report(
        self,
        path: str | Path,
        *,
        format: str | None = None,
        data: str | Path | None = None,
        data_format: str = "csv",
        advance: Callable[[int, int], object] | None = None,
    ) -> Path:
        """Write a report that opens offline: figures, tables, the tree through time, how to repeat it.

        Args:
            path: where to.
            format: "html" or "pdf" (default: as the path ends, else HTML).
            data: folder for the data of every figure.
            data_format: "csv" or "parquet".
            advance: told after each picture how many are done, of how many; raise in it to stop.

        Raises ValueError for an unknown format.
        """
        from depthchart.report import report_runs

        return report_runs(
            {self.settings["rule"]: self},
            path,
            format=format,
            data=data,
            data_format=data_format,
            advance=advance,
        )

    def __repr__(self) -> str:
        end = "to its end" if self.fault is None else f"to its first fault ({self.fault.kind})"
        return f"Run of {self.settings['trace']!r} under {self.settings['rule']!r}, {len(self.records)} steps, {end}"

    def _repr_html_(self) -> str:
        """The summary as a table, with its settings and assumptions, for a notebook."""
        rows = [("what", "value"), *((name, _shown(value)) for name, value in self.summary().items())]
        settings = ", ".join(f"{name}={value}" for name, value in self.settings.items())
        notes = "".join(f"<p><small>{escape(text)}</small></p>" for text in (settings, self.assumptions))
        return f"<b>{escape(repr(self))}</b>{table_html(rows)}{notes}"


def _shown(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _simple(value: object) -> object:
    """What a file can hold: a reader's option may be anything."""
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
