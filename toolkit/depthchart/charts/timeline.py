"""What each step did and how full the memory was, against time (seconds)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from depthchart.charts.depths import depth_text
from depthchart.charts.layout import require_columns
from depthchart.charts.style import DEFAULT, Palette, figure, style
from depthchart.columns import STEPS

__all__ = ["schedule_chart"]

BINS = 400  # about two points of width each

Values = npt.NDArray[np.float64]


def schedule_chart(steps: pd.DataFrame, *, title: str | None = None, theme: str = DEFAULT) -> Figure:
    """Four small multiples of a frame of STEPS: prefill tokens, decode rows, KV tokens, state slots.

    Above 400 steps, the steps of an interval are drawn together: the largest prefill step, the range of the decode
    rows, the fullest moment of the pools. Raises ValueError naming missing columns.
    """
    require_columns(steps, STEPS, "steps")
    with style(theme) as c:
        fig = figure(10, 5, theme=theme)
        axes = fig.subplots(4, 1, sharex=True)
        if len(steps):
            time = steps["time_s"].to_numpy(dtype=float)
            end = float(time[-1] + steps["duration_s"].iloc[-1])
            edges, firsts = _intervals(time, end)
            _prefill(axes[0], steps, edges, firsts, c)
            _decode(axes[1], steps, edges, firsts, c)
            _pool(axes[2], steps, "kv_tokens", edges, firsts, c.kv_edge)
            _pool(axes[3], steps, "state_slots", edges, firsts, c.state)
            space = max(end - time[0], 1e-9) * 0.004  # clear of the axis
            axes[3].set_xlim(time[0] - space, end + space)
        names = ("prefill\n(tokens)", "decode\n(rows)", "KV\n(tokens)", "states\n(slots)")
        for ax, name in zip(axes, names, strict=True):
            ax.set(ylabel=name)
            ax.set_ylim(bottom=0)
            ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))
            ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: depth_text(value)))
        axes[3].set_xlabel("time (s)")
        fig.align_ylabels()
        fig.suptitle(title or f"Schedule: {len(steps):,} steps", x=0.01, ha="left")
    return fig


def _intervals(time: Values, end: float) -> tuple[Values, npt.NDArray[np.int64]]:
    """Edges of the intervals in seconds, and the first step of each; a step is an interval while there are few."""
    if len(time) <= BINS:
        return np.append(time, end), np.arange(len(time))
    grid = np.linspace(time[0], end, BINS + 1)
    firsts = np.unique(np.searchsorted(time, grid[:-1]).clip(max=len(time) - 1))
    return np.append(time[firsts], end), firsts


def _column(steps: pd.DataFrame, name: str) -> Values:
    return steps[name].to_numpy(dtype=float)


def _prefill(ax: Axes, steps: pd.DataFrame, edges: Values, firsts: npt.NDArray[np.int64], c: Palette) -> None:
    most = np.maximum.reduceat(_column(steps, "prefill_tokens"), firsts)
    ax.vlines(edges[:-1], 0, most, colors=c.kv_edge, lw=1.2)


def _decode(ax: Axes, steps: pd.DataFrame, edges: Values, firsts: npt.NDArray[np.int64], c: Palette) -> None:
    rows = _column(steps, "decode_rows")
    low, high = np.minimum.reduceat(rows, firsts), np.maximum.reduceat(rows, firsts)
    ax.stairs(high, edges, baseline=low, fill=True, color=c.muted, alpha=0.35, lw=0)
    ax.stairs(high, edges, baseline=None, color=c.ink, lw=0.9)


def _pool(
    ax: Axes, steps: pd.DataFrame, pool: str, edges: Values, firsts: npt.NDArray[np.int64], colour: str
) -> None:
    free = np.minimum.reduceat(_column(steps, f"free_{pool}"), firsts)
    both = np.minimum.reduceat(_column(steps, f"free_{pool}") + _column(steps, f"evictable_{pool}"), firsts)
    ax.stairs(free, edges, fill=True, color=colour, alpha=0.8, lw=0, label="free")
    ax.stairs(both, edges, baseline=free, fill=True, color=colour, alpha=0.35, lw=0, label="evictable")
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
