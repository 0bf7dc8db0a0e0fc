"""How values show themselves: small HTML tables, ruler drawings as SVG, and the same as plain text.

Colours are mid-tones of the Okabe-Ito palette that stay apart for colour-blind readers; text takes the
page's own colour (``currentColor``), so that light and dark themes both work. No plotting library.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple, Protocol

__all__ = [
    "Grids",
    "RulerRow",
    "geometry_html",
    "geometry_text",
    "ruler_svg",
    "ruler_text",
    "table_html",
    "table_text",
]

MAX_TICKS = 40  # ticks that stay apart on one row
_BLUE, _ORANGE, _GREY = "#3d8fc9", "#d9742b", "#8a8a8a"
_RULED = {
    "page_size": _GREY,
    "chunk_width": _GREY,
    "tree_page": _BLUE,
    "checkpoint_grid": _ORANGE,
    "track_grid": _ORANGE,
}  # the grids that a ruler shows, and their colours


class RulerRow(NamedTuple):
    """One row of a ruler: ticks at every multiple of ``step`` tokens. ``colour`` is a CSS colour."""

    name: str
    step: int
    colour: str = _GREY


class Grids(Protocol):
    """What is shown of a geometry; its ``repr`` heads the table."""

    @property
    def checkpoint_grid(self) -> int: ...

    def grids(self) -> list[tuple[str, int, str]]:
        """Name, tokens and meaning of each grid."""


def geometry_html(geometry: Grids) -> str:
    """The grids of a geometry as an HTML table and a ruler drawing (for notebooks and reports)."""
    table = table_html([("grid", "tokens", "what it is"), *geometry.grids()], numeric=(1,))
    drawing = ruler_svg(_ruler_rows(geometry), 2 * geometry.checkpoint_grid)
    return f'<div class="depthchart-geometry"><code>{escape(repr(geometry))}</code>{table}{drawing}</div>'


def geometry_text(geometry: Grids) -> str:
    """The same as plain text, for terminals: a table and a ruler."""
    table = table_text([("grid", "tokens", "what it is"), *geometry.grids()], numeric=(1,))
    return f"{geometry!r}\n\n{table}\n\n{ruler_text(_ruler_rows(geometry), 2 * geometry.checkpoint_grid)}"


def table_html(rows: Sequence[Sequence[object]], *, numeric: Sequence[int] = ()) -> str:
    """An HTML table; the first row is its head, the columns in ``numeric`` are set to the right."""
    lines = []
    for at, row in enumerate(rows):
        tag = "th" if at == 0 else "td"
        cells = "".join(
            f'<{tag} style="text-align:{"right" if col in numeric else "left"};padding:2px 10px">'
            f"{escape(str(cell))}</{tag}>"
            for col, cell in enumerate(row)
        )
        lines.append(f"<tr>{cells}</tr>")
    head, body = lines[:1], lines[1:]
    return (
        '<table style="border-collapse:collapse;margin:6px 0;color:inherit"><thead>'
        f"{''.join(head)}</thead><tbody>{''.join(body)}</tbody></table>"
    )


def table_text(rows: Sequence[Sequence[object]], *, numeric: Sequence[int] = ()) -> str:
    """A table as aligned plain text; the first row is its head."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[col]) for row in cells) for col in range(len(cells[0]))] if cells else []

    def line(row: Sequence[str]) -> str:
        parts = [
            c.rjust(w) if i in numeric else c.ljust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(parts).rstrip()

    return "\n".join(
        [line(row) for row in cells[:1]] + ["  ".join("-" * w for w in widths)] + [line(r) for r in cells[1:]]
    )


def ruler_svg(rows: Sequence[RulerRow], span: int, *, width: int = 760) -> str:
    """Rows of ticks over the token axis ``0..span`` as an inline SVG, ``width`` pixels wide.

    A row with more than 40 ticks shows every n-th and says so; a step beyond the axis says where it is.
    """
    left, right, pitch, top = 140, 190, 28, 16
    scale = (width - left - right) / span
    height = top + pitch * len(rows) + 40
    base = top + pitch * len(rows) + 6
    parts = [_svg_row(row, span, top + pitch * i, left, scale) for i, row in enumerate(rows)]
    parts.append(
        f'<path d="M{left} {base}H{left + span * scale:.1f}" stroke="currentColor" stroke-width="1"/>'
    )
    for depth in _axis_labels(span):
        x = left + depth * scale
        parts.append(f'<path d="M{x:.1f} {base}v5" stroke="currentColor"/>')
        parts.append(f'<text x="{x:.1f}" y="{base + 18}" text-anchor="middle">{depth}</text>')
    parts.append(f'<text x="{left - 10}" y="{base + 18}" text-anchor="end">depth [tokens]</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="ruler of grids" width="{width}" '
        f'height="{height}" viewBox="0 0 {width} {height}" style="max-width:100%" fill="currentColor" '
        f'font-family="sans-serif" font-size="12">{"".join(parts)}</svg>'
    )


def ruler_text(rows: Sequence[RulerRow], span: int, *, columns: int = 64) -> str:
    """The ruler in characters: ``|`` at ticks over ``columns`` cells of the token axis ``0..span``."""
    pad = max([len(row.name) for row in rows] + [len("depth [tokens]")]) + 2
    lines = []
    for row in rows:
        every, note = _thin(row.step, span, columns // 2)
        bar = ["-"] * (columns + 1)
        for depth in range(0, span + 1, row.step * every):
            bar[round(depth * columns / span)] = "|"
        lines.append(f"{row.name:<{pad}}{''.join(bar)}  {note}")
    axis = [" "] * (columns + 1 + len(str(span)))
    for depth in _axis_labels(span, most=3):
        at = round(depth * columns / span)
        axis[at : at + len(str(depth))] = str(depth)
    return "\n".join([*lines, f"{'depth [tokens]':<{pad}}{''.join(axis).rstrip()}"])


# --- helpers ----------------------------------------------------------------------------------------------


def _thin(step: int, span: int, most: int) -> tuple[int, str]:
    """Every how many-th tick is drawn so that at most ``most`` are, and the note that says so."""
    if step > span:
        return 1, f"{step} (first beyond the axis)"
    ticks = span // step
    every = -(-ticks // most)
    # a divisor of the number of ticks keeps the axis' end on a tick, where one lies near
    every = next((n for n in range(every, 2 * every) if ticks % n == 0), every)
    return every, f"{step}" if every == 1 else f"{step} (every {_ordinal(every)} shown)"


def _ordinal(number: int) -> str:
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def _svg_row(row: RulerRow, span: int, y: int, left: int, scale: float) -> str:
    every, note = _thin(row.step, span, MAX_TICKS)
    end = left + span * scale
    depths = range(0, span + 1, row.step * every)
    ticks = "".join(f"M{left + depth * scale:.1f} {y}v16" for depth in depths)
    return (
        f'<text x="{left - 10}" y="{y + 12}" text-anchor="end">{escape(row.name)}</text>'
        f'<path d="M{left} {y + 8}H{end:.1f}" stroke="{row.colour}" stroke-width="1" opacity="0.5"/>'
        f'<path d="{ticks}" stroke="{row.colour}" stroke-width="2" fill="none"/>'
        f'<text x="{end + 12:.1f}" y="{y + 12}">{escape(note)}</text>'
    )


def _axis_labels(span: int, most: int = 5) -> list[int]:
    """Labelled depths: halves or quarters of the axis where they are whole, else its ends."""
    for parts in (4, 2):
        if parts < most and span % parts == 0:
            return [span * i // parts for i in range(parts + 1)]
    return [0, span]


def _ruler_rows(geometry: Grids) -> list[RulerRow]:
    return [RulerRow(name, tokens, _RULED[name]) for name, tokens, _ in geometry.grids() if name in _RULED]
