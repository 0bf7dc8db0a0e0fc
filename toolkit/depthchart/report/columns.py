"""How wide the columns of a printed table are."""

from __future__ import annotations

from collections.abc import Sequence

from depthchart.charts.placing import text_width

__all__ = ["column_widths"]

AIR = 14.0  # points between columns


def column_widths(rows: Sequence[Sequence[str]], size: float, room: float) -> list[float]:
    """Width of each column in points, at most ``room`` together where words allow: the widest columns give way and will
    be wrapped. The first row is the head, in bold."""
    wide = [max(text_width(row[at], size) for row in rows[1:] or rows) for at in range(len(rows[0]))]
    least = [
        max(text_width(word, size, "bold") for word in (cell.split() or [""])) * 1.06 for cell in rows[0]
    ]
    widths = [max(a, b) * 1.04 + AIR for a, b in zip(wide, least, strict=True)]
    while sum(widths) > room:
        free = [at for at, width in enumerate(widths) if width > least[at] * 1.04 + AIR]
        if not free:
            return [width * room / sum(widths) for width in widths]
        widest = max(free, key=lambda at: widths[at])
        over = sum(widths) - room
        below = max((widths[at] for at in free if widths[at] < widths[widest]), default=0.0)
        widths[widest] = max(least[widest] * 1.04 + AIR, below - 1.0, widths[widest] - over)
    return widths
