"""One moment of a run, ready to be shown: the picture of its tree, a headline, and what happened just then."""

from __future__ import annotations

from collections import Counter

from matplotlib.figure import Figure

from depthchart import frames
from depthchart.charts.checkpoint import checkpoint_chart
from depthchart.columns import STATUS
from depthchart.geometry import Geometry
from depthchart.rewind import Moment, Rewind
from depthchart.told import told

__all__ = ["headline", "moment_chart", "moment_words"]

MOST_WORDS = 8
_NOUNS = {"state": "state", "misplaced": "misplaced state", "tombstone": "tombstone", "bare": "bare node"}


def moment_chart(
    rewind: Rewind,
    moment: Moment,
    geometry: Geometry,
    *,
    request: str = "",
    theme: str = "light",
    max_nodes: int = 200,
    clock: bool = True,
) -> Figure:
    """The checkpoint chart at a moment, on a depth axis that stays the same for the whole run.

    What has just changed is framed. Decisions are those of the requests that run at that moment; of ``request`` alone
    where one is given, with the nodes of its path only. ``clock=False`` leaves out the time, where it means nothing.
    """
    nodes = frames.nodes(rewind.at(moment.count))
    if request:
        nodes = nodes[nodes["node_id"].isin(rewind.nodes_of(request, moment.count))]
    asked = [request] if request else rewind.running(moment)
    checkpoints = frames.checkpoints(rewind.decisions(asked, moment.count))
    # a misplaced state is shown by its node; where that is gone, there is nothing to show any more
    gone = checkpoints["outcome"].eq("misplaced") & ~checkpoints["node_id"].isin(nodes["node_id"])
    of = f" of {request}" if request else ""
    return checkpoint_chart(
        nodes,
        checkpoints[~gone],
        geometry,
        title=f"The tree{of} in step {moment.step:,}" + (f", at {moment.time_s:,.2f} s" if clock else ""),
        theme=theme,
        max_nodes=max_nodes,
        window=(0.0, max(1.0, rewind.deepest * 1.1)),
        highlight=rewind.changed(moment),
    )


def headline(rewind: Rewind, moment: Moment, *, clock: bool = True) -> str:
    """The tree in numbers: ``step 34 · 12.31 s · 63 nodes: 40 states, 3 tombstones, 20 bare nodes · KV …``."""
    nodes = rewind.at(moment.count).nodes.values()
    counts = Counter(node.status for node in nodes)
    parts = [_count(counts[status], _NOUNS[status]) for status in STATUS if counts[status]]
    tokens = sum(node.end - node.start for node in nodes)
    what = (
        f"{_count(len(nodes), 'node')}: {', '.join(parts)} · KV of {tokens:,} tokens" if nodes else "no nodes"
    )
    time = f" · {moment.time_s:,.2f} s" if clock else ""
    return f"step {moment.step:,}{time} · {what}"


def moment_words(rewind: Rewind, moment: Moment, most: int = MOST_WORDS) -> list[str]:
    """What happened in a moment, one clause each; at most ``most``, broken invariants never left out."""
    events = [entry.event for entry in rewind.entries[moment.first : moment.count]]
    lines = [line for line in map(told, events) if line]
    if len(lines) <= most:
        return lines
    broken = [line for line in lines if line.startswith("BROKEN")][:most]
    rest = [line for line in lines if line not in broken][: most - len(broken)]
    return [*broken, *rest, f"and {len(lines) - len(broken) - len(rest)} more"]


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
