"""The trace figure: lengths, arrivals, and how much of the prompts has been seen before."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

# Okabe and Ito's colours, safe for colour-blind readers.
PROMPT, OUTPUT, REUSE = "#0072B2", "#D55E00", "#009E73"


def trace_figure(frame: pd.DataFrame, title: str = "") -> Figure:
    """Four panels: lengths, arrivals, reuse against block size, share of each prompt seen before.

    Args:
        frame: one row per request with ``arrival_s``, ``prompt_tokens``, ``output_tokens`` and
            ``seen_tokens`` (``TraceSummary.requests``), in order of arrival.
        title: heading; name the trace's source in it.
    """
    figure = Figure(figsize=(10.0, 6.4), layout="constrained")
    panels = figure.subplots(2, 2)
    for axes in panels.flat:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, linewidth=0.6)
    if title:
        figure.suptitle(title, fontsize=11)
    if frame.empty:
        for axes in panels.flat:
            axes.text(0.5, 0.5, "no requests", ha="center", va="center", transform=axes.transAxes)
        return figure
    _lengths(panels[0, 0], frame)
    _arrivals(panels[0, 1], frame)
    _reuse(panels[1, 0], frame)
    _seen(panels[1, 1], frame)
    return figure


def _lengths(axes: Axes, frame: pd.DataFrame) -> None:
    top = max(frame["prompt_tokens"].max(), frame["output_tokens"].max(), 2)
    low = max(1, min(frame["prompt_tokens"].min(), frame["output_tokens"].min()))
    bins = np.geomspace(low, max(top, low + 1), 50)
    for column, colour, name in (("prompt_tokens", PROMPT, "prompt"), ("output_tokens", OUTPUT, "output")):
        values = frame[column].clip(lower=1)
        axes.hist(values, bins=bins.tolist(), histtype="stepfilled", alpha=0.25, color=colour)
        axes.hist(values, bins=bins.tolist(), histtype="step", color=colour, label=name)
    axes.set(xscale="log", xlabel="tokens", ylabel="requests", title="Lengths")
    axes.xaxis.set_major_formatter(FuncFormatter(_thousands))
    axes.legend(frameon=False)


def _arrivals(axes: Axes, frame: pd.DataFrame) -> None:
    times = frame["arrival_s"].to_numpy(dtype=float)
    span = float(times[-1] - times[0])
    unit, word = (3600.0, "h") if span > 4 * 3600 else (60.0, "min") if span > 600 else (1.0, "s")
    width = span / 60 if span > 0 else 1.0
    edges = times[0] + width * np.arange(61)
    counts, _ = np.histogram(times, bins=edges)
    axes.stairs(counts / width, (edges - times[0]) / unit, color=PROMPT, fill=True, alpha=0.6)
    axes.set(xlabel=f"time since the first arrival ({word})", ylabel="requests / s", title="Arrival rate")


def _reuse(axes: Axes, frame: pd.DataFrame) -> None:
    blocks = 2 ** np.arange(0, 14)
    prompts = frame["prompt_tokens"].to_numpy()
    usable = np.minimum(frame["seen_tokens"].to_numpy(), prompts - 1)
    shares = [float((usable // block * block).sum() / prompts.sum()) for block in blocks]
    axes.plot(blocks, shares, marker="o", markersize=4, color=REUSE)
    axes.set(xscale="log", xlabel="block size (tokens)", ylabel="share of prompt tokens", ylim=(0, 1))
    axes.set_title("Reusable with an unbounded cache")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(_thousands))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))


def _seen(axes: Axes, frame: pd.DataFrame) -> None:
    shares: npt.NDArray[np.float64] = (frame["seen_tokens"] / frame["prompt_tokens"]).to_numpy(dtype=float)
    axes.hist(shares, bins=np.linspace(0, 1, 41).tolist(), color=REUSE, alpha=0.6)
    axes.set(xlabel="share of the prompt seen before", ylabel="requests", xlim=(0, 1))
    axes.set_title("How much of each prompt is old")
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))


def _thousands(value: float, _position: int) -> str:
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1000:g}k" if value >= 1000 and value % 1000 == 0 else f"{value:g}"
