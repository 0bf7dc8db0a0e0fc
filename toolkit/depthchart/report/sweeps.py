"""The report of a sweep: heat map, Pareto front, every configuration as a sortable table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from depthchart.charts.style import figure
from depthchart.charts.sweeps import axes_to_draw, heat_map, pareto
from depthchart.columns import SWEEP
from depthchart.provenance import provenance
from depthchart.report.page import Page, frame_rows
from depthchart.report.repeat import trace_call

__all__ = ["load_sweep_page", "sweep_call", "sweep_figures", "sweep_page"]

MOST_PANELS = 8


def sweep_figures(frame: pd.DataFrame, names: Sequence[str], theme: str = "light") -> tuple[Figure, Figure]:
    """Heat map over the two settings with the most numeric values, and the Pareto front over memory (or the KV pool).

    ``names`` are the settings among the columns. Panels and marks tell a third setting apart where it has at most eight
    values.
    """
    drawn = axes_to_draw(frame, list(names))
    numeric = [name for name in drawn if pd.api.types.is_numeric_dtype(frame[name])]
    others = sorted((name for name in drawn if name not in numeric[:2]), key=lambda name: name in numeric)
    panel = next((name for name in others if frame[name].nunique() <= MOST_PANELS), None)
    cost = "memory_bytes" if frame["memory_bytes"].notna().any() else "kv_tokens"
    front = pareto(frame, cost, group=panel, title="Memory against reuse", theme=theme)
    if len(numeric) < 2:
        return _nothing(theme), front
    x, y = sorted(numeric[:2], key=lambda name: name != "kv_tokens")
    return heat_map(frame, x, y, panels=panel, title="Reuse", theme=theme), front


def sweep_page(
    frame: pd.DataFrame,
    names: Sequence[str],
    trace: str,
    requests: int,
    skipped: pd.DataFrame | None = None,
    *,
    loaded: Mapping[str, Any] | None = None,
    **facts: Any,
) -> Page:
    """The report of a sweep's frame over the first ``requests`` of a trace.

    ``names`` are its settings, ``skipped`` what was illegal and why, ``loaded`` how the trace was read (``Trace.loaded``),
    ``facts`` its provenance.
    """
    page = Page(f"{len(frame):,} configurations of {trace}, {requests:,} requests")
    page.section("Where reuse is won", "Mean over the settings that a figure does not show.")
    heat, front = sweep_figures(frame, names)
    page.figure(heat, "Share of prompt tokens reused.", {"results": frame})
    page.figure(
        front, "Every configuration; the line joins those that no other one beats.", {"results": frame}
    )
    ordered = frame.sort_values("reuse", ascending=False, kind="stable")
    empty = [name for name in ordered if (ordered[name].isna() | ordered[name].eq("")).all()]
    rows = frame_rows(ordered.drop(columns=empty))
    numeric = [at for at, name in enumerate(rows[0]) if pd.api.types.is_numeric_dtype(frame[str(name)])]
    page.section("Every configuration").table(rows, numeric, "Click a heading to sort.")
    if skipped is not None and len(skipped):
        page.section("Illegal combinations").table(frame_rows(skipped))
    page.section("To repeat it").listing(sweep_call(frame, names, trace_call(loaded, trace, requests)))
    return page.provenance({**provenance(), **facts})


def load_sweep_page(folder: str | Path) -> Page:
    """The report of a folder that ``sweep(out=…)`` wrote. Raises ValueError where it holds none."""
    place = Path(folder)
    try:
        facts = json.loads((place / "sweep.json").read_text())
        frame = pd.read_csv(place / "results.csv")
        skipped = pd.read_csv(place / "skipped.csv")
    except (OSError, ValueError) as fault:
        raise ValueError(f"folder={str(folder)!r}: holds no whole sweep: {fault}") from None
    names = [str(name) for name in frame if name not in SWEEP]
    told = {"source": facts["trace"]["source"], **facts["provenance"]}
    trace = facts["trace"]
    loaded = trace.get("loaded") or {"path": trace["name"]}
    return sweep_page(frame, names, trace["name"], trace["requests"], skipped, loaded=loaded, **told)


def sweep_call(frame: pd.DataFrame, names: Sequence[str], trace: str) -> list[str]:
    """Python lines that run the sweep again; ``trace`` is the call that reads its trace."""
    axes = [f"    {name}={[_plain(v) for v in dict.fromkeys(frame[name].dropna())]!r}," for name in names]
    return ["from depthchart import load_trace", "from depthchart.sweep import sweep", "", "made = sweep(",
            f"    {trace},", *axes, ")"]  # fmt: skip


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _nothing(theme: str) -> Figure:
    fig = figure(8, 1, theme=theme)
    fig.text(0.02, 0.5, "A heat map needs two numeric settings with several values each.", size=9)
    return fig
