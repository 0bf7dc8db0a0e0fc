"""The checkpoint chart: token depth on x, one lane per branch, checkpoints as marks. Depths in tokens, sizes in points."""

from __future__ import annotations

from collections.abc import Collection

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from depthchart.charts.depths import Ruler, axis_step, depth_text, geometry_text, rulers
from depthchart.charts.lanes import draw_lanes
from depthchart.charts.legend import Legend, footnotes
from depthchart.charts.marks import Marks, collect_marks
from depthchart.charts.placing import Room, fit_text, text_width
from depthchart.charts.sheet import ROW, TEXT, Sheet
from depthchart.charts.strokes import Segment, add_lines
from depthchart.charts.style import DEFAULT, Palette, figure, style
from depthchart.geometry import Geometry

__all__ = ["checkpoint_chart"]

LESSER = TEXT + 0.5


def checkpoint_chart(
    nodes: pd.DataFrame,
    checkpoints: pd.DataFrame | None = None,
    geometry: Geometry | None = None,
    *,
    title: str | None = None,
    theme: str = DEFAULT,
    max_nodes: int = 200,
    window: tuple[float, float] | None = None,
    highlight: Collection[int] = (),
) -> Figure:
    """Draw a radix tree over token depth, with what became of its checkpoints.

    Args:
        nodes: the tree at one moment (columns.NODES).
        checkpoints: decisions and their outcomes (columns.CHECKPOINTS).
        geometry: adds ruler lines for chunk, page, tree page and, where it is wider, the checkpoint grid.
        max_nodes: above it, the misplaced, locked and most recently used nodes are shown, with their ancestors.
        title: heading of the figure.
        theme: colours, see ``charts.style``.
        window: lowest and highest depth shown, in tokens.
        highlight: ids of the nodes that have just changed; they get a frame.

    Raises ValueError naming missing columns, nodes that cannot form a tree, or an empty window.
    """
    if window is not None and not window[0] < window[1]:
        raise ValueError(f"window={window}: the first depth must be below the second")
    marks = collect_marks(nodes, checkpoints, max_nodes, window)
    marks.changed = set(highlight) & set(marks.nodes["node_id"])
    low, high = window if window is not None else (0.0, max(1.0, marks.deepest() * 1.1))
    with style(theme) as c:
        legend = Legend(marks, c, LESSER, 690)
        notes = footnotes(marks, TEXT, 690)
        rows = rulers(geometry, high - low, Sheet(low, high, 1, 0, 0).plot_width) if geometry else []
        below = 34 + legend.height + 10 * len(notes)
        sheet = Sheet(low, high, marks.lanes, len(rows) + len(marks.cuts), below)
        fig = figure(
            sheet.width / 72, sheet.height / 72, theme=theme, layout="none"
        )  # every size is known in points
        ax = fig.add_axes(sheet.axes)
        _axis(ax, sheet, geometry.tree_page if geometry else 1)
        _rulers(ax, sheet, rows, c)
        _cuts(ax, sheet, marks, c)
        draw_lanes(ax, marks, sheet, c)
        _heading(fig, sheet, title or "Checkpoint chart", _subtitle(marks, geometry), c)
        _footnotes(fig, sheet, notes, c)
        legend.draw(fig, 10, 4 + 10 * len(notes))
    return fig


def _axis(ax: Axes, sheet: Sheet, unit: int) -> None:
    ax.set(xlim=(sheet.low, sheet.high), ylim=(sheet.plot_height, 0), xlabel="token depth (tokens)")
    ax.yaxis.set_visible(False)
    ax.spines["left"].set_visible(False)
    step = axis_step(sheet.high - sheet.low, sheet.plot_width, unit)
    ticks = range(int(-(-sheet.low // step) * step), int(sheet.high) + 1, step)
    ax.set_xticks(list(ticks), [depth_text(tick) for tick in ticks])


def _rulers(ax: Axes, sheet: Sheet, rows: list[Ruler], c: Palette) -> None:
    marks: list[Segment] = []
    faint: list[Segment] = []
    for at, ruler in enumerate(rows):
        y = (at + 0.6) * ROW
        ticks = ruler.ticks(sheet.low, sheet.high).tolist()
        marks += [[(tick, y - 3), (tick, y + 3)] for tick in ticks]
        faint.append([(sheet.low, y), (sheet.high, y)])
        if ruler.name == "tree page":
            faint += [[(tick, sheet.head), (tick, sheet.plot_height)] for tick in ticks]
        _row_name(ax, sheet, ruler.label, y, c)
    add_lines(ax, faint, ec=c.grid, lw=0.6, zorder=0)
    add_lines(ax, marks, ec=c.muted, lw=0.7)


def _cuts(ax: Axes, sheet: Sheet, marks: Marks, c: Palette) -> None:
    """One row for each request: where its prefill steps began and ended, with the depths in figures."""
    first = sheet.ruler_rows - len(marks.cuts)
    room = Room(sheet.plot_width, sheet.plot_height)
    for at, (request, depths) in enumerate(marks.cuts, first):
        y = (at + 0.6) * ROW
        lines: list[Segment] = [[(depth, y - 3.5), (depth, y + 3.5)] for depth in depths]
        lines.append([(depths[0], y), (depths[-1], y)])
        add_lines(ax, lines, ec=c.ink, lw=1)
        _row_name(ax, sheet, f"prefill steps of {request}", y, c)
        for depth in depths:
            room.take((sheet.x(depth) - 1, y - 4, sheet.x(depth) + 1, y + 4))
        for depth in depths:
            if not depth:
                continue  # the axis has a nought of its own
            text, x = f"{depth:,}", sheet.x(depth)
            width = text_width(text, TEXT) + 2
            sides = [x + 2, x - 2 - width]
            if any(0 < sheet.x(other) - x < width + 3 for other in depths):
                sides.reverse()  # or it would stand beyond the next depth
            spot = room.first_free((left, y - 4, left + width, y + 4) for left in sides)
            if spot is not None:
                ax.text(sheet.depth(spot[0] + 1), y, text, size=TEXT, va="center_baseline",
                        bbox={"fc": c.paper, "ec": "none", "pad": 0.4})  # fmt: skip


def _row_name(ax: Axes, sheet: Sheet, name: str, y: float, c: Palette) -> None:
    text = fit_text(name, TEXT, sheet.margin)
    ax.annotate(text, (0, y), (-6, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
                ha="right", va="center", size=TEXT, color=c.muted)  # fmt: skip


def _heading(fig: Figure, sheet: Sheet, title: str, subtitle: str, c: Palette) -> None:
    left, width = 10 / sheet.width, sheet.width - 20
    fig.text(left, 1 - 10 / sheet.height, fit_text(title, 10, width), size=10, va="top")
    lesser = fit_text(subtitle, LESSER, width)
    fig.text(left, 1 - 25 / sheet.height, lesser, size=LESSER, color=c.muted, va="top")


def _subtitle(marks: Marks, geometry: Geometry | None) -> str:
    shown, total = len(marks.nodes), marks.total_nodes
    parts = [f"showing {shown} of {total} nodes" if shown < total else _count(shown, "node")]
    parts += [geometry_text(geometry)] if geometry else []
    parts += [f"{_count(marks.hidden_marks, 'checkpoint')} not shown"] if marks.hidden_marks else []
    return " · ".join(parts)


def _footnotes(fig: Figure, sheet: Sheet, notes: list[str], c: Palette) -> None:
    for at, note in enumerate(reversed(notes)):
        fig.text(14 / sheet.width, (4 + 10 * at) / sheet.height, note, size=TEXT, color=c.muted, va="bottom")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
