"""Parallel coordinates of a sweep: one line a configuration, through its settings to its result."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pandas as pd
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from depthchart.charts.layout import require_columns
from depthchart.charts.style import DEFAULT, figure, style
from depthchart.charts.sweeps import short_value, words_of

__all__ = ["parallel"]


def parallel(
    frame: pd.DataFrame,
    settings: Sequence[str],
    value: str = "reuse",
    *,
    title: str | None = None,
    theme: str = DEFAULT,
) -> Figure:
    """Settings have their values evenly spaced, in order; the result has a true scale and gives the colour.

    Args:
        frame: rows of a sweep; those that failed are left out.
        settings: columns, left to right.
        value: column of results, at the right.
        title: above the figure.
        theme: "light" or "dark".
    """
    require_columns(frame, (*settings, value), "frame")
    good = (frame[frame["status"] == "ok"] if "status" in frame else frame).dropna(subset=[value])
    if good.empty:
        raise ValueError("frame: no row that worked, so there is nothing to draw")
    numbers = good[value].astype(float)
    low, high = float(numbers.min()), float(numbers.max())
    heights = {name: _places(good[name]) for name in settings}
    scaled = [(number - low) / (high - low) if high > low else 0.5 for number in numbers]
    with style(theme) as c:
        fig = figure(max(7.0, 2.0 * (len(settings) + 1)), 4.6, theme=theme, layout="constrained")
        ax = fig.subplots()
        shades = LinearSegmentedColormap.from_list("depthchart", [c.grid, c.kv_edge, c.state])
        order = sorted(range(len(good)), key=scaled.__getitem__)  # the best on top
        for row in order:
            line = [heights[name][good[name].iloc[row]] for name in settings]
            ax.plot([*line, scaled[row]], color=shades(scaled[row]), lw=1.6, alpha=0.85)
        for at, name in enumerate(settings):
            ax.axvline(at, color=c.muted, lw=0.8)
            for setting, height in heights[name].items():
                ax.annotate(
                    short_value(setting),
                    (at, height),
                    (4, 2),
                    textcoords="offset points",
                    size=8,
                    color=c.ink,
                )
        ax.axvline(len(settings), color=c.muted, lw=0.8)
        for height, number in ((0.0, low), (1.0, high)) if high > low else ((0.5, low),):
            text = f"{number:.0%}" if value == "reuse" else f"{number:.3g}"
            ax.annotate(
                text, (len(settings), height), (4, 2), textcoords="offset points", size=8, color=c.ink
            )
        ax.set_xticks(range(len(settings) + 1), [words_of(name) for name in (*settings, value)])
        ax.set(ylim=(-0.06, 1.1), xlim=(-0.1, len(settings) + 0.35))
        ax.set_yticks([])
        ax.grid(visible=False)
        for side in ax.spines.values():
            side.set_visible(False)
        if title:
            ax.set_title(title)
    return fig


def _places(column: pd.Series) -> dict[object, float]:
    """Height of each setting in [0, 1]: ascending where they can be ordered, else as they come."""
    values = list(dict.fromkeys(column))
    with suppress(TypeError):
        values.sort()
    last = len(values) - 1
    return {value: at / last if last else 0.5 for at, value in enumerate(values)}
