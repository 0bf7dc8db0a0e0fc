"""What each step did and how full the memory was, against time (seconds)."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from depthchart.charts.layout import require_columns
from depthchart.charts.style import figure, style
from depthchart.columns import STEPS

__all__ = ["schedule_chart"]

MAX_VECTOR_STEPS = 2000  # beyond, an SVG holds the data as a bitmap: megabytes of vectors help nobody


def schedule_chart(steps: pd.DataFrame, *, title: str | None = None, theme: str = "light") -> Figure:
    """Four small multiples of a frame of STEPS: prefill tokens, decode rows, KV tokens, state slots."""
    require_columns(steps, STEPS, "steps")
    with style(theme) as c:
        fig = figure(10, 5, theme=theme)
        axes = fig.subplots(4, 1, sharex=True)
        time = steps["time_s"].to_numpy(dtype=float)
        bitmap = len(steps) > MAX_VECTOR_STEPS
        axes[0].vlines(time, 0, steps["prefill_tokens"].to_numpy(dtype=float), colors=c.kv_edge, lw=1, rasterized=bitmap)
        axes[0].set_ylabel("prefill\n(tokens)")
        axes[1].step(time, steps["decode_rows"].to_numpy(dtype=float), where="post", color=c.ink, lw=1, rasterized=bitmap)
        axes[1].set_ylabel("decode\n(rows)")
        pools = (("kv_tokens", "KV\n(tokens)", c.kv_edge), ("state_slots", "states\n(slots)", c.state))
        for ax, (pool, name, colour) in zip(axes[2:], pools, strict=True):
            free = steps[f"free_{pool}"].to_numpy(dtype=float)
            both = free + steps[f"evictable_{pool}"].to_numpy(dtype=float)
            ax.fill_between(time, 0, free, step="post", color=colour, alpha=0.8, lw=0, label="free", rasterized=bitmap)
            ax.fill_between(time, free, both, step="post", color=colour, alpha=0.35, lw=0, label="evictable", rasterized=bitmap)
            ax.set_ylabel(name)
            ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
        for ax in axes:
            ax.set_ylim(bottom=0)
        axes[3].set_xlabel("time (s)")
        fig.align_ylabels()
        fig.suptitle(title or f"Schedule: {len(steps):,} steps")
    return fig
