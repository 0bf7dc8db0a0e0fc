"""What a simulation costs against the length of its trace: CPU seconds, and the largest resident memory."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from depthchart.charts.layout import require_columns
from depthchart.charts.style import figure, style

__all__ = ["GROWTH_COLUMNS", "growth_chart"]

GROWTH_COLUMNS = ("requests", "cpu_s", "peak_mib")


def growth_chart(rows: pd.DataFrame, *, title: str | None = None, theme: str = "light") -> Figure:
    """Two panels over the number of requests (log): CPU seconds (log) with the line that is straight through the last
    point, and peak memory (MiB, from 0). ``rows`` is a table of ``benchmarks/bench_simulate.py growth``.

    Raises ValueError for missing columns.
    """
    require_columns(rows, GROWTH_COLUMNS, "rows")
    shown = rows.sort_values("requests")
    with style(theme) as c:
        fig = figure(10, 3.6, theme=theme)
        seconds, memory = fig.subplots(1, 2)
        count, last = shown["requests"], shown.iloc[-1]
        ideal = count * last["cpu_s"] / last["requests"]
        seconds.loglog(count, ideal, color=c.muted, lw=1, ls="--", label="in proportion to the last point")
        seconds.loglog(count, shown["cpu_s"], color=c.kv_edge, marker="o", ms=5, label="measured")
        seconds.set(xlabel="requests", ylabel="CPU time (s)")
        seconds.legend(loc="upper left")
        memory.semilogx(count, shown["peak_mib"], color=c.state, marker="o", ms=5)
        memory.set(
            xlabel="requests",
            ylabel="largest resident memory (MiB)",
            ylim=(0, 1.25 * shown["peak_mib"].max()),
        )
        fig.suptitle(
            title or f"A stream of up to {int(last['requests']):,} requests", x=0.01, ha="left", color=c.ink
        )
    return fig
