"""Figure of a memory split: running requests and checkpoints over the share that states take."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from depthchart.charts.layout import require_columns
from depthchart.charts.style import DEFAULT, Palette, figure, style

__all__ = ["capacity_chart"]


def capacity_chart(
    frame: pd.DataFrame,
    *,
    share: float,
    balance: float,
    title: str | None = None,
    theme: str = DEFAULT,
) -> Figure:
    """Left: the running requests that each pool holds; right: checkpoints of a full KV pool against slots.

    Args:
        frame: rows of ``capacity.splits``.
        share: the state share that is in use.
        balance: the state share at which neither pool binds first.
        title: above the figure.
        theme: "light" or "dark".
    """
    columns = ("state_share", "running_by_kv", "running_by_states", "checkpoints", "state_slots")
    require_columns(frame, columns, "frame")
    with style(theme) as c:
        fig = figure(11.0, 4.8, theme=theme, layout="constrained")
        left, right = fig.subplots(1, 2)
        x = frame["state_share"]
        least = frame[["running_by_kv", "running_by_states"]].min(axis=1)
        left.fill_between(x, least, color=c.kv, lw=0, label="both hold")
        left.plot(x, frame["running_by_kv"], color=c.locked, label="KV pool holds")
        left.plot(x, frame["running_by_states"], color=c.state, ls="--", label="state pool holds")
        left.axvline(balance, color=c.muted, lw=1.2, ls=":", label=f"balance, {balance:.0%}")
        left.set_ylabel("running requests")
        few = frame["checkpoints"] > frame["state_slots"]
        right.plot(x, frame["state_slots"], color=c.state, ls="--", label="state slots")
        right.plot(x, frame["checkpoints"], color=c.misplaced, label="checkpoints of a full KV pool")
        right.fill_between(
            x,
            frame["state_slots"],
            frame["checkpoints"],
            where=few,
            color=c.misplaced,
            alpha=0.18,
            lw=0,
            label="checkpoints that find no slot",
        )
        right.set_ylabel("states")
        for ax in (left, right):
            _finish(ax, share, c)
        if title:
            fig.suptitle(title)
    return fig


def _finish(ax: Axes, share: float, c: Palette) -> None:
    ax.axvline(share, color=c.ink, lw=1.2, label=f"in use, {share:.0%}")
    ax.set(xlabel="share of the memory that states take", xlim=(0, 1), yscale="log")
    ax.xaxis.set_major_formatter(lambda number, _: f"{number:.0%}")
    ax.yaxis.set_major_formatter(lambda number, _: f"{number:,.0f}" if number >= 1 else f"{number:g}")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=8, frameon=False)
