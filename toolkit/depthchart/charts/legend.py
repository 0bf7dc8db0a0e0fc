"""Legend and footnotes of a checkpoint chart: only what occurs is explained."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.transforms import Affine2D

from depthchart.charts.marks import Marks
from depthchart.charts.placing import flow, text_width, wrap
from depthchart.charts.style import Palette

__all__ = ["Legend", "footnotes", "marker_styles"]

MOST_NOTES = 6
ROW, HANDLE, GAP = 14.0, 24.0, 16.0  # points


def marker_styles(c: Palette) -> dict[str, dict[str, Any]]:
    """How a line draws each kind of mark; colour and shape both tell the kinds apart."""
    return {
        "locked": {"marker": "o", "mfc": "none", "mec": c.locked, "mew": 1.3},
        "state": {"marker": "o", "mfc": c.state, "mec": c.paper, "mew": 0.6},
        "tombstone": {"marker": "o", "mfc": c.paper, "mec": c.tombstone, "mew": 1.2},
        "misplaced": {"marker": "D", "mfc": c.misplaced, "mec": c.paper, "mew": 0.6},
        "refused": {"marker": "x", "mec": c.refused, "mew": 1.3},
        "superseded": {"marker": "v", "mfc": "none", "mec": c.muted, "mew": 0.9},
    }


class Legend:
    """The kinds of marks that occur, set in rows of at most ``width`` points. Drawn by hand, since every width is
    known and matplotlib's own legend takes as long as the rest of the chart."""

    def __init__(self, marks: Marks, c: Palette, size: float, width: float) -> None:
        self._entries = _entries(marks, c)
        self._size = size
        widths = [HANDLE + 6 + text_width(label, size) + GAP for label, _ in self._entries]
        self._places = flow(widths, width + GAP)

    @property
    def height(self) -> float:
        """In points; 0 where nothing is shown."""
        return ROW * (self._places[-1][1] + 1) if self._places else 0.0

    def draw(self, fig: Figure, left: float, bottom: float) -> None:
        """Draw with the lower left corner at these points of the figure."""
        width, height = fig.get_size_inches()
        points = Affine2D().scale(1 / (72 * width), 1 / (72 * height)) + fig.transFigure
        for (label, mark), (x, row) in zip(self._entries, self._places, strict=True):
            at, y = left + x, bottom + self.height - ROW * (row + 0.5)
            if isinstance(mark, Rectangle):
                mark.set_bounds(at + 1, y - 3.2, HANDLE - 2, 6.4)
            elif mark.get_marker() == "":
                mark.set_data([at + 1, at + HANDLE - 1], [y, y])
            else:
                mark.set_data([at + HANDLE / 2], [y])
            mark.set_transform(points)
            fig.add_artist(mark)
            fig.text(at + HANDLE + 6, y, label, size=self._size, va="center_baseline", transform=points)


def _entries(marks: Marks, c: Palette) -> list[tuple[str, Rectangle | Line2D]]:
    nodes = marks.nodes
    status = set(nodes["status"])
    every: list[tuple[bool, str, Rectangle | Line2D]] = [
        (len(nodes) > 0, "KV of a node", _box(fc=c.kv, ec=c.kv_edge, lw=0.7)),
        ("state" in status, "state of this depth", _dot(color=c.state)),
        (
            "tombstone" in status,
            "tombstone: state evicted",
            _box(fc=c.paper, ec=c.tombstone, hatch="////", lw=0.7),
        ),
        (bool(marks.misplaced), "misplaced: arrow from its true depth", _dot(color=c.misplaced, marker="D")),
        (bool(marks.refused), "refused (why: below)", _dot(color=c.refused, marker="x")),
        (
            bool(marks.superseded),
            "tracked, not filed (superseded or pending)",
            _dot(mec=c.muted, mfc="none", marker="v"),
        ),
        (bool(nodes["kv_locks"].gt(0).any()), "KV locked", _box(fc="none", ec=c.locked, lw=1.8)),
        (bool(nodes["state_locks"].gt(0).any()), "state locked", _dot(mec=c.locked, mfc="none", ms=8)),
        (bool(marks.changed), "changed just now", _box(fc="none", ec=c.ink, lw=1.2, ls=(0, (2.5, 1.5)))),
        (bool(marks.reused), "reused from the tree", Line2D([], [], color=c.kv_edge, lw=1.6, marker="")),
        (bool(marks.rows), "computed, not in the tree", Line2D([], [], color=c.muted, ls=":", marker="")),
    ]
    return [(label, mark) for occurs, label, mark in every if occurs]


def footnotes(marks: Marks, size: float, width: float) -> list[str]:
    """The reasons of refusals by number, one line each of at most ``width`` points."""
    notes = []
    for number, reason in enumerate(marks.reasons[:MOST_NOTES], 1):
        mark = f"{number}.\u2002" if len(marks.reasons) > 1 else "×\u2002"
        notes.append(wrap(mark + reason.text, size, width)[0])
    if len(marks.reasons) > MOST_NOTES:
        notes.append(f"and {len(marks.reasons) - MOST_NOTES} further reasons")
    return notes


def _box(**how: Any) -> Rectangle:
    return Rectangle((0, 0), 1, 1, **how)


def _dot(**how: Any) -> Line2D:
    defaults: dict[str, Any] = {"marker": "o", "ls": "", "ms": 6}
    return Line2D([], [], **(defaults | how))
