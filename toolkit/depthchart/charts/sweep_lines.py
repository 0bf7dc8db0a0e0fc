"""Lines of a sweep as small multiples: a result against one setting, a line for another, a panel for a third."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from depthchart.charts.layout import require_columns
from depthchart.charts.style import DEFAULT, Palette, figure, style
from depthchart.charts.sweeps import short_value, words_of

__all__ = ["MOST_LINES", "sweep_lines"]

_LOOKS = (("-", "o"), ("--", "s"), ("-.", "^"), (":", "D"), ((0, (5, 1)), "v"), ((0, (1, 1)), "P"))
MOST_LINES = len(_LOOKS)


def sweep_lines(
    frame: pd.DataFrame,
    x: str,
    value: str = "reuse",
    *,
    group: str | None = None,
    panels: str | None = None,
    title: str | None = None,
    theme: str = DEFAULT,
) -> Figure:
    """``value`` against ``x``: the mean of the rows that share a place, and from the least to the most of them as a band.

    Args:
        frame: rows of a sweep; those that failed are left out.
        x: setting along the horizontal axis; its values are evenly spaced.
        value: column of results; a share is shown in percent.
        group: setting that the lines tell apart, at most six values.
        panels: setting that the panels tell apart, all on one scale; None draws one.
        title: above the figure.
        theme: "light" or "dark".

    Raises ValueError where a column is missing, no row worked, or there are more lines than can be told apart.
    """
    require_columns(frame, tuple(filter(None, (x, value, group, panels))), "frame")
    good = (frame[frame["status"] == "ok"] if "status" in frame else frame).dropna(subset=[x, value])
    if good.empty:
        raise ValueError("frame: no row that worked, so there is nothing to draw")
    names = list(dict.fromkeys(good[panels])) if panels else [None]
    lines = list(dict.fromkeys(good[group])) if group else [None]
    if len(lines) > MOST_LINES:
        raise ValueError(
            f"group={group!r}: has {len(lines)} values; at most {MOST_LINES} lines can be told apart"
        )
    steps = sorted(good[x].unique())
    with style(theme) as c:
        columns = min(len(names), 3)
        rows = -(-len(names) // columns)
        size = min(13.0, (4.6 if columns > 1 else 8.0) * columns), 2.6 * rows + 0.7
        fig = figure(*size, theme=theme, layout="constrained")
        grid = fig.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for at, (ax, name) in enumerate(zip(grid.flat, names, strict=False)):
            part = good if name is None else good[good[panels] == name]
            _panel(ax, part, (x, value, group), lines, steps, c)
            ax.set_title("" if name is None else f"{words_of(str(panels))} {short_value(name)}")
            below = at + columns >= len(names)
            ax.set(xlabel=words_of(x) if below else "", ylabel=words_of(value) if at % columns == 0 else "")
            ax.tick_params(labelbottom=below)
        for ax in list(grid.flat)[len(names) :]:
            ax.set_axis_off()
        if group:
            handles, labels = grid[0, 0].get_legend_handles_labels()
            fig.legend(
                handles,
                labels,
                loc="outside lower left",
                ncols=MOST_LINES,
                title=words_of(group),
                title_fontsize=8,
            )
        if title:
            fig.suptitle(title, x=0.01, ha="left")
    return fig


def _panel(
    ax: Axes,
    part: pd.DataFrame,
    columns: tuple[str, str, str | None],
    lines: list[object],
    steps: list[object],
    c: Palette,
) -> None:
    x, value, group = columns
    colours = (c.state, c.misplaced, c.locked, c.refused, c.kv_edge, c.tombstone)
    place = {step: at for at, step in enumerate(steps)}
    for name, colour, (line, marker) in zip(lines, colours, _LOOKS, strict=False):
        own = part if name is None else part[part[group] == name]
        found = own.assign(**{value: own[value].astype(float)}).groupby(x)[value].agg(["mean", "min", "max"])
        at = [place[step] for step in found.index]
        label = "_" if name is None else short_value(name)
        ax.plot(at, found["mean"], ls=line, marker=marker, ms=4.5, color=colour, label=label)
        if (found["max"] > found["min"]).any():
            ax.fill_between(at, found["min"], found["max"], color=colour, alpha=0.12, lw=0)
    ax.set_xticks(range(len(steps)), [short_value(step) for step in steps])
    ax.set_xlim(-0.15, len(steps) - 0.85)
    ax.set_ylim(bottom=0)
    ax.grid(visible=True, axis="y")
    if value == "reuse":
        ax.yaxis.set_major_formatter(lambda number, _: f"{number:.0%}")
