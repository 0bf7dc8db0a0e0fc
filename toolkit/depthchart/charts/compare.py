"""Several runs of one trace side by side: how many prompt tokens each has reused as time goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from depthchart.charts.depths import depth_text
from depthchart.charts.layout import require_columns
from depthchart.charts.style import DEFAULT, figure, style

__all__ = ["MOST_RUNS", "compare_chart"]

_LINES = ("-", "--", "-.", ":")
MOST_RUNS = len(_LINES)


def compare_chart(
    runs: Mapping[str, pd.DataFrame],
    stopped_s: Mapping[str, float] | None = None,
    *,
    title: str | None = None,
    theme: str = DEFAULT,
) -> Figure:
    """Cumulative reused tokens, and tokens found but thrown away, against the time of admission (seconds).

    Args:
        runs: frames of REQUESTS by the label of their line, at most four.
        stopped_s: when a run ended early, by label; marked with a cross.
        title: above the figure.
        theme: "light" or "dark".
    """
    if not 1 <= len(runs) <= len(_LINES):
        raise ValueError(
            f"runs: {len(runs)} of them; must be 1 to {len(_LINES)}, or the lines cannot be told apart"
        )
    stopped = stopped_s or {}
    with style(theme) as c:
        fig = figure(10, 4, theme=theme)
        axes = fig.subplots(1, 2)
        colours = (c.state, c.misplaced, c.locked, c.refused)
        for (label, frame), colour, line in zip(runs.items(), colours, _LINES, strict=False):
            require_columns(frame, ("admitted_s", "reused_tokens", "lost_tokens"), f"runs[{label!r}]")
            known = frame.dropna(subset=["admitted_s", "reused_tokens"]).sort_values(
                "admitted_s", kind="stable"
            )
            for ax, column in zip(axes, ("reused_tokens", "lost_tokens"), strict=True):
                _line(ax, known, column, label, stopped.get(label), {"color": colour, "ls": line})
        axes[0].set(ylabel="reused (tokens, cumulative)")
        axes[1].set(ylabel="found and thrown away\n(tokens, cumulative)")
        for ax in axes:
            ax.set_xlabel("time of admission (s)")
            ax.set_ylim(bottom=0)
            ax.yaxis.set_major_locator(MaxNLocator(6, integer=True))
            ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: depth_text(value)))
        axes[0].legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
        fig.suptitle(title or _title(len(runs)), x=0.01, ha="left")
    return fig


def _line(
    ax: Axes, known: pd.DataFrame, column: str, label: str, stopped_s: float | None, how: dict[str, Any]
) -> None:
    time = known["admitted_s"].to_numpy(dtype=float)
    total = known[column].to_numpy(dtype=float).cumsum()
    ax.step(
        time,
        total,
        where="post",
        label=label if stopped_s is None else f"{label}, stopped at {stopped_s:,.0f} s",
        **how,
    )
    if stopped_s is not None and len(total):
        ax.plot([stopped_s], [total[-1]], "X", color=how["color"], ms=9, mec="none", clip_on=False)


def _title(count: int) -> str:
    return "One run" if count == 1 else f"{count} runs of one trace"
