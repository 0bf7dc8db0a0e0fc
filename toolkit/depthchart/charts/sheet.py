"""Sizes of a checkpoint chart, all known before anything is drawn: points on paper, tokens on the depth axis."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ROW", "TEXT", "Sheet"]

TEXT = 7.0  # size of the smallest text, in points
ROW = 12.0  # height of a ruler row
LEFT, RIGHT, TOP, WIDTH = 118.0, 14.0, 40.0, 720.0
TALLEST = 540.0  # what a laptop's screen shows without scrolling


@dataclass(frozen=True, slots=True)
class Sheet:
    """Where things go: ``low`` to ``high`` tokens over ``lanes`` lanes, below ``ruler_rows`` rows of ticks and above
    ``below`` points of axis labels, legend and footnotes. y runs downwards from the top of the plot."""

    low: float
    high: float
    lanes: int
    ruler_rows: int
    below: float

    @property
    def width(self) -> float:
        """Of the whole figure, in points."""
        return WIDTH

    @property
    def height(self) -> float:
        """Of the whole figure, in points."""
        return TOP + self.plot_height + self.below

    @property
    def plot_width(self) -> float:
        """Of the depth axis, in points."""
        return WIDTH - LEFT - RIGHT

    @property
    def plot_height(self) -> float:
        """Of rulers and lanes together, in points; three to spare for marks below the last lane."""
        return self.head + self.pitch * self.lanes + 3

    @property
    def head(self) -> float:
        """Height of the ruler rows, in points."""
        return ROW * self.ruler_rows + 4

    @property
    def pitch(self) -> float:
        """From lane to lane, in points: as wide as the page allows."""
        return max(1.5, min(24.0, (TALLEST - TOP - self.below - self.head) / self.lanes))

    @property
    def axes(self) -> tuple[float, float, float, float]:
        """Left, bottom, width and height of the plot as shares of the figure."""
        return LEFT / WIDTH, self.below / self.height, self.plot_width / WIDTH, self.plot_height / self.height

    @property
    def margin(self) -> float:
        """Room for names to the left of the plot, in points."""
        return LEFT - 12

    @property
    def half(self) -> float:
        """Half the height of a node's bar, in points."""
        return min(6.5, self.pitch * 0.29)

    @property
    def dot(self) -> float:
        """Diameter of a state's mark, in points."""
        return min(8.0, max(2.0, self.pitch * 0.45))

    @property
    def readable(self) -> bool:
        """Whether a bar is high enough for text inside it."""
        return self.half >= 3.8

    @property
    def named(self) -> bool:
        """Whether the lanes' names do not touch one another."""
        return self.pitch >= 7.8

    def x(self, depth: float) -> float:
        """Points from the left end of the axis to a depth in tokens."""
        return (depth - self.low) * self.plot_width / (self.high - self.low)

    def depth(self, x: float) -> float:
        """The depth in tokens at ``x`` points from the left end."""
        return self.low + x * (self.high - self.low) / self.plot_width

    def y(self, lane: int) -> float:
        """Middle of a lane's bars."""
        return self.head + (lane + 0.42) * self.pitch

    def gap(self, lane: int) -> float:
        """Middle of the gap between a lane's bars and those below."""
        return self.head + (lane + 0.92) * self.pitch
