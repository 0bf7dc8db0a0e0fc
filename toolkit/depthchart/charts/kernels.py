"""Scan kernels: speed against chunk width under the roofline, error by depth, error after a resume."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from depthchart.charts.layout import require_columns
from depthchart.charts.style import Palette, figure, style
from depthchart.columns import KERNEL_SPEED, RESUME_ERRORS, SNAPSHOT_ERRORS

__all__ = ["resume_chart", "roofline_chart", "snapshot_error_chart", "throughput_chart"]

_DASHES = ("-", "--", "-.", ":")
_MARKS = ("o", "s", "^", "D", "v", "P")
_PLACES = ((0, 9), (0, -9), (10, -3), (-10, 3))  # of a point's label, by operator: points may lie close
_FLOOR = 1e-9  # an error of nought is drawn here: a log axis has none
_NAMES = ("length", "batch", "dtype", "snapshots")  # what may tell two lines of one operator apart


def throughput_chart(frame: pd.DataFrame, *, title: str | None = None, theme: str = "light") -> Figure:
    """Tokens a second against chunk width, a panel for each operator (a frame of columns.KERNEL_SPEED).

    Dashed, in the colour of each line: what the machine's measured matmul rate and copy bandwidth would allow.
    Rows of the reference and of peers are left out. Raises ValueError for missing columns, no row, or more than four lines.
    """
    chunked = _measured(frame)
    ops = list(dict.fromkeys(chunked["op"]))
    varying = [name for name in _NAMES if len(chunked[name].unique()) > 1]
    with style(theme) as c:
        fig = figure(10, 3.6, theme=theme)
        panels = fig.subplots(1, len(ops), squeeze=False)[0]
        for ax, op in zip(panels, ops, strict=True):
            _speed_panel(ax, chunked[chunked["op"] == op], varying, c)
            ax.set_title(op)
        panels[0].set_ylabel("tokens/s")
        fig.legend(*panels[0].get_legend_handles_labels(), loc="outside lower left", ncols=5)
        _title(fig, title)
    return fig


def roofline_chart(frame: pd.DataFrame, *, title: str | None = None, theme: str = "light") -> Figure:
    """GFLOP/s against FLOPs a byte, both axes logarithmic, a point for the fastest row of each operator and width.

    The roof is drawn for each distinct pair of ceilings (a frame of columns.KERNEL_SPEED). Raises ValueError as
    `throughput_chart`.
    """
    rows = _measured(frame)
    rows = rows.loc[rows.groupby(["op", "chunk_width"], sort=False)["roofline_share"].idxmax()]
    rows = rows.assign(intensity=rows["flops"] / rows["bytes"], gflops=rows["flops"] / rows["best_s"] / 1e9)
    with style(theme) as c:
        fig = figure(7.5, 4.2, theme=theme)
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
        ax.set_ylim(rows["gflops"].min() / 2, rows["matmul_flops_per_s"].max() / 1e9 * 2)
        _legend(ax, 4)
        _title(fig, title)
    return fig


def snapshot_error_chart(
    frame: pd.DataFrame, *, tolerance: float | None = 5e-6, title: str | None = None, theme: str = "light"
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


def resume_chart(frame: pd.DataFrame, *, title: str | None = None, theme: str = "light") -> Figure:
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


def _lines(rows: pd.DataFrame, varying: Sequence[str]) -> list[tuple[str, pd.DataFrame]]:
    if not varying:
        return [("measured", rows)]
    groups = [(dict(zip(varying, key, strict=True)), part) for key, part in rows.groupby(list(varying))]
    _few(groups, "lines (length, batch, dtype, snapshots)")
    return [(_words(settings), part) for settings, part in groups]


def _words(settings: dict[str, Any]) -> str:
    said = {"length": "{:,} tokens", "batch": "batch {}", "dtype": "{}", "snapshots": "{} snapshots"}
    words = ", ".join(said[name].format(value) for name, value in settings.items())
    return words.removesuffix("s") if words.endswith(" 1 snapshots") or words == "1 snapshots" else words


def _speed_panel(ax: Axes, rows: pd.DataFrame, varying: Sequence[str], c: Palette) -> None:
    lines = _lines(rows, varying)
    for (label, part), colour, mark in zip(lines, _colours(c), _MARKS, strict=False):
        x, y = part["chunk_width"].to_numpy(), part["tokens_per_s"].to_numpy(dtype=float)
        ax.plot(x, y, color=colour, marker=mark, ms=4, label=label)
        ax.plot(x, y / part["roofline_share"].to_numpy(dtype=float), color=colour, ls="--", lw=0.9)
    ax.plot([], [], color=c.muted, ls="--", lw=0.9, label="roofline")
    widths = sorted(rows["chunk_width"].unique())
    ax.set_xscale("log", base=2)
    ax.set_xticks(widths, [str(width) for width in widths])
    ax.set_xlabel("chunk width (tokens)")
    ax.set_ylim(bottom=0)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value / 1000:,.0f} k" if value else "0")


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
