"""Finding room for text: widths in points, and a list of taken rectangles."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

__all__ = ["Room", "fit_text", "flow", "text_width", "wrap"]

Rect = tuple[float, float, float, float]  # left, top, right, bottom in points


@lru_cache(maxsize=4096)
def text_width(text: str, size: float, weight: str = "normal") -> float:
    """Width of one line in points, in the style's font."""
    font = FontProperties(family="DejaVu Sans", size=size, weight=weight)
    return float(text_to_path.get_text_width_height_descent(text, font, ismath=False)[0])


def fit_text(text: str, size: float, width: float) -> str:
    """``text``, or its beginning and an ellipsis, no wider than ``width`` points."""
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + "…", size) > width:
        text = text[:-1]
    return text.rstrip() + "…"


def wrap(text: str, size: float, width: float) -> list[str]:
    """``text`` in lines no wider than ``width`` points."""
    characters = max(8, int(width / text_width("n", size)))
    return textwrap.wrap(text, characters) or [""]


def flow(widths: list[float], width: float) -> list[tuple[float, int]]:
    """Left edge and row (0 is the first) of items set one after another, with a new row where one is full."""
    places: list[tuple[float, int]] = []
    x, row = 0.0, 0
    for item in widths:
        if x and x + item > width:
            x, row = 0.0, row + 1
        places.append((x, row))
        x += item
    return places


class Room:
    """Taken rectangles in points, y downwards. A label gets the first free candidate, or none."""

    def __init__(self, width: float, height: float) -> None:
        self._bounds = (0.0, 0.0, width, height)
        self._taken = np.empty((64, 4))
        self._count = 0

    def take(self, rect: Rect) -> None:
        """Mark a rectangle as occupied."""
        if self._count == len(self._taken):
            self._taken = np.concatenate([self._taken, np.empty_like(self._taken)])
        self._taken[self._count] = rect
        self._count += 1

    def free(self, rect: Rect) -> bool:
        """Whether a rectangle lies inside the bounds and touches nothing taken."""
        left, top, right, bottom = rect
        if (
            left < self._bounds[0]
            or top < self._bounds[1]
            or right > self._bounds[2]
            or bottom > self._bounds[3]
        ):
            return False
        taken = self._taken[: self._count]
        hits = (taken[:, 0] < right) & (taken[:, 2] > left) & (taken[:, 1] < bottom) & (taken[:, 3] > top)
        return not bool(hits.any())

    def first_free(self, candidates: Iterable[Rect]) -> Rect | None:
        """Take and return the first free candidate."""
        for rect in candidates:
            if self.free(rect):
                self.take(rect)
                return rect
        return None
