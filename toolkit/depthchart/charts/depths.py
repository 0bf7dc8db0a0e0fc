"""The depth axis that charts share: tick steps, number format and ruler rows. Depths are in tokens."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log10

import numpy as np
import numpy.typing as npt

from depthchart.geometry import Geometry

__all__ = ["Ruler", "axis_step", "depth_text", "geometry_text", "rulers"]

MIN_TICK_GAP_PT = 5.0


@dataclass(frozen=True, slots=True)
class Ruler:
    """One row of ticks: every ``step`` tokens, a multiple of the grid's own ``unit``."""

    name: str
    unit: int
    step: int

    @property
    def label(self) -> str:
        """For example ``page 64``, or ``page 1 (1 tick in 256)`` where not every line fits."""
        thinned = f" (1 in {self.step // self.unit:,})" if self.step > self.unit else ""
        return f"{self.name} {self.unit}{thinned}"

    def ticks(self, low: float, high: float) -> npt.NDArray[np.int64]:
        """Depths of the ticks within ``[low, high]``."""
        return np.arange(ceil(low / self.step), floor(high / self.step) + 1, dtype=np.int64) * self.step


def rulers(geometry: Geometry, span_tokens: float, width_pt: float) -> list[Ruler]:
    """Chunk, page and tree page, and the checkpoint grid where it is not the tree page."""
    grids = [
        ("chunk", geometry.chunk_width),
        ("page", geometry.page_size),
        ("tree page", geometry.tree_page),
    ]
    if geometry.checkpoint_grid != geometry.tree_page:
        grids.append(("checkpoint grid", geometry.checkpoint_grid))
    return [Ruler(name, unit, _thinned(unit, span_tokens, width_pt)) for name, unit in grids]


def geometry_text(geometry: Geometry) -> str:
    """The tree page as a product, for a subtitle."""
    pool = f" × pool {geometry.index_pool}" if geometry.index_pool > 1 else ""
    return f"page {geometry.page_size} × DCP {geometry.dcp_size}{pool} = tree page {geometry.tree_page:,}"


def axis_step(span_tokens: float, width_pt: float, unit: int = 1) -> int:
    """Distance of the axis labels: tree pages while the numbers stay short, else round numbers."""
    least = span_tokens * 46 / width_pt
    if unit >= 8 and span_tokens < 10_000:
        return unit * 2 ** max(0, ceil(np.log2(least / unit)))
    power = 10 ** floor(log10(max(least, 1)))
    return max(1, next(int(power * f) for f in (1, 2, 5, 10) if power * f >= least))


def depth_text(depth: float) -> str:
    """A depth in few characters: 512, 9,216, 12k, 12.5k, 1.2M; exact, or with all its digits."""
    whole = round(depth)
    if whole >= 1_000_000 and whole % 100_000 == 0:
        return f"{whole / 1_000_000:g}M"
    if whole >= 10_000 and whole % 100 == 0:
        return f"{whole / 1_000:g}k"
    return f"{whole:,}"


def _thinned(unit: int, span_tokens: float, width_pt: float) -> int:
    gap = unit * width_pt / span_tokens
    return unit if gap >= MIN_TICK_GAP_PT else unit * 2 ** ceil(np.log2(MIN_TICK_GAP_PT / gap))
