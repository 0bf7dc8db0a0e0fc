"""Many boxes or lines as one path each: a chart of hundreds of nodes is drawn several times faster than bar by bar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path

__all__ = ["Box", "Segment", "add_boxes", "add_lines", "add_marks"]

Box = tuple[float, float, float, float]
"""Left, top, right and bottom, in the data of the axes."""
Segment = Sequence[tuple[float, float]]
"""The two ends of a line, in the data of the axes."""

_CLOSED = (Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY)


def add_boxes(ax: Axes, boxes: Sequence[Box], **how: Any) -> None:
    """Boxes of one look, as one patch; ``how`` are properties of a patch. The limits of the axes stay."""
    if not boxes:
        return
    a, t, b, s = np.asarray(boxes, dtype=float).T
    corners = np.stack([a, t, b, t, b, s, a, s, a, t], axis=1).reshape(-1, 2)
    patch = PathPatch(Path(corners, np.tile(_CLOSED, len(boxes))), **{"snap": True, **how})
    ax.add_artist(patch)


def add_lines(ax: Axes, segments: Sequence[Segment], **how: Any) -> None:
    """Lines of one look, as one patch; ``how`` are properties of a patch. The limits of the axes stay."""
    if not len(segments):
        return
    ends = np.asarray(segments, dtype=float).reshape(-1, 2)
    path = Path(ends, np.tile((Path.MOVETO, Path.LINETO), len(segments)))
    path.should_simplify = False  # ticks that lie close would be merged
    ax.add_artist(PathPatch(path, **{"facecolor": "none", "capstyle": "butt", **how}))


def add_marks(ax: Axes, xs: Sequence[float], ys: Sequence[float], **how: Any) -> None:
    """Markers of one look; ``how`` are properties of a line. The limits of the axes stay."""
    ax.add_artist(Line2D(xs, ys, linestyle="", **how))
