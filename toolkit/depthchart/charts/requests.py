"""What became of the prompts' tokens: reused, found and thrown away, or computed."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from depthchart.charts.layout import require_columns
from depthchart.charts.style import figure, style

__all__ = ["reuse_chart"]

MAX_BARS = 60


def reuse_chart(requests: pd.DataFrame, *, title: str | None = None, theme: str = "light") -> Figure:
    """Stacked prompt tokens per request in order of arrival (means of neighbours above 60), and the lost tokens.

    Requests that have no match yet (<NA>) are left out, and counted in the title.
    """
    require_columns(requests, ("arrival_s", "prompt_tokens", "reused_tokens", "lost_tokens"), "requests")
    known = requests.dropna(subset=["reused_tokens", "lost_tokens"]).sort_values("arrival_s", kind="stable")
    prompt, reused, lost = (known[f"{k}_tokens"].to_numpy(dtype=float) for k in ("prompt", "reused", "lost"))
    per_bar = max(1, -(-len(known) // MAX_BARS))
    starts = np.arange(0, len(known), per_bar)
    with style(theme) as c:
        fig = figure(10, 4, theme=theme)
        bars, hist = fig.subplots(1, 2, width_ratios=(3, 1))
        base = np.zeros(len(starts))
        sizes = np.diff(np.append(starts, len(known)))
        parts = (("reused", reused, c.state), ("found and thrown away", lost, c.misplaced), ("computed", prompt - reused - lost, c.kv))
        for name, values, colour in parts:
            mean = np.add.reduceat(values, starts) / sizes if len(starts) else base
            bars.bar(starts + sizes / 2, mean, sizes * 0.9, bottom=base, color=colour, label=name)
            base = base + mean
        each = "" if per_bar == 1 else f", mean of {per_bar} neighbours"
        bars.set(xlabel="request, in order of arrival", ylabel=f"prompt (tokens{each})")
        bars.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
        hist.hist(lost[lost > 0], bins=20, color=c.misplaced)
        hist.set(xlabel="lost tokens, where any", ylabel="requests", title=f"{int((lost > 0).sum())} of {len(lost)} lost some")
        gone = len(requests) - len(known)
        fig.suptitle((title or f"Reuse of {len(known)} requests") + (f" ({gone} without a match yet left out)" if gone else ""))
    return fig
