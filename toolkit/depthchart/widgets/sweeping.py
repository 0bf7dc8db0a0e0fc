"""The sweep explorer: many configurations of a trace, as heat map, Pareto front and table; any of them opens as a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from itertools import product
from pathlib import Path
from typing import Any

import ipywidgets as w
import pandas as pd

from depthchart.charts.style import palette, to_svg
from depthchart.columns import SWEEP
from depthchart.cost import LinearCost
from depthchart.display import table_html
from depthchart.models import MODELS
from depthchart.presets import PRESETS
from depthchart.report import frame_rows
from depthchart.report.sweeps import sweep_figures, sweep_page
from depthchart.scheduler.work import Work
from depthchart.simulate import simulate
from depthchart.sweep import Inline, Sweep, sweep
from depthchart.sweep_task import check, settings_of
from depthchart.traces import Trace
from depthchart.widgets.background import Advance, WorkBar
from depthchart.widgets.panels import error_panel
from depthchart.widgets.reporting import ReportBar
from depthchart.widgets.tree import tree_explorer

__all__ = ["SweepExplorer", "sweep_explorer"]

FIRST = ("sglang", "depthchart")
RANGES: Mapping[str, Sequence[Any]] = {
    "page_size": (16, 64, 512),
    "preset": (*FIRST, *(name for name in PRESETS if name not in FIRST)),
    "kv_tokens": (16_384, 32_768, 65_536, 131_072),
    "state_slots": (12, 24, 48, 96),
}
NO_MODEL = "no model"
MOST_ROWS = 200


def sweep_explorer(
    trace: Trace | Mapping[str, Trace], ranges: Mapping[str, Sequence[Any]] = RANGES, *, theme: str = "light"
) -> SweepExplorer:
    """Choose a trace, a model and ranges, run all combinations, and open any of them in the tree explorer.

    ``trace`` is one trace, or several by name; ``ranges`` are the values that each axis offers (``sweep.AXES``), all of
    them chosen at first where there are at most three. Raises ValueError for an axis without values.
    """
    traces = {trace.name: trace} if isinstance(trace, Trace) else dict(trace)
    palette(theme)
    for name, values in ranges.items():
        if not values:
            raise ValueError(f"ranges: {name} has no value; an axis needs at least one")
    return SweepExplorer(traces, ranges, theme)


class SweepExplorer(w.VBox):
    """Controls ``trace``, ``model`` and one of ``axes`` a range; ``start`` runs them, ``made`` is the last result."""

    def __init__(self, traces: Mapping[str, Trace], ranges: Mapping[str, Sequence[Any]], theme: str) -> None:
        self.traces, self.theme = traces, theme
        self.made: Sweep | None = None
        self.configs: list[dict[str, Any]] = []
        self.trace = w.Dropdown(description="trace", options=list(traces), layout=w.Layout(width="260px"))
        self.model = w.Dropdown(
            description="model", options=[NO_MODEL, *MODELS], layout=w.Layout(width="300px")
        )
        self.axes = {name: _choice(name, values) for name, values in ranges.items()}
        self.start = WorkBar("Run the sweep", self._sweep)
        self.pick = w.Dropdown(description="open", options=[], layout=w.Layout(width="640px"))
        self.opener = WorkBar("As a run", self._open, self.pick)
        self.message, self.table = w.HTML(), w.HTML()
        self.heat, self.front = (w.Image(format="svg+xml", layout=_wide()) for _ in range(2))
        self.report = ReportBar(self._write_report, "out/sweep.html")
        self.run = w.VBox()
        parts = [self.heat, self.front, self.opener, self.run, self.table, self.report]
        self.results = w.VBox(parts, layout=w.Layout(display="none"))
        boxes = w.HBox(list(self.axes.values()))
        super().__init__([w.HBox([self.trace, self.model]), boxes, self.start, self.message, self.results])
        self.add_class("depthchart-sweep-explorer")

    @property
    def grid(self) -> dict[str, Any]:
        """The chosen values by axis."""
        model = {} if self.model.value == NO_MODEL else {"model": [self.model.value]}
        return {name: list(box.value) for name, box in self.axes.items()} | model

    def _sweep(self, advance: Advance) -> str:
        grid = self.grid
        empty = [name for name, values in grid.items() if not values]
        if empty:
            raise ValueError(f"{empty[0]}: nothing is chosen; choose at least one value")
        legal = sum(check(dict(zip(grid, chosen, strict=True))) is None for chosen in product(*grid.values()))
        trace = self.traces[self.trace.value]
        made = sweep(trace, executor=_Told(advance, legal), progress=False, **grid)
        advance(legal, legal)
        self._show(made, list(grid))
        return (
            f"{len(made.frame):,} configurations of {trace.name}, {len(made.skipped):,} illegal ones left out"
        )

    def _show(self, made: Sweep, names: list[str]) -> None:
        """Figures and table of a sweep; an error is shown in its own words."""
        self.made, self.message.value = made, ""
        try:
            frame = made.frame.sort_values("reuse", ascending=False, kind="stable")
            heat, front = sweep_figures(frame, names, self.theme)
            self.heat.value, self.front.value = to_svg(heat).encode(), to_svg(front).encode()
            rows = [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]
            self.configs = [{name: row[name] for name in names} for row in rows]
            self.pick.options = [(_label(row, names), at) for at, row in enumerate(rows)]
            self.pick.index = 0
            self.table.value = _table(frame, names)
            self.results.layout.display = None
        except Exception as error:  # an error in a thread would otherwise be seen by nobody
            self.message.value = error_panel(error)

    def _open(self, advance: Advance) -> str:
        """Run the picked configuration with scheduler and time model, and show its tree."""
        if self.pick.value is None:
            raise ValueError("open: nothing is picked; run the sweep first")
        trace = self.traces[self.trace.value]
        geometry, settings = settings_of(self.configs[self.pick.value])
        cost = _Watched(advance, trace.output_tokens + len(trace))
        run = simulate(trace, geometry, **settings, strict=False, cost=cost)
        self.run.children = (tree_explorer(run, theme=self.theme),)
        return f"{len(run.records):,} steps"

    def _write_report(self, path: str, *, advance: Any = None) -> Path:
        if self.made is None:
            raise ValueError("nothing to report: run the sweep first")
        name, frame = self.trace.value, self.made.frame
        settings = [str(column) for column in frame if column not in SWEEP]
        page = sweep_page(frame, settings, name, len(self.traces[name]), self.made.skipped)
        return page.write(path, advance=advance)


class _Told(Inline):
    """Runs each task at once and tells how many are done; what ``advance`` raises ends the sweep."""

    def __init__(self, advance: Advance, total: int) -> None:
        self.advance, self.total, self.done = advance, total, 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.advance(self.done, self.total)
        self.done += 1
        return super().submit(fn, *args, **kwargs)


class _Watched:
    """The usual time model, which tells how many steps were taken; ``most`` is their upper bound."""

    def __init__(self, advance: Advance, most: int) -> None:
        self.advance, self.most, self.steps, self.model = advance, most, 0, LinearCost()

    @property
    def assumptions(self) -> str:
        return self.model.assumptions

    def step_s(self, work: Work) -> float:
        self.steps += 1
        if self.steps % 50 == 0:
            self.advance(min(self.steps, self.most), self.most)
        return self.model.step_s(work)


def _choice(name: str, values: Sequence[Any]) -> Any:
    few = tuple(values) if len(values) <= 3 else tuple(values)[:2]
    return w.SelectMultiple(
        description=name.replace("_", " "), options=list(values), value=few, rows=min(5, len(values)),
        layout=w.Layout(width="230px"),
    )  # fmt: skip


def _wide() -> Any:
    return w.Layout(width="100%", max_width="960px", object_fit="contain")


def _label(row: Mapping[str, Any], names: Sequence[str]) -> str:
    settings = ", ".join(f"{name}={row[name]}" for name in names)
    return f"{row['reuse']:.1%} reused: {settings}" if row["status"] == "ok" else f"failed: {settings}"


def _table(frame: pd.DataFrame, names: Sequence[str]) -> str:
    columns = [*names, "reuse", "reused_tokens", "lost_tokens", "wrong_requests", "memory_bytes", "status"]
    rows = frame_rows(frame[[name for name in columns if name in frame]].head(MOST_ROWS))
    return f'<div style="max-height:320px;overflow:auto;line-height:1.3">{table_html(rows)}</div>'
