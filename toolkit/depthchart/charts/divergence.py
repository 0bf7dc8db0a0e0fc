"""How far logits with reuse are from those without: along a text, and along a chain of reuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from depthchart.charts.layout import require_columns
from depthchart.charts.style import DEFAULT, Palette, figure, style
from depthchart.columns import DIVERGENCE, PRECISION

__all__ = ["divergence_chart", "precision_chart", "token_chart"]

_LINES = ("-", "--", "-.", ":")
_FLOOR = 1e-7  # differences below are drawn here: a log axis has no nought


def divergence_chart(
    runs: Mapping[str, pd.DataFrame],
    twice: tuple[int, int] | None = None,
    changed: Mapping[str, int | None] | None = None,
    prompt_tokens: int | None = None,
    *,
    tolerance: float | None = 1e-4,
    title: str | None = None,
    theme: str = DEFAULT,
) -> Figure:
    """The largest difference of logits against the position in the text (tokens), on a log axis.

    Args:
        runs: frames of DIVERGENCE by the label of their line, at most four.
        twice: the tokens [start, end) that went through the recurrence twice; shaded.
        changed: position of the first changed sampled token by label; marked with a cross.
        prompt_tokens: where the prompt ends and sampling begins; a line.
        tolerance: what counts as equal; a line.
        title: above the figure.
        theme: "light" or "dark".

    Raises ValueError for no run or more than four, or for missing columns.
    """
    _check_lines(runs)
    with style(theme) as c:
        fig = figure(10, 4.2, theme=theme)
        ax = fig.subplots()
        if twice is not None and twice[0] < twice[1]:
            ax.axvspan(
                *twice, color=c.misplaced, alpha=0.14, lw=0, label=f"{twice[1] - twice[0]} tokens read twice"
            )
        for (label, frame), colour, line in zip(runs.items(), _colours(c), _LINES, strict=False):
            require_columns(frame, DIVERGENCE, f"runs[{label!r}]")
            x = frame["position_tokens"].to_numpy(dtype=float)
            y = frame["largest_difference"].to_numpy(dtype=float).clip(min=_FLOOR)
            ax.plot(x, y, color=colour, ls=line, lw=1.1, label=label)
            if (at := (changed or {}).get(label)) is not None and len(x):
                near = int(np.argmin(np.abs(x - (at - 1))))
                ax.plot([x[near]], [y[near]], "X", color=colour, ms=9, mec=c.paper, zorder=5)
                ax.annotate(f"first changed token: {at:,}", (x[near], y[near]), (8, 14), textcoords="offset points",
                            color=colour, size=8, bbox={"fc": c.paper, "ec": "none", "pad": 1})  # fmt: skip
        _guide(ax, tolerance, prompt_tokens, c)
        ax.set(xlabel="position in the text (tokens)", ylabel="largest difference of logits", yscale="log")
        ax.set_ylim(bottom=_FLOOR)
        _heading(fig, ax, title, len(runs) + 2)
    return fig


def token_chart(
    outputs: Mapping[str, Sequence[int]],
    right: Sequence[int],
    *,
    title: str | None = None,
    theme: str = DEFAULT,
) -> Figure:
    """Sampled tokens, one row for each run under the right ones; a token that differs is filled.

    Args:
        outputs: sampled token ids by label.
        right: the tokens sampled without reuse.
        title: above the figure.
        theme: "light" or "dark".

    Raises ValueError where a run has another number of tokens.
    """
    for label, tokens in outputs.items():
        if len(tokens) != len(right):
            raise ValueError(
                f"outputs[{label!r}]: {len(tokens)} tokens; right has {len(right)}, they must agree"
            )
    rows = {"without reuse": list(right), **outputs}
    shown = min(len(right), 24)
    with style(theme) as c:
        fig = figure(10, 0.9 + 0.36 * len(rows), theme=theme)
        ax = fig.subplots()
        for y, (_, tokens) in enumerate(rows.items()):
            for x in range(shown):
                wrong = tokens[x] != right[x]
                ax.add_patch(_box(x, y, c, wrong))
                ax.text(x + 0.5, y + 0.5, str(tokens[x]), ha="center", va="center", size=7.5,
                        color=c.paper if wrong else c.ink)  # fmt: skip
        ax.set(
            xlim=(0, shown), ylim=(len(rows), 0), xlabel="sampled token (a white id on dark is a wrong one)"
        )
        ax.set_yticks([y + 0.5 for y in range(len(rows))], list(rows))
        ax.set_xticks([x + 0.5 for x in range(0, shown, 4)], [str(x + 1) for x in range(0, shown, 4)])
        ax.grid(False)
        ax.tick_params(length=0)
        for side in ax.spines.values():
            side.set_visible(False)
        if title:
            fig.suptitle(title, x=0.01, ha="left")
    return fig


def precision_chart(frame: pd.DataFrame, *, title: str | None = None, theme: str = DEFAULT) -> Figure:
    """Divergence after n reuses of stored checkpoints, a line for each dtype: difference of logits (largest, log
    axis), and the share of positions with the same greedy token. Lines are medians, bands the range over seeds.

    Raises ValueError for missing columns.
    """
    require_columns(frame, PRECISION, "frame")
    with style(theme) as c:
        fig = figure(10, 4, theme=theme)
        left, right = fig.subplots(1, 2)
        dtypes = [d for d in ("fp32", "bf16", "int8") if d in set(frame["checkpoint_dtype"])]
        for dtype, colour, line in zip(dtypes, (c.state, c.locked, c.misplaced), _LINES, strict=False):
            part = frame[frame["checkpoint_dtype"] == dtype]
            size = int(part["checkpoint_bytes"].iloc[0])
            label = f"{dtype} ({size / 1024:.1f} KiB a checkpoint)"
            for ax, column, least in ((left, "largest_difference", _FLOOR), (right, "same_choice", 0.0)):
                grouped = part.groupby("reuses")[column]
                x = np.array(sorted(part["reuses"].unique()), dtype=float)
                low, middle, high = (g.to_numpy().clip(min=least) for g in (
                    grouped.min(), grouped.median(), grouped.max()))  # fmt: skip
                ax.fill_between(x, low, high, color=colour, alpha=0.15, lw=0)
                ax.plot(
                    x, middle, color=colour, ls=line, marker="o", ms=4, label=label if ax is left else None
                )
        left.set(yscale="log", ylabel="largest difference of logits", xlabel="checkpoints reused before")
        right.set(ylabel="positions with the same greedy token", xlabel="checkpoints reused before")
        right.set_ylim(top=1.005)
        _heading(fig, left, title, len(dtypes))
    return fig


def _box(x: int, y: int, c: Palette, wrong: bool) -> Rectangle:
    return Rectangle((x + 0.04, y + 0.1), 0.92, 0.8, fc=c.misplaced if wrong else c.kv, ec=c.paper, lw=0.8)


def _heading(fig: Figure, ax: Axes, title: str | None, columns: int) -> None:
    """The title on the left, the legend under it, above the axes."""
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns)
    if title:
        fig.suptitle(title, x=0.01, ha="left")


def _guide(ax: Axes, tolerance: float | None, prompt_tokens: int | None, c: Palette) -> None:
    if tolerance is not None:
        ax.axhline(tolerance, color=c.muted, lw=0.8, ls=(0, (1, 2)), label=f"tolerance {tolerance:g}")
    if prompt_tokens is not None:
        ax.axvline(prompt_tokens - 0.5, color=c.muted, lw=0.8)
        ax.annotate("sampling begins", (prompt_tokens - 0.5, 1), (4, -10), xycoords=("data", "axes fraction"),
                    textcoords="offset points", color=c.muted, size=8)  # fmt: skip


def _colours(c: Palette) -> tuple[str, ...]:
    return (c.state, c.misplaced, c.locked, c.refused)


def _check_lines(runs: Mapping[str, pd.DataFrame]) -> None:
    if not 1 <= len(runs) <= len(_LINES):
        raise ValueError(
            f"runs: {len(runs)} of them; must be 1 to {len(_LINES)}, or the lines cannot be told apart"
        )
