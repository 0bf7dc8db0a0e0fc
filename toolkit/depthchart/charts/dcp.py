"""What DCP ranks save and cost: KV bytes a rank, bytes exchanged a token, tokens reused under the widened page."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from depthchart.charts.layout import require_columns
from depthchart.charts.style import DEFAULT, figure, style
from depthchart.columns import DCP

__all__ = ["dcp_chart"]


def dcp_chart(frame: pd.DataFrame, *, title: str | None = None, theme: str = DEFAULT) -> Figure:
    """Three panels of bars, one bar for each DCP size (a frame of columns.DCP).

    Raises ValueError for missing columns.
    """
    require_columns(frame, DCP, "frame")
    with style(theme) as c:
        fig = figure(10, 3.4, theme=theme)
        panels = fig.subplots(1, 3)
        kib = frame["rank_kv_bytes"] / 1024, frame["sent_bytes_per_token"] / 1024
        _bars(panels[0], frame, kib[0], c.kv_edge, "KV in use on one rank (KiB, peak)", "{:,.0f}")
        _bars(panels[1], frame, kib[1], c.locked, "sent by a rank (KiB a decoded token)", "{:,.2f}")
        _bars(panels[2], frame, frame["reused_tokens"], c.state, "prompt tokens reused", "{:,.0f}")
        for ax in panels[:2]:
            ax.set_xlabel("DCP ranks")
        panels[2].set_xlabel("DCP ranks (tree page, tokens)")
        pages = [
            f"{size}\n({page:,})"
            for size, page in zip(frame["dcp_size"], frame["tree_page_tokens"], strict=True)
        ]
        panels[2].set_xticks(range(len(frame)), pages)
        if title:
            fig.suptitle(title, x=0.01, ha="left")
    return fig


def _bars(ax: Axes, frame: pd.DataFrame, values: pd.Series, colour: str, label: str, form: str) -> None:
    drawn = ax.bar(range(len(frame)), values.tolist(), width=0.6, color=colour)
    ax.bar_label(drawn, [form.format(value) for value in values], size=8, padding=2)
    ax.set_xticks(range(len(frame)), [str(size) for size in frame["dcp_size"]])
    ax.set_title(label, size=9, loc="left")
    ax.margins(y=0.15)
