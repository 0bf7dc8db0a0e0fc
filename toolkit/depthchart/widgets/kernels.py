"""The kernel explorer: recorded measurements, or new ones made on this machine in a process of their own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ipywidgets as w
import pandas as pd

from depthchart.charts.kernels import KERNEL_COLUMNS, kernel_chart
from depthchart.charts.layout import require_columns
from depthchart.datafiles import data_path
from depthchart.display import table_html
from depthchart.report import Page, frame_rows
from depthchart.widgets.background import Advance, WorkBar
from depthchart.widgets.clickable import AUTO, Picture, Theme
from depthchart.widgets.panels import error_panel
from depthchart.widgets.reporting import ReportBar

__all__ = ["KernelExplorer", "kernel_explorer"]

RECORDED, LIVE = "recorded", "measured here"
LENGTHS = (256, 512, 1024, 2048, 4096)
WIDTHS = (16, 32, 64, 128)
_FACTS = ("device", "threads", "load", "torch", "command")


def kernel_explorer(table: str | Path | None = None, *, theme: str = AUTO) -> KernelExplorer:
    """Throughput and share of the roofline of the scan kernels against their chunk width.

    ``table`` is a CSV of ``python -m depthchart_kernels.bench`` (default: the bundled one, made on a CPU). New measurements
    need the extra ``kernels``. Raises ValueError where the table cannot be read or lacks columns.
    """
    path = Path(table) if table is not None else data_path("kernels", "cpu.csv")
    try:
        rows = pd.read_csv(path)
    except (OSError, ValueError) as fault:
        raise ValueError(f"table={str(path)!r}: cannot be read: {fault}") from None
    require_columns(rows, KERNEL_COLUMNS, f"table {path.name}")
    return KernelExplorer(rows, theme)


class KernelExplorer(w.VBox):
    """Controls ``source``, ``tokens``, ``ops``; ``measure`` with ``length``, ``rounds``; ``rows`` is what is shown."""

    def __init__(self, recorded: pd.DataFrame, theme: str = AUTO) -> None:
        self.tables = {RECORDED: recorded}
        self.source = w.Dropdown(description="source", options=[RECORDED], layout=w.Layout(width="260px"))
        ops = sorted(recorded["op"].unique())
        self.ops = w.SelectMultiple(description="operators", options=ops, value=ops, rows=len(ops))
        self.tokens = w.Dropdown(description="of tokens", layout=w.Layout(width="180px"))
        self._offer_lengths()
        self.length = w.Dropdown(
            description="tokens", options=LENGTHS, value=512, layout=w.Layout(width="180px")
        )
        self.rounds = w.BoundedIntText(
            description="rounds", value=3, min=2, max=50, layout=w.Layout(width="160px")
        )
        self.measure = WorkBar("Measure here", self._measure, self.length, self.rounds)
        self.picture = Picture(alt="throughput and share of the roofline against chunk width")
        self.theme = Theme(theme, self.picture, self.redraw)
        self.facts, self.table, self.message = w.HTML(), w.HTML(), w.HTML()
        self.report = ReportBar(self._write_report, "out/kernels.html")
        top = w.HBox([self.source, self.tokens, self.ops], layout=w.Layout(flex_flow="row wrap"))
        super().__init__([top, self.measure, self.message, self.facts, self.picture, self.table, self.report])
        self.add_class("depthchart-kernel-explorer")
        for control in (self.source, self.tokens, self.ops):
            control.observe(self._changed, names="value")
        self.redraw()

    @property
    def rows(self) -> pd.DataFrame:
        """The measurements of the chosen source, sequence length and operators."""
        table = self.tables[self.source.value]
        return table[table["op"].isin(self.ops.value) & table["length"].eq(self.tokens.value)]

    def redraw(self) -> None:
        """Show what is chosen; an error is shown in its own words."""
        try:
            rows = self.rows
            self.picture.show(kernel_chart(rows, theme=self.theme.name))
            self.table.value = (
                f'<div style="line-height:1.3">{table_html(_table(rows), numeric=range(2, 8))}</div>'
            )
            self.facts.value = _facts(rows)
            self.message.value = ""
        except Exception as error:  # an error in a callback would otherwise be seen by nobody
            self.message.value = error_panel(error)

    def _changed(self, change: Any) -> None:
        if change["owner"] is self.source:
            self._offer_lengths()
        self.redraw()

    def _offer_lengths(self) -> None:
        """The lengths that the chosen table holds; the longest is shown first."""
        lengths = sorted(self.tables[self.source.value]["length"].unique().tolist())
        self.tokens.options = lengths
        self.tokens.value = lengths[-1] if lengths else None

    def _measure(self, advance: Advance) -> str:
        """Run the kernels' own benchmark; each line that it prints is one case done."""
        ops = list(self.ops.value)
        total = len(ops) * len(WIDTHS) * 2 + 1
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "rows.csv"
            words = ["--op", *ops, "--width", *map(str, WIDTHS), "--length", str(self.length.value)]
            words += ["--rounds", str(self.rounds.value), "--snapshots", "0", "1", "--out", str(out)]
            _run([sys.executable, "-m", "depthchart_kernels.bench", *words], total, advance)
            self.tables[LIVE] = pd.read_csv(out)
        self.source.options = list(self.tables)
        self.source.value = LIVE
        self._offer_lengths()
        self.redraw()
        return f"measured {len(self.tables[LIVE])} cases on this machine"

    def _write_report(self, path: str, *, advance: Any = None) -> Path:
        page = Page("Scan kernels against their chunk width")
        page.section("Throughput and share of the roofline")
        page.figure(
            kernel_chart(self.rows, theme="light"),
            "The fastest round, and down to the median.",
            {"rows": self.rows},
        )
        page.table(_table(self.rows), range(2, 8))
        return page.provenance(dict(_told(self.rows))).write(path, advance=advance)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """The live widget, and its picture for where no kernel or no script runs."""
        bundle: dict[str, Any] = super()._repr_mimebundle_(**kwargs)
        bundle["image/svg+xml"] = bytes(self.picture.value).decode()
        return bundle


def _run(command: Sequence[str], total: int, advance: Advance) -> None:
    """Run to its end, or until ``advance`` raises: then the process is ended too."""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True)
        try:
            assert process.stdout is not None
            advance(0, total)
            for done, _ in enumerate(process.stdout, 1):
                advance(min(done, total), total)
        except BaseException:
            process.kill()
            raise
        finally:
            process.wait()
        if process.returncode:
            said.seek(0)
            last = said.read().strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
            raise ValueError(f"the benchmark failed: {last[0]}")


def _table(rows: pd.DataFrame) -> list[tuple[object, ...]]:
    columns = ["op", "impl", "chunk_width", "length", "snapshots", "best_s", "tokens_per_s", "roofline_share"]
    shown = rows[[name for name in columns if name in rows]]
    return frame_rows(shown.assign(tokens_per_s=shown["tokens_per_s"].round().astype("int64")), 3)


def _told(rows: pd.DataFrame) -> list[tuple[str, str]]:
    return [(name, ", ".join(map(str, rows[name].unique()))) for name in _FACTS if name in rows]


def _facts(rows: pd.DataFrame) -> str:
    return f'<div style="line-height:1.3">{table_html([("made with", ""), *_told(rows)])}</div>'
