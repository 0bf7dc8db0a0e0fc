"""The sweep explorer: many configurations of a trace, as heat map, Pareto front and table; a click on any opens its run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from itertools import product
from pathlib import Path
from typing import Any

import ipywidgets as w
import pandas as pd

from depthchart.columns import SWEEP
from depthchart.cost import LinearCost
from depthchart.models import MODELS
from depthchart.presets import PRESETS
from depthchart.report import frame_rows
from depthchart.report.repeat import trace_call
from depthchart.report.sweeps import sweep_call, sweep_figures, sweep_page
from depthchart.scheduler.work import Work
from depthchart.simulate import simulate
from depthchart.sweep import Inline, Sweep, sweep
from depthchart.sweep_task import check, settings_of
from depthchart.traces import Trace
from depthchart.widgets.background import Advance, WorkBar
from depthchart.widgets.clickable import AUTO, Picture, Rows, Theme
from depthchart.widgets.panels import error_panel, repeat_panel
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
_RESULTS = ("reuse", "reused_tokens", "lost_tokens", "wrong_requests", "memory_bytes", "status")


def sweep_explorer(
    trace: Trace | Mapping[str, Trace], ranges: Mapping[str, Sequence[Any]] = RANGES, *, theme: str = AUTO
) -> SweepExplorer:
    """Choose a trace, a model and ranges, run all combinations, and open any of them in the tree explorer: by a click on
    its cell, point or row, or from the list.

    ``trace`` is one trace, or several by name; ``ranges`` are the values that each axis offers (``sweep.AXES``), all of
    them chosen at first where there are at most three. Raises ValueError for an axis without values.
    """
    traces = {trace.name: trace} if isinstance(trace, Trace) else dict(trace)
    for name, values in ranges.items():
        if not values:
            raise ValueError(f"ranges: {name} has no value; an axis needs at least one")
    return SweepExplorer(traces, ranges, theme)


class SweepExplorer(w.VBox):
    """Controls ``trace``, ``model`` and one of ``axes`` a range; ``start`` runs them, ``made`` is the last result."""

    def __init__(self, traces: Mapping[str, Trace], ranges: Mapping[str, Sequence[Any]], theme: str) -> None:
        self.traces = traces
        self.made: Sweep | None = None
        self.made_on = next(iter(traces))
        self.configs: list[dict[str, Any]] = []
        self._frame = pd.DataFrame()
        self.trace = w.Dropdown(description="trace", options=list(traces), layout=w.Layout(width="260px"))
        self.model = w.Dropdown(
            description="model", options=[NO_MODEL, *MODELS], layout=w.Layout(width="300px")
        )
        self.axes = {name: _choice(name, values) for name, values in ranges.items()}
        self.start = WorkBar("Run the sweep", self._sweep)
        self.pick = w.Dropdown(
            description="open", options=[], layout=w.Layout(width="640px", max_width="98%")
        )
        self.opener = WorkBar("As a run", self._open, self.pick)
        self.message, self.repeat = w.HTML(), w.HTML()
        self.hint = w.HTML(
            '<span style="opacity:0.8">Click a cell, a point or a row: it opens as a run below. A cell that stands for '
            "several configurations opens the best of them.</span>"
        )
        self.heat = Picture(alt="heat map of the sweep; a click on a cell opens its run")
        self.front = Picture(alt="Pareto front of the sweep; a click on a point opens its run")
        self.table = Rows()
        self.theme = Theme(theme, self.heat, self._draw)
        self.report = ReportBar(self._write_report, "out/sweep.html")
        self.run = w.VBox()
        parts = [
            self.hint,
            self.heat,
            self.front,
            self.table,
            self.opener,
            self.run,
            self.repeat,
            self.report,
        ]
        self.results = w.VBox(parts, layout=w.Layout(display="none"))
        wrap = w.Layout(flex_flow="row wrap")
        boxes = w.HBox(list(self.axes.values()), layout=wrap)
        top = w.HBox([self.trace, self.model], layout=wrap)
        super().__init__([top, boxes, self.start, self.message, self.results])
        self.add_class("depthchart-sweep-explorer")
        self.pick.observe(lambda change: self._outline(), names="value")
        for part in (self.heat, self.front, self.table):
            part.on_click(self._clicked)

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
        name = self.trace.value
        trace = self.traces[name]
        made = sweep(trace, executor=_Told(advance, legal), progress=False, **grid)
        advance(legal, legal)
        self.made_on = name
        self._show(made, list(grid))
        return (
            f"{len(made.frame):,} configurations of {trace.name}, {len(made.skipped):,} illegal ones left out"
        )

    def _show(self, made: Sweep, names: list[str]) -> None:
        """Figures and table of a sweep; an error is shown in its own words."""
        self.made, self.message.value = made, ""
        try:
            frame = made.frame.sort_values("reuse", ascending=False, kind="stable").reset_index(drop=True)
            self._frame = frame
            rows = [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]
            self.configs = [{name: row[name] for name in names} for row in rows]
            self._draw()
            columns = [name for name in (*names, *_RESULTS) if name in frame and frame[name].notna().any()]
            shown = frame[columns].head(MOST_ROWS)
            numeric = [at for at, name in enumerate(columns) if pd.api.types.is_numeric_dtype(frame[name])]
            self.table.show(frame_rows(shown), map(str, shown.index), numeric)
            self.run.children = ()
            self.pick.options = [(_label(row, names), at) for at, row in enumerate(rows)]
            self.pick.index = 0
            self._outline()
            trace = self.traces[self.made_on]
            read = trace_call(trace.loaded, trace.name, len(trace))
            self.repeat.value = repeat_panel(sweep_call(made.frame, names, read), "the sweep")
            self.results.layout.display = None
        except Exception as error:  # an error in a thread would otherwise be seen by nobody
            self.message.value = error_panel(error)

    def _draw(self) -> None:
        if self.configs:
            heat, front = sweep_figures(self._frame, list(self.configs[0]), self.theme.name)
            self.heat.show(heat)
            self.front.show(front)

    def _clicked(self, key: str) -> None:
        """Pick what was clicked, the best where a cell stands for several, and open it."""
        rows = [int(label) for label in key.split(",")]
        self.pick.value = min(rows)
        self._outline(rows)
        self.opener.again()

    def _outline(self, rows: Sequence[int] | None = None) -> None:
        """Show the same configurations in all three: the picked one, or all of a clicked cell."""
        chosen = [] if self.pick.value is None else [self.pick.value]
        wanted = {str(row) for row in rows or chosen}
        self.heat.chosen = [spot[0] for spot in self.heat.spots if wanted & set(spot[0].split(","))]
        self.front.chosen = self.table.chosen = sorted(wanted, key=int)

    def _open(self, advance: Advance) -> str:
        """Run the picked configuration with scheduler and time model, and show its tree."""
        if self.pick.value is None:
            raise ValueError("open: nothing is picked; run the sweep first")
        trace, picked = self.traces[self.made_on], self.pick.value
        geometry, settings = settings_of(self.configs[picked])
        cost = _Watched(advance, trace.output_tokens + len(trace))
        run = simulate(trace, geometry, **settings, strict=False, cost=cost)
        tree = tree_explorer(run, theme=self.theme.asked)
        tree.pane.picture.dark = self.heat.dark
        tree.pane.picture.reveal = True
        self.run.children = (tree,)
        return f"{self.pick.options[picked][0]}: {len(run.records):,} steps"

    def _write_report(self, path: str, *, advance: Any = None) -> Path:
        if self.made is None:
            raise ValueError("nothing to report: run the sweep first")
        name, frame = self.made_on, self.made.frame
        settings = [str(column) for column in frame if column not in SWEEP]
        trace = self.traces[name]
        page = sweep_page(frame, settings, name, len(trace), self.made.skipped, loaded=trace.loaded)
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


def _label(row: Mapping[str, Any], names: Sequence[str]) -> str:
    settings = ", ".join(f"{name}={row[name]}" for name in names)
    return f"{row['reuse']:.1%} reused: {settings}" if row["status"] == "ok" else f"failed: {settings}"
