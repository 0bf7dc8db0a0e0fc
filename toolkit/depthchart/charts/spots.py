"""Parts of a figure that mean something: where they lie in its picture, so that an explorer can tell what was clicked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = ["Spot", "mark_spot", "spots"]

_KEPT = "_depthchart_spots"


class Spot(NamedTuple):
    """A box in a picture, in shares of its width and height from the upper left corner; ``key`` says what it shows,
    ``tip`` tells it in words."""

    key: str
    left: float
    top: float
    right: float
    bottom: float
    tip: str


class _Marked(NamedTuple):
    axes: Axes
    key: str
    box: tuple[float, float, float, float]
    reach: float
    tip: str


def mark_spot(ax: Axes, key: str, box: Sequence[float], tip: str, *, reach: float = 0.0) -> None:
    """Remember a box of an axes' data (x, y, x, y), widened by ``reach`` points on every side."""
    fig = ax.get_figure(root=True)
    assert fig is not None
    a, b, c, d = (float(value) for value in box)
    kept: list[_Marked] = fig.__dict__.setdefault(_KEPT, [])
    kept.append(_Marked(ax, key, (a, b, c, d), reach, tip))


def spots(fig: Figure) -> list[Spot]:
    """What was marked, in order. Ask when the figure has been written as a picture: only then is its layout known."""
    kept: list[_Marked] = fig.__dict__.get(_KEPT, [])
    wide, high = (float(size) for size in fig.bbox.size)
    pixels = fig.dpi / 72
    found = []
    for ax, key, (x0, y0, x1, y1), reach, tip in kept:
        (a, b), (c, d) = ax.transData.transform([(x0, y0), (x1, y1)]).tolist()
        left, right = sorted((a, c))
        low, top = sorted((b, d))
        air = reach * pixels
        found.append(
            Spot(
                key,
                (left - air) / wide,
                1 - (top + air) / high,
                (right + air) / wide,
                1 - (low - air) / high,
                tip,
            )
        )
    return found
