"""Legend and footnotes of a checkpoint chart: only what occurs is explained."""

from __future__ import annotations

from typing import Any

from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from depthchart.charts.marks import Marks
from depthchart.charts.placing import wrap
from depthchart.charts.style import Palette

__all__ = ["footnotes", "legend_handles", "marker_styles"]

MOST_NOTES = 6


def marker_styles(c: Palette) -> dict[str, dict[str, Any]]:
    """How ``Axes.scatter`` draws each kind of mark; colour and shape both tell the kinds apart."""
    return {
        "locked": {"marker": "o", "facecolors": "none", "edgecolors": c.locked, "linewidths": 1.3},
        "state": {"marker": "o", "facecolors": c.state, "edgecolors": c.paper, "linewidths": 0.6},
        "tombstone": {"marker": "o", "facecolors": c.paper, "edgecolors": c.tombstone, "linewidths": 1.2},
        "misplaced": {"marker": "D", "facecolors": c.misplaced, "edgecolors": c.paper, "linewidths": 0.6},
        "refused": {"marker": "x", "color": c.refused, "linewidths": 1.3},
        "superseded": {"marker": "v", "facecolors": "none", "edgecolors": c.muted, "linewidths": 0.9},
    }


def legend_handles(marks: Marks, c: Palette) -> list[Any]:
    """One labelled handle for each kind of mark that the chart shows."""
    nodes = marks.nodes
    status = set(nodes["status"])
    every = [
        (len(nodes) > 0, Patch(fc=c.kv, ec=c.kv_edge, label="KV of a node")),
        ("state" in status, _dot("state of this depth", color=c.state)),
        (
            "tombstone" in status,
            Patch(fc=c.paper, ec=c.tombstone, hatch="////", label="tombstone: state evicted"),
        ),
        (bool(marks.misplaced), _dot("misplaced: arrow from its true depth", color=c.misplaced, marker="D")),
        (bool(marks.refused), _dot("refused (why: below)", color=c.refused, marker="x")),
        (
            bool(marks.superseded),
            _dot("tracked, not filed (superseded or pending)", mec=c.muted, mfc="none", marker="v"),
        ),
        (bool(nodes["kv_locks"].gt(0).any()), Patch(fc="none", ec=c.locked, lw=1.8, label="KV locked")),
        (bool(nodes["state_locks"].gt(0).any()), _dot("state locked", mec=c.locked, mfc="none", ms=8)),
        (bool(marks.reused), Line2D([], [], color=c.state, lw=1.6, label="reused from the tree")),
        (bool(marks.rows), Line2D([], [], color=c.muted, ls=":", label="computed, not in the tree")),
    ]
    return [handle for occurs, handle in every if occurs]


def footnotes(marks: Marks, size: float, width: float) -> list[str]:
    """The reasons of refusals by number, one line each of at most ``width`` points."""
    notes = []
    for number, reason in enumerate(marks.reasons[:MOST_NOTES], 1):
        mark = f"{number}  " if len(marks.reasons) > 1 else "×  "
        notes.append(wrap(mark + reason.text, size, width)[0])
    if len(marks.reasons) > MOST_NOTES:
        notes.append(f"and {len(marks.reasons) - MOST_NOTES} further reasons")
    return notes


def _dot(label: str, **how: Any) -> Line2D:
    defaults: dict[str, Any] = {"marker": "o", "ls": "", "ms": 6}
    return Line2D([], [], label=label, **(defaults | how))
