"""Several runs of one trace side by side: how many prompt tokens each has reused as time goes on."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from depthchart.charts.layout import require_columns
from depthchart.charts.style import figure, style

__all__ = ["compare_chart"]

_LINES = ("-", "--", "-.", ":")


def compare_chart(
    runs: Mapping[str, pd.DataFrame],
    stopped_s: Mapping[str, float] | None = None,
    *,
    title: str | None = None,
    theme: str = "light",
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
            time = known["admitted_s"].to_numpy(dtype=float)
            for ax, column in zip(axes, ("reused_tokens", "lost_tokens"), strict=True):
                total = known[column].to_numpy(dtype=float).cumsum() / 1e6
                ax.step(time, total, where="post", color=colour, ls=line, label=label)
                if label in stopped and len(total):
                    ax.plot(
                        [stopped[label]], [total[-1]], "X", color=colour, ms=9, mec=c.paper, clip_on=False
                    )
                    ax.annotate(
                        "stopped",
                        (stopped[label], total[-1]),
                        (8, -12),
                        textcoords="offset points",
                        color=colour,
                        size=8,
                    )
        axes[0].set(ylabel="reused (million tokens, cumulative)")
        axes[1].set(ylabel="found and thrown away\n(million tokens, cumulative)")
        for ax in axes:
            ax.set_xlabel("time of admission (s)")
            ax.set_ylim(bottom=0)
        handles, labels = axes[0].get_legend_handles_labels()
        fig.legend(handles, labels, loc="outside upper center", ncols=len(runs))
        if title:
            fig.suptitle(title)
    return fig
