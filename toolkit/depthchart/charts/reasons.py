"""Figure of an explanation: where the prompt tokens went, and what was found and thrown away."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from depthchart.charts.layout import require_columns
from depthchart.charts.style import DEFAULT, Palette, figure, style

__all__ = ["reasons_chart"]


def reasons_chart(
    frame: pd.DataFrame, reasons: Mapping[str, str], *, title: str | None = None, theme: str = DEFAULT
) -> Figure:
    """Left: prompt tokens by what became of them. Right: requests by the gap H - C between KV match and reuse.

    Args:
        frame: one row a request: ``prompt_tokens``, ``kv_tokens``, ``reused_tokens`` and a column for each reason.
        reasons: column -> words.
        title: above the figure.
        theme: "light" or "dark".
    """
    require_columns(frame, ("prompt_tokens", "kv_tokens", "reused_tokens", *reasons), "frame")
    if frame.empty:
        raise ValueError("frame: has no request, so there is nothing to draw")
    with style(theme) as c:
        fig = figure(11.5, 4.6, theme=theme, layout="constrained")
        left, right = fig.subplots(1, 2, width_ratios=(3, 2))
        _bars(left, frame, reasons, c)
        _gaps(right, frame["kv_tokens"] - frame["reused_tokens"], c)
        if title:
            fig.suptitle(title)
    return fig


def _bars(ax: Axes, frame: pd.DataFrame, reasons: Mapping[str, str], c: Palette) -> None:
    sums = {"reused": int(frame["reused_tokens"].sum())}
    sums |= {words: int(frame[name].sum()) for name, words in reasons.items() if frame[name].sum()}
    total = max(int(frame["prompt_tokens"].sum()), 1)
    colours = [c.state, *([c.misplaced] * (len(sums) - 1))]
    places = np.arange(len(sums))[::-1]
    shares = [tokens / total for tokens in sums.values()]
    for at, (words, share) in enumerate(zip(sums, shares, strict=True)):
        colour = c.tombstone if words == reasons.get("never_seen") else colours[at]
        ax.barh(places[at], share, color=colour, height=0.7)
        ax.annotate(
            f"{share:.1%}",
            (share, places[at]),
            (4, 0),
            textcoords="offset points",
            va="center",
            size=8,
            color=c.ink,
        )
    ax.set_yticks(places, [_two_lines(words) for words in sums], size=8)
    ax.set(xlabel="share of all prompt tokens", xlim=(0, max(shares) * 1.18))
    ax.xaxis.set_major_formatter(lambda number, _: f"{number:.0%}")
    ax.grid(visible=False, axis="y")


def _gaps(ax: Axes, gaps: pd.Series, c: Palette) -> None:
    """A first bar for no gap at all, then powers of two."""
    top = max(int(gaps.max()), 1)
    edges = [0, *(2**power for power in range(int(np.log2(top)) + 2))]
    first = next(
        (at for at, edge in enumerate(edges) if edge and (gaps[gaps > 0] < edge).any()), len(edges) - 1
    )
    edges = [0, *edges[max(first - 1, 1) :]]
    counts = np.histogram(gaps, bins=edges)[0]
    names = ["none", *(f"{low:,}-" for low in edges[1:-1])]
    ax.bar(range(len(counts)), counts, color=[c.state, *([c.misplaced] * (len(counts) - 1))], width=0.85)
    ax.set_xticks(range(len(counts)), names, rotation=55, ha="right", size=8)
    ax.set(xlabel="found and thrown away, H - C (tokens, from)", ylabel="requests")
    ax.grid(visible=False, axis="x")


def _two_lines(words: str) -> str:
    return words.replace(": ", ":\n", 1)
