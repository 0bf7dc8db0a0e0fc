"""Figures of a sweep: a heat map over two axes, and the Pareto front of memory, reuse and waiting time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from depthchart.charts.layout import require_columns
from depthchart.charts.spots import mark_spot
from depthchart.charts.style import DEFAULT, Palette, figure, style, theme_name

__all__ = ["axes_to_draw", "heat_map", "pareto", "pareto_front", "short_value", "value_text", "words_of"]

_ON_DARK, _ON_LIGHT = "#fefefe", "#1d2734"  # of no theme: a cell keeps its colour in every one
MOST_TICKS = 6  # as many settings are told by their own values
_MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")


def heat_map(
    frame: pd.DataFrame,
    x: str,
    y: str,
    value: str = "reuse",
    *,
    panels: str | None = None,
    title: str | None = None,
    theme: str = DEFAULT,
) -> Figure:
    """``value`` over two settings, one panel for each value of ``panels``; the mean where several rows share a cell.

    A cell's spot (``charts.spots``) has the index labels of its rows as key, joined by commas.

    Args:
        frame: rows of a sweep; those that failed are left out.
        x: setting along the horizontal axis.
        y: setting along the vertical axis.
        value: column of results; a share is shown in percent.
        panels: setting that tells the panels apart; None draws one.
        title: above the figure.
        theme: "light" or "dark".
    """
    require_columns(frame, tuple(filter(None, (x, y, value, panels))), "frame")
    good = frame[frame["status"] == "ok"] if "status" in frame else frame
    if good.empty:
        raise ValueError("frame: no row that worked, so there is nothing to draw")
    names = list(dict.fromkeys(good[panels])) if panels else [None]
    values = good[value].astype(float)
    with style(theme) as c:
        columns = min(len(names), 4)
        rows = -(-len(names) // columns)
        cells = good[x].nunique(), good[y].nunique()
        width, height = max(2.6, 0.75 * cells[0] + 1.2), max(1.9, 0.5 * cells[1] + 1.1)
        fig = figure(
            min(14.0, width * columns + 1.4),
            height * rows + (0.6 if title else 0.3),
            theme=theme,
            layout="constrained",
        )
        grid = fig.subplots(rows, columns, squeeze=False)
        shades = LinearSegmentedColormap.from_list(
            "depthchart", [c.paper, c.kv, c.kv_edge, c.locked if theme_name(theme) == "light" else c.state]
        )
        limits = (float(values.min()), float(values.max()))
        image = None
        for ax, name in zip(grid.flat, names, strict=False):
            part = good if name is None else good[good[panels] == name]
            image = _cells(ax, part, x, y, value, shades, limits, c)
            ax.set_title("" if name is None else f"{words_of(str(panels))} {name}", size=10)
        for ax in list(grid.flat)[len(names) :]:
            ax.set_axis_off()
        assert image is not None
        bar = fig.colorbar(image, ax=grid.ravel().tolist(), shrink=0.85)
        bar.set_label(words_of(value))
        if value == "reuse":
            bar.ax.yaxis.set_major_formatter(lambda number, _: f"{number:.0%}")
        for ax in grid[:, 1:].flat:
            ax.set_ylabel("")
        if title:
            fig.suptitle(title, x=0.01, ha="left")
    return fig


def _cells(
    ax: Axes,
    part: pd.DataFrame,
    x: str,
    y: str,
    value: str,
    shades: LinearSegmentedColormap,
    limits: tuple[float, float],
    c: Palette,
) -> AxesImage:
    table = part.assign(**{value: part[value].astype(float)}).pivot_table(
        index=y, columns=x, values=value, aggfunc="mean", sort=True
    )
    low, high = limits
    image = ax.imshow(
        table.to_numpy(),
        cmap=shades,
        vmin=low,
        vmax=high if high > low else low + 1,
        aspect="auto",
        origin="lower",
    )
    ax.set_xticks(range(len(table.columns)), [short_value(v) for v in table.columns])
    ax.set_yticks(range(len(table.index)), [short_value(v) for v in table.index])
    ax.set(xlabel=words_of(x), ylabel=words_of(y))
    ax.tick_params(length=0)
    ax.grid(visible=False)
    columns: list[Any] = list(table.columns)
    lines: list[Any] = list(table.index)
    for (across, up), own in part.groupby([x, y], sort=False):  # type: ignore[misc]
        column, row = columns.index(across), lines.index(up)
        box = (column - 0.5, row - 0.5, column + 0.5, row + 0.5)
        mark_spot(ax, ",".join(map(str, own.index)), box, _cell_tip(own, x, y, value))
    for (row, column), number in np.ndenumerate(table.to_numpy()):
        if np.isnan(number):
            ax.text(column, row, "illegal", ha="center", va="center", size=7, color=c.muted)
            continue
        share = (number - low) / (high - low) if high > low else 0.0
        dark = sum(w * v for w, v in zip((0.3, 0.59, 0.11), to_rgb(shades(share)), strict=True)) < 0.5
        text = value_text(value, number)
        ax.text(column, row, text, ha="center", va="center", size=8, color=_ON_DARK if dark else _ON_LIGHT)
    return image


def _cell_tip(rows: pd.DataFrame, x: str, y: str, value: str) -> str:
    first, number = rows.iloc[0], float(rows[value].astype(float).mean())
    where = f"{words_of(x)} {short_value(first[x])}, {words_of(y)} {short_value(first[y])}"
    of = f", mean of {len(rows)} configurations" if len(rows) > 1 else ""
    return f"{where}: {value_text(value, number)}{of}"


def pareto(
    frame: pd.DataFrame,
    cost: str,
    value: str = "reuse",
    *,
    group: str | None = None,
    shade: str | None = None,
    title: str | None = None,
    theme: str = DEFAULT,
) -> Figure:
    """Every configuration as a mark at its cost and its value, and the line of those that no other one beats in both.

    A mark's spot (``charts.spots``) has the index label of its row as key.

    Args:
        frame: rows of a sweep; those that failed are left out.
        cost: column of which less is better, such as ``memory_bytes`` or ``kv_tokens``.
        value: column of which more is better.
        group: setting that the marks' shape and colour tell apart, at most eight values.
        shade: a third column, shown by the size of the marks (such as ``ttft_mean_s``).
        title: above the figure.
        theme: "light" or "dark".
    """
    require_columns(frame, tuple(filter(None, (cost, value, group, shade))), "frame")
    good = (frame[frame["status"] == "ok"] if "status" in frame else frame).dropna(subset=[cost, value])
    names = list(dict.fromkeys(good[group])) if group else [None]
    if len(names) > len(_MARKS):
        raise ValueError(
            f"group={group!r}: has {len(names)} values; at most {len(_MARKS)} marks can be told apart"
        )
    with style(theme) as c:
        fig = figure(9.5, 5.0, theme=theme, layout="constrained")
        ax = fig.subplots()
        front = pareto_front(good, cost, value)
        ax.plot(
            front[cost].astype(float),
            front[value].astype(float),
            color=c.muted,
            lw=1.2,
            drawstyle="steps-post",
            zorder=1,
            label="best at its cost",
        )
        _points(ax, good, (cost, value, group, shade), names, c)
        ax.set(xlabel=words_of(cost), ylabel=words_of(value))
        if value == "reuse":
            ax.yaxis.set_major_formatter(lambda number, _: f"{number:.0%}")
        _cost_axis(ax, sorted(set(good[cost].astype(float))))
        note = "" if shade is None else f"size of a mark: {words_of(shade)}"
        fig.legend(loc="outside right center", title=note or None, title_fontsize=8)
        if title:
            ax.set_title(title)
    return fig


def _points(
    ax: Axes,
    good: pd.DataFrame,
    columns: tuple[str, str, str | None, str | None],
    names: Sequence[object],
    c: Palette,
) -> None:
    cost, value, group, shade = columns
    colours = (c.state, c.misplaced, c.locked, c.refused, c.kv_edge, c.tombstone, c.ink, c.muted)
    for name, marker, colour in zip(names, _MARKS, colours, strict=False):
        part = good if name is None else good[good[group] == name]
        sizes: Any = 42.0
        if shade is not None:
            sizes = 20 + 160 * _scaled(part[shade].astype(float), good[shade].astype(float))
        xs, ys = part[cost].astype(float), part[value].astype(float)
        label = None if name is None else str(name)
        ax.scatter(
            xs, ys, s=sizes, marker=marker, color=colour, edgecolor=c.paper, lw=0.8, zorder=2, label=label
        )
        for row, x, y in zip(part.index, xs, ys, strict=True):
            what = "" if name is None else f"{name}: "
            tip = f"{what}{words_of(cost)} {short_value(x)}, {words_of(value)} {value_text(value, y)}"
            mark_spot(ax, str(row), (x, y, x, y), tip, reach=4.5)


def _cost_axis(ax: Axes, places: list[float]) -> None:
    """A logarithmic scale where the values span much, and ticks at the values themselves where they are few."""
    if places and places[0] > 0 and places[-1] > 20 * places[0]:
        ax.set_xscale("log")
    elif 1 < len(places) <= MOST_TICKS and np.diff(places).min() > 0.06 * (places[-1] - places[0]):
        ax.set_xticks(places)
    ax.xaxis.set_major_formatter(lambda number, _: short_value(number))


def pareto_front(frame: pd.DataFrame, cost: str, value: str) -> pd.DataFrame:
    """The rows that no other row beats: none costs as little and gives more. Ascending cost."""
    ordered = frame.sort_values([cost, value], ascending=[True, False], kind="stable")
    best = ordered[value].astype(float).cummax()
    return ordered[best > best.shift(1, fill_value=-np.inf)]


def _scaled(part: pd.Series, whole: pd.Series) -> pd.Series:
    low, high = whole.min(), whole.max()
    return (part - low) / (high - low) if high > low else part * 0.0 + 0.5


_NAMES = {
    "kv_tokens": "KV pool (tokens)",
    "state_slots": "state pool (slots)",
    "reuse": "share of prompt tokens reused",
}


def words_of(column: str) -> str:
    """A column's name in words, with its unit."""
    if column in _NAMES:
        return _NAMES[column]
    units = {"tokens": "tokens", "bytes": "bytes", "s": "s"}
    stem, _, last = column.rpartition("_")
    return f"{stem.replace('_', ' ')} ({units[last]})" if last in units and stem else column.replace("_", " ")


def value_text(column: str, number: float) -> str:
    """A result in few characters; a share in percent."""
    return f"{number:.0%}" if column == "reuse" else f"{number:.3g}"


def short_value(value: object) -> str:
    """A setting in few characters: 64, 64 Ki, 1.5M, or a name as it is."""
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        number = float(value)
        for unit, word in ((2**30, "Gi"), (2**20, "Mi"), (2**10, "Ki")):
            if number >= unit and number % unit == 0:
                return f"{number / unit:g} {word}"
        for size, word in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
            if number >= 10 * size or (number >= size and number % size == 0):
                return f"{number / size:.4g}{word}"
        return f"{number:g}"
    return str(value)


def axes_to_draw(frame: pd.DataFrame, settings: Sequence[str]) -> list[str]:
    """The settings of which a sweep has several values, those with the most first."""
    counts = {name: frame[name].nunique(dropna=False) for name in settings if name in frame}
    return sorted((name for name, count in counts.items() if count > 1), key=lambda name: -counts[name])
