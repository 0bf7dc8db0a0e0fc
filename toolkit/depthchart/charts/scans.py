"""Scan kernels: rates under the roofline, error by depth, error after a resume."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from depthchart.charts.layout import require_columns
from depthchart.charts.style import DEFAULT, Palette, figure, style
from depthchart.columns import KERNEL_SPEED, RESUME_ERRORS, SNAPSHOT_ERRORS

__all__ = ["resume_chart", "roofline_chart", "snapshot_error_chart"]

_DASHES = ("-", "--", "-.", ":")
_MARKS = ("o", "s", "^", "D", "v", "P")
_PLACES = ((0, 9), (0, -9), (10, -3), (-10, 3))  # of a point's label, by operator: points may lie close
_FLOOR = 1e-9  # an error of nought is drawn here: a log axis has none


def roofline_chart(frame: pd.DataFrame, *, title: str | None = None, theme: str = DEFAULT) -> Figure:
    """GFLOP/s against FLOPs a byte, both axes logarithmic, a point for the fastest row of each operator and width.

    The roof is drawn for each distinct pair of ceilings (a frame of columns.KERNEL_SPEED). Rows of the
    reference and of peers are left out. Raises ValueError for missing columns or no row.
    """
    rows = _measured(frame)
    rows = rows.loc[rows.groupby(["op", "chunk_width"], sort=False)["roofline_share"].idxmax()]
    rows = rows.assign(intensity=rows["flops"] / rows["bytes"], gflops=rows["flops"] / rows["best_s"] / 1e9)
    with style(theme) as c:
        fig = figure(7.5, 5.0, theme=theme)
        ax = fig.subplots()
        ax.set(xscale="log", yscale="log", xlabel="FLOPs a byte", ylabel="GFLOP/s")
        _roofs(ax, rows, c)
        groups = rows.groupby("op", sort=False)
        for (op, part), colour, mark, place in zip(groups, _colours(c), _MARKS, _PLACES, strict=False):
            ax.plot(part["intensity"], part["gflops"], color=colour, marker=mark, ms=5, lw=0.9, label=op)
            for width, x, y in part[["chunk_width", "intensity", "gflops"]].itertuples(index=False):
                ax.annotate(f"{width:.0f}", (x, y), place, textcoords="offset points", ha="center",
                            va="center", size=7, color=colour)  # fmt: skip
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.set_minor_formatter("")
        ax.set_ylim(rows["gflops"].min() / 1.3, rows["matmul_flops_per_s"].max() / 1e9 * 1.4)
        _legend(ax, 4)
        _title(fig, title)
    return fig


def snapshot_error_chart(
    frame: pd.DataFrame, *, tolerance: float | None = 5e-6, title: str | None = None, theme: str = DEFAULT
) -> Figure:
    """Error of the state against depth, a line for each chunk width (a frame of columns.SNAPSHOT_ERRORS).

    Filled marks are depths where a chunk ends: an error that depended on the grid would show there. Raises
    ValueError for missing columns, no row, or more than four widths.
    """
    require_columns(frame, SNAPSHOT_ERRORS, "frame")
    widths = _few(sorted(frame["chunk_width"].unique()), "chunk widths")
    with style(theme) as c:
        fig = figure(10, 3.8, theme=theme)
        ax = fig.subplots()
        for width, colour, line in zip(widths, _colours(c), _DASHES, strict=False):
            part = frame[frame["chunk_width"] == width]
            x, y = part["depth_tokens"].to_numpy(), part["error"].to_numpy(dtype=float).clip(min=_FLOOR)
            ax.plot(x, y, color=colour, ls=line, lw=1, label=f"chunks of {width}")
            ends = part["on_grid"].to_numpy(dtype=bool)
            ax.plot(x[ends], y[ends], "o", color=colour, ms=4)
        if tolerance is not None:
            ax.axhline(tolerance, color=c.muted, lw=0.8, ls=(0, (1, 2)), label=f"promised: {tolerance:g}")
        ax.set(xlabel="depth of the state (tokens)", ylabel="largest difference / largest magnitude")
        ax.set_yscale("log")
        _legend(ax, len(widths) + 1)
        _title(fig, title)
    return fig


def resume_chart(frame: pd.DataFrame, *, title: str | None = None, theme: str = DEFAULT) -> Figure:
    """Error of the outputs by token after a resume, a line for each shift (a frame of columns.RESUME_ERRORS).

    Raises ValueError for missing columns, no row, or more than four shifts.
    """
    require_columns(frame, RESUME_ERRORS, "frame")
    shifts = _few(list(dict.fromkeys(frame["shift_tokens"])), "shifts")
    with style(theme) as c:
        fig = figure(10, 3.8, theme=theme)
        ax = fig.subplots()
        for shift, colour, line in zip(shifts, _colours(c), _DASHES, strict=False):
            part = frame[frame["shift_tokens"] == shift]
            y = part["error"].to_numpy(dtype=float).clip(min=_FLOOR)
            label = _shift_words(int(shift))
            ax.plot(part["token"].to_numpy(), y, color=colour, ls=line, lw=1.2, label=label)
        ax.set(xlabel="token after the resume", ylabel="largest difference / largest output", yscale="log")
        _legend(ax, len(shifts))
        _title(fig, title)
    return fig


# --- helpers ----------------------------------------------------------------------------------------------


def _measured(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows that are drawn: our own, widths ascending."""
    require_columns(frame, KERNEL_SPEED, "frame")
    rows = frame[frame["impl"].isin(("chunked", "triton"))].sort_values("chunk_width", kind="stable")
    if rows.empty:
        raise ValueError("frame: has no row to draw (rows of the reference and of peers are left out)")
    return rows.reset_index(drop=True)


def _roofs(ax: Axes, rows: pd.DataFrame, c: Palette) -> None:
    """One roof for each pair of ceilings in the frame."""
    low, high = rows["intensity"].min() / 2, rows["intensity"].max() * 2
    for flops, copied in (
        rows[["matmul_flops_per_s", "copy_bytes_per_s"]].drop_duplicates().itertuples(index=False)
    ):
        x = np.geomspace(min(low, flops / copied / 2), max(high, flops / copied * 2), 200)
        ax.plot(x, np.minimum(flops, x * copied) / 1e9, color=c.muted, lw=1)
        words = f"matmul {flops / 1e9:,.0f} GFLOP/s, copy {copied / 1e9:,.1f} GB/s"
        ax.annotate(
            words, (x[-1], flops / 1e9), (0, 4), textcoords="offset points", ha="right", color=c.muted
        )


def _shift_words(shift: int) -> str:
    if not shift:
        return "right depth"
    unit = "token" if abs(shift) == 1 else "tokens"
    return f"{abs(shift):,} {unit} too {'many' if shift > 0 else 'few'}"


def _few(found: list[Any], what: str) -> list[Any]:
    if not 1 <= len(found) <= len(_DASHES):
        raise ValueError(
            f"frame: {len(found)} {what}; must be 1 to {len(_DASHES)}, or the lines cannot be told apart"
        )
    return found


def _legend(ax: Axes, columns: int) -> None:
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0.1)


def _title(fig: Figure, title: str | None) -> None:
    if title:
        fig.suptitle(title, x=0.01, ha="left")


def _colours(c: Palette) -> tuple[str, ...]:
    return (c.state, c.misplaced, c.locked, c.refused)
