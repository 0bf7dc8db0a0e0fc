"""The geometry explorer: page, DCP and chunk size and a depth rule, and what they do to one text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import ipywidgets as w

from depthchart.cases.one_path import OnePath, one_path
from depthchart.charts.checkpoint import checkpoint_chart
from depthchart.charts.style import to_svg
from depthchart.depth import RULES
from depthchart.errors import DepthchartError
from depthchart.geometry import Geometry
from depthchart.report.cases import path_page
from depthchart.widgets.panels import advice_panel, decision_panel, error_panel, grid_line, verdict_panel
from depthchart.widgets.reporting import ReportBar

__all__ = ["GeometryExplorer", "geometry_explorer"]

PAGES = (
    1,
    16,
    32,
    64,
    128,
    256,
    528,
    1024,
)  # 528: what vLLM chose for a model whose states are large (vllm#40696)
DCP_SIZES = (1, 2, 3, 4, 8, 16)
CHUNKS = (16, 32, 64, 128, 256)


def geometry_explorer(
    page_size: int = 64,
    dcp_size: int = 8,
    chunk_width: int = 64,
    rule: str = "prefix_relative",
    *,
    pages: Sequence[int] = PAGES,
    dcp_sizes: Sequence[int] = DCP_SIZES,
    chunks: Sequence[int] = CHUNKS,
) -> GeometryExplorer:
    """Three sliders and a rule: where the checkpoints of one text land, and what the next request reuses.

    ``pages``, ``dcp_sizes`` and ``chunks`` are what the sliders offer, beside the first values. Sizes are in tokens,
    ``dcp_size`` counts ranks. Raises ValueError for values that are not positive, KeyError for an unknown rule.
    """
    return GeometryExplorer((page_size, dcp_size, chunk_width, rule), (pages, dcp_sizes, chunks))


class GeometryExplorer(w.VBox):
    """Controls ``page``, ``dcp``, ``chunk`` and ``rule``; every change redraws once.

    ``path`` is what is shown (None where the choice is illegal), ``redraw_ms`` how long the last redraw took
    by the clock.
    """

    def __init__(
        self, start: tuple[int, int, int, str], offered: tuple[Sequence[int], Sequence[int], Sequence[int]]
    ) -> None:
        page, dcp, chunk, rule = start
        RULES[rule]
        self.page = _slider(
            "page size", page, offered[0], "scheduler page, in tokens; prefill cuts land on it"
        )
        self.dcp = _slider("DCP size", dcp, offered[1], "ranks that share each sequence's KV")
        self.chunk = _slider("chunk width", chunk, offered[2], "tokens per chunk of the scan kernel")
        self.rule = w.Dropdown(
            description="rule", options=list(RULES), value=rule, layout=w.Layout(width="340px")
        )
        self.picture = w.Image(
            format="svg+xml", layout=w.Layout(width="100%", max_width="960px", object_fit="contain")
        )
        self.message = w.HTML()
        self.grids, self.verdict, self.decisions, self.advice = (w.HTML() for _ in range(4))
        self.timing = w.HTML()
        self.path: OnePath | None = None
        self.redraw_ms = 0.0
        self.report = ReportBar(self._write_report, "out/geometry.html")
        parts = [self.grids, self.picture, self.verdict, self.decisions, self.advice, self.report]
        self._result = w.VBox(parts)
        left, right = w.VBox([self.page, self.dcp, self.chunk]), w.VBox([self.rule, self.timing])
        super().__init__([w.HBox([left, right]), self.message, self._result])
        self.add_class("depthchart-geometry-explorer")
        for control in self.controls:
            control.observe(self._changed, names="value")
        self.redraw()

    @property
    def controls(self) -> tuple[Any, ...]:
        """The widgets that a user moves."""
        return self.page, self.dcp, self.chunk, self.rule

    def redraw(self) -> None:
        """Run the text under what is chosen and show it; an illegal choice shows the error's words."""
        start, busy = perf_counter(), process_time()
        try:
            geometry = Geometry(self.page.value, self.dcp.value, self.chunk.value)
            self.path = one_path(geometry, self.rule.value)
        except (ValueError, DepthchartError) as error:
            self.path = None
            self.message.value = error_panel(error)
        else:
            self.message.value = ""
            self._show(self.path)
        self._result.layout.display = None if self.path is not None else "none"
        self.redraw_ms = (perf_counter() - start) * 1000
        spent = f"{(process_time() - busy) * 1000:.0f} ms of one processor's time"
        self.timing.value = (
            f'<span style="opacity:0.7" title="{spent}">drawn in {self.redraw_ms:.0f} ms</span>'
        )

    def _changed(self, change: object) -> None:
        self.redraw()

    def _show(self, path: OnePath) -> None:
        title = f"Where checkpoints land under {path.rule}: a prompt of {path.prompt:,} tokens, twice"
        figure = checkpoint_chart(path.nodes, path.checkpoints, path.geometry, title=title)
        self.picture.value = to_svg(figure).encode()
        self.grids.value = grid_line(path.geometry, path.rule)
        self.verdict.value = verdict_panel(path.verdict, path.faults)
        self.decisions.value = decision_panel(path)
        self.advice.value = advice_panel(path.geometry.advice(path.rule))

    def _write_report(self, path: str, *, advance: Any = None) -> Path:
        if self.path is None:
            raise ValueError("nothing is shown: choose sizes that are legal first")
        return path_page(self.path).write(path, advance=advance)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """The live widget, and its picture for where no kernel or no script runs."""
        bundle: dict[str, Any] = super()._repr_mimebundle_(**kwargs)
        if self.path is not None:
            bundle["image/svg+xml"] = bytes(self.picture.value).decode()
        return bundle


def _slider(name: str, value: int, offered: Sequence[int], tip: str) -> Any:
    """A slider over the offered sizes; it reports where it is let go, since a picture takes longer than a pixel."""
    return w.SelectionSlider(
        description=name,
        options=sorted({*offered, value}),
        value=value,
        continuous_update=False,
        tooltip=tip,
        style={"description_width": "90px"},
        layout=w.Layout(width="420px"),
    )
