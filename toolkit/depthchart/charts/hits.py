"""How much of each prompt was in the cache: what its KV alone would have given, what was reused, and what was lost."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from depthchart.charts.depths import depth_text
from depthchart.charts.layout import require_columns
from depthchart.charts.style import DEFAULT, figure, style

__all__ = ["hit_chart"]

BINS = 30

Values = npt.NDArray[np.float64]


def hit_chart(requests: pd.DataFrame, *, title: str | None = None, theme: str = DEFAULT) -> Figure:
    """Histograms over a run's requests (columns.REQUESTS), side by side on one scale, in tokens: H, the prefix whose KV
    was in the tree; C, the part of it that was reused since a state lay at its end; and H − C.

    Requests for which a value is 0 are counted above their panel instead of drawn; those without a match yet (<NA>)
    are left out. Raises ValueError naming missing columns.
    """
    parts = ("kv_hit_tokens", "reused_tokens", "lost_tokens")
    require_columns(requests, parts, "requests")
    known = requests.dropna(subset=list(parts))
    values = [known[name].to_numpy(dtype=float) for name in parts]
    most = max((float(column.max()) for column in values if len(column)), default=0.0)
    edges = np.linspace(0.0, max(1.0, most), BINS + 1)
    with style(theme) as c:
        fig = figure(10, 3, theme=theme)
        axes = fig.subplots(1, 3, sharex=True, sharey=True)
        names = ("H: its KV was in the tree", "C: reused, a state lay there", "H − C: found and thrown away")
        for ax, column, name, colour in zip(
            axes, values, names, (c.kv_edge, c.state, c.misplaced), strict=True
        ):
            _histogram(ax, column, edges, colour)
            ax.set_title(f"{name}\n{_told(column)}")
        axes[0].set_ylabel("requests")
        fig.suptitle(title or f"Hits of {len(known):,} requests", x=0.01, ha="left")
    return fig


def _histogram(ax: Axes, column: Values, edges: Values, colour: str) -> None:
    ax.hist(column[column > 0], bins=edges.tolist(), color=colour)
    ax.set_xlabel("tokens of a prompt")
    ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: depth_text(value)))


def _told(column: Values) -> str:
    if not len(column):
        return "no request"
    some = column[column > 0]
    middle = f"; median of the others {np.median(some):,.0f}" if len(some) else ""
    return f"0 in {len(column) - len(some):,} of {len(column):,}{middle}"
