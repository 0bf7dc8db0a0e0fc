"""What became of the prompts' tokens: reused, found and thrown away, or computed."""

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

__all__ = ["reuse_chart"]

MAX_BARS = 60

Values = npt.NDArray[np.float64]


def reuse_chart(requests: pd.DataFrame, *, title: str | None = None, theme: str = DEFAULT) -> Figure:
    """Stacked prompt tokens per request in order of arrival (means of neighbours above 60), and the lost tokens.

    Requests that have no match yet (<NA>) are left out, and counted in the title. Raises ValueError naming
    missing columns.
    """
    require_columns(requests, ("arrival_s", "prompt_tokens", "reused_tokens", "lost_tokens"), "requests")
    known = requests.dropna(subset=["reused_tokens", "lost_tokens"]).sort_values("arrival_s", kind="stable")
    prompt, reused, lost = (known[f"{k}_tokens"].to_numpy(dtype=float) for k in ("prompt", "reused", "lost"))
    with style(theme) as c:
        fig = figure(10, 4, theme=theme)
        bars, hist = fig.subplots(1, 2, width_ratios=(3, 1))
        _bars(bars, prompt, reused, lost, c)
        _histogram(hist, lost, c)
        gone = len(requests) - len(known)
        heading = title or f"Reuse of {len(known)} requests"
        fig.suptitle(heading + (f" ({gone} without a match yet left out)" if gone else ""), x=0.01, ha="left")
    return fig


def _bars(ax: Axes, prompt: Values, reused: Values, lost: Values, c: Palette) -> None:
    per_bar = max(1, -(-len(prompt) // MAX_BARS))
    starts = np.arange(0, len(prompt), per_bar)
    sizes = np.diff(np.append(starts, len(prompt)))
    base = np.zeros(len(starts))
    parts = (
        ("reused", reused, c.state),
        ("found and thrown away", lost, c.misplaced),
        ("computed", prompt - reused - lost, c.kv),
    )
    for name, values, colour in parts:
        mean = np.add.reduceat(values, starts) / sizes if len(starts) else base
        ax.bar(starts + sizes / 2, mean, sizes * 0.9, bottom=base, color=colour, label=name)
        base = base + mean
    each = "" if per_bar == 1 else f", mean of {per_bar} neighbours"
    ax.set(
        xlabel="request, in order of arrival", ylabel=f"prompt (tokens{each})", xlim=(0, max(1, len(prompt)))
    )
    ax.set_ylim(bottom=0)
    ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: depth_text(value)))
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3)


def _histogram(ax: Axes, lost: Values, c: Palette) -> None:
    some = lost[lost > 0]
    ax.hist(
        some, bins=np.linspace(0, float(some.max()) if len(some) else 1.0, 21).tolist(), color=c.misplaced
    )
    ax.set(xlabel="lost tokens, where any", ylabel="requests", title=f"{len(some)} of {len(lost)} lost some")
    ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    ax.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: depth_text(value)))
