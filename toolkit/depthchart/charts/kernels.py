"""Measured scan kernels against the chunk width: throughput, and share of what the machine allows."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator, PercentFormatter

from depthchart.charts.depths import depth_text
from depthchart.charts.layout import require_columns
from depthchart.charts.style import DEFAULT, figure, style, theme_name

__all__ = ["KERNEL_COLUMNS", "kernel_chart"]

KERNEL_COLUMNS = (
    "op", "impl", "chunk_width", "length", "batch", "dtype", "snapshots", "median_s", "tokens_per_s", "roofline_share",
)  # fmt: skip
_OPS = ("gated_delta", "kda", "ssd")  # each keeps its colour and mark, whatever else is shown
_COLOURS = {
    "light": ("#0072B2", "#D55E00", "#009E73", "#CC79A7"),
    "dark": ("#56B4E9", "#ff8a3d", "#2fcf9f", "#ef8fc8"),
}
_LINES = ("-", "--", ":", "-.")
_MARKS = ("o", "s", "D", "^", "v")


def kernel_chart(rows: pd.DataFrame, *, title: str | None = None, theme: str = DEFAULT) -> Figure:
    """Throughput (tokens/s) and share of the roofline against the chunk width (tokens).

    ``rows`` is a table of ``depthchart_kernels.bench``, one row a case: the fastest round is the mark, the thin line below
    it reaches down to the median. Operators have colours and marks, numbers of snapshots have line styles; the
    token-by-token reference has no chunk and is left out, and so are other packages. Raises ValueError naming
    missing columns.
    """
    require_columns(rows, KERNEL_COLUMNS, "rows")
    shown = rows[rows["impl"].isin(("chunked", "triton"))].sort_values("chunk_width")
    with style(theme) as c:
        fig = figure(10, 4, theme=theme)
        speed, share = fig.subplots(1, 2)
        colours = _COLOURS[theme_name(theme)]
        styles = dict(zip(sorted(shown["snapshots"].unique()), _LINES, strict=False))
        for op, cases in shown.groupby("op", sort=True):
            at = _OPS.index(op) if op in _OPS else len(_OPS)
            how = {"color": colours[at % len(colours)], "marker": _MARKS[at % len(_MARKS)], "ms": 5}
            for count, line in styles.items():
                some = cases[cases["snapshots"].eq(count)]
                label = f"{op}, {count} snapshot{'' if count == 1 else 's'}"
                _line(speed, some, "tokens_per_s", {**how, "ls": line, "label": label})
                _line(share, some, "roofline_share", {**how, "ls": line})
                median = some["length"] * some["batch"] / some["median_s"]
                speed.vlines(some["chunk_width"], median, some["tokens_per_s"], color=how["color"], lw=0.8)
        _axes(speed, share, sorted(shown["chunk_width"].unique()))
        if len(shown):
            speed.legend(loc="upper left", bbox_to_anchor=(0, -0.16), ncols=3, handlelength=3.2)
        fig.suptitle(title or _title(shown), x=0.01, ha="left", color=c.ink)
    return fig


def _line(ax: Axes, cases: pd.DataFrame, column: str, how: dict[str, Any]) -> None:
    if len(cases):
        ax.plot(cases["chunk_width"].to_numpy(), cases[column].to_numpy(), **how)


def _axes(speed: Axes, share: Axes, widths: list[int]) -> None:
    for ax in (speed, share):
        ax.set_xscale("log", base=2)
        ax.set_xticks(widths, [str(width) for width in widths])
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_xlabel("chunk width (tokens)")
        ax.set_ylim(0, ax.dataLim.y1 * 1.08 if ax.lines else 1)
    speed.set_ylabel("throughput (tokens/s)")
    speed.yaxis.set_major_formatter(FuncFormatter(lambda value, _: depth_text(value)))
    share.set_ylabel("share of the roofline")
    share.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _title(rows: pd.DataFrame) -> str:
    if not len(rows):
        return "No chunked kernels in this table"
    shapes = sorted(
        {
            f"{b}×{n:,} tokens {d}"
            for b, n, d in zip(rows["batch"], rows["length"], rows["dtype"], strict=True)
        }
    )
    return f"Scans of {', '.join(shapes[:3])}"
