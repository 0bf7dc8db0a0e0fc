"""The geometry explorer: page, DCP and chunk size and a depth rule, and what they do to one text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import ipywidgets as w

from depthchart.cases.one_path import OnePath, one_path
from depthchart.charts.checkpoint import checkpoint_chart
from depthchart.depth import RULES
from depthchart.errors import DepthchartError
from depthchart.geometry import Geometry
from depthchart.report.cases import path_call, path_page
from depthchart.widgets.clickable import AUTO, Picture, Theme
from depthchart.widgets.panels import (
    advice_panel,
    decision_panel,
    error_panel,
    grid_line,
    repeat_panel,
    verdict_panel,
)
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
INDEX_POOLS = (1, 2, 4, 8)
PREFILL_SIZES = (256, 512, 1024, 2048, 4096, 8192, 16_384)


def geometry_explorer(
    page_size: int = 64,
    dcp_size: int = 8,
    chunk_width: int = 64,
    rule: str = "prefix_relative",
    *,
    index_pool: int = 1,
    chunked_prefill_size: int = 8192,
    pages: Sequence[int] = PAGES,
    dcp_sizes: Sequence[int] = DCP_SIZES,
    chunks: Sequence[int] = CHUNKS,
    theme: str = AUTO,
) -> GeometryExplorer:
    """Sliders for the grids, drop-downs for the rest: where the checkpoints of one text land, and what the next
    request reuses.

    ``pages``, ``dcp_sizes`` and ``chunks`` are what the sliders offer, beside the first values. Sizes are in tokens,
    ``dcp_size`` counts ranks; ``theme`` is "light", "dark" or "auto" (as the page is). Raises ValueError for values
    that are not positive, KeyError for an unknown rule.
    """
    start = {
        "page_size": page_size,
        "dcp_size": dcp_size,
        "chunk_width": chunk_width,
        "index_pool": index_pool,
        "chunked_prefill_size": chunked_prefill_size,
    }
    offered = {"page_size": pages, "dcp_size": dcp_sizes, "chunk_width": chunks}
    return GeometryExplorer(start, rule, offered, theme)


class GeometryExplorer(w.VBox):
    """Controls ``page``, ``dcp``, ``chunk``, ``rule``, ``pool`` and ``prefill``; every change redraws once.

    ``path`` is what is shown (None where the choice is illegal), ``redraw_ms`` how long the last redraw took
    by the clock.
    """

    def __init__(
        self, start: Mapping[str, int], rule: str, offered: Mapping[str, Sequence[int]], theme: str = AUTO
    ) -> None:
        RULES[rule]
        self.page = _slider(
            "page size", "page_size", start, offered, "scheduler page, in tokens; prefill cuts land on it"
        )
        self.dcp = _slider("DCP size", "dcp_size", start, offered, "ranks that share each sequence's KV")
        self.chunk = _slider(
            "chunk width", "chunk_width", start, offered, "tokens per chunk of the scan kernel"
        )
        self.rule = _drop_down("rule", list(RULES), rule, "which depths get a checkpoint")
        self.pool = _drop_down(
            "index pool",
            sorted({*INDEX_POOLS, start["index_pool"]}),
            start["index_pool"],
            "factor that a sparse-attention index puts on the tree page",
        )
        self.prefill = _drop_down(
            "prefill size",
            sorted({*PREFILL_SIZES, start["chunked_prefill_size"]}),
            start["chunked_prefill_size"],
            "tokens that one prefill step may take",
        )
        self.picture = Picture(alt="where the checkpoints of two requests with one text land")
        self.theme = Theme(theme, self.picture, self.redraw)
        self.message = w.HTML()
        self.grids, self.verdict, self.decisions, self.advice, self.repeat = (w.HTML() for _ in range(5))
        self.timing = w.HTML()
        self.path: OnePath | None = None
        self.redraw_ms = 0.0
        self.report = ReportBar(self._write_report, "out/geometry.html")
        parts = [
            self.grids,
            self.picture,
            self.verdict,
            self.decisions,
            self.advice,
            self.repeat,
            self.report,
        ]
        self._result = w.VBox(parts)
        left = w.VBox([self.page, self.dcp, self.chunk])
        right = w.VBox([self.rule, self.pool, self.prefill, self.timing])
        rows = w.HBox([left, right], layout=w.Layout(flex_flow="row wrap"))
        super().__init__([rows, self.message, self._result])
        self.add_class("depthchart-geometry-explorer")
        for control in self.controls:
            control.observe(self._changed, names="value")
        self.redraw()

    @property
    def controls(self) -> tuple[Any, ...]:
        """The widgets that a user moves."""
        return self.page, self.dcp, self.chunk, self.rule, self.pool, self.prefill

    def redraw(self) -> None:
        """Run the text under what is chosen and show it; an illegal choice shows the error's words."""
        start, busy = perf_counter(), process_time()
        try:
            geometry = Geometry(
                self.page.value,
                self.dcp.value,
                self.chunk.value,
                index_pool=self.pool.value,
                chunked_prefill_size=self.prefill.value,
            )
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
        figure = checkpoint_chart(
            path.nodes, path.checkpoints, path.geometry, title=title, theme=self.theme.name
        )
        self.picture.show(figure, clickable=False)  # a node of one text has no history beyond the table below
        self.grids.value = grid_line(path.geometry, path.rule)
        self.verdict.value = verdict_panel(path.verdict, path.faults)
        self.decisions.value = decision_panel(path)
        self.advice.value = advice_panel(path.geometry.advice(path.rule))
        self.repeat.value = repeat_panel(path_call(path))

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


def _slider(
    name: str, field: str, start: Mapping[str, int], offered: Mapping[str, Sequence[int]], tip: str
) -> Any:
    """A slider over the offered sizes; it reports where it is let go, since a picture takes longer than a pixel."""
    return w.SelectionSlider(
        description=name,
        options=sorted({*offered[field], start[field]}),
        value=start[field],
        continuous_update=False,
        tooltip=tip,
        style={"description_width": "90px"},
        layout=w.Layout(width="420px", max_width="98%"),
    )


def _drop_down(name: str, options: Sequence[Any], value: Any, tip: str) -> Any:
    return w.Dropdown(
        description=name,
        options=options,
        value=value,
        tooltip=tip,
        style={"description_width": "90px"},
        layout=w.Layout(width="340px", max_width="98%"),
    )
