"""A report as a PDF: vector figures and real text, on numbered A4 pages in landscape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from depthchart.charts.placing import fit_text, wrap
from depthchart.charts.style import figure, palette, style
from depthchart.files import whole_file
from depthchart.report.blocks import Block, Film, Heading, Listing, Markup, Picture, Prose, Table
from depthchart.report.columns import column_widths

__all__ = ["write_pdf"]

WIDTH, HEIGHT, MARGIN = 842.0, 595.0, 48.0  # points: A4 in landscape
ROOM = WIDTH - 2 * MARGIN
MOST_ROWS = 200  # of a table
FILM_PAGES = 6
BODY, CELL, MONO = 9.5, 7.5, 7.0  # sizes of text in points


def write_pdf(
    path: Path,
    title: str,
    lead: str,
    blocks: Sequence[Block],
    advance: Callable[[int, int], object] | None = None,
) -> Path:
    """Write the report whole; a film becomes a few of its pictures. ``advance`` is told after each page."""
    with style():
        pages = _Pages()
        pages.text(title, 17, weight="bold")
        pages.paragraph(lead)
        pages.gap(6)
        for number, heading in enumerate((b for b in blocks if isinstance(b, Heading)), 1):
            pages.text(f"{number}.  {heading.text}", BODY)
        for block, after in zip_longest(blocks, blocks[1:]):
            if isinstance(block, Heading) and isinstance(after, Picture | Film):
                pages.section = block.text  # its pages say so at their foot
            else:
                _set(pages, block)
        with whole_file(path) as draft, mpl.rc_context({"pdf.fonttype": 42}), _opened(draft, title) as pdf:
            for number, page in enumerate(pages.done, 1):
                _print(pdf, page, title, f"{number} of {len(pages.done)}")
                if advance is not None:
                    advance(number, len(pages.done))
    return path


def _opened(path: Path, title: str) -> PdfPages:
    return PdfPages(path, metadata={"Title": title, "Creator": "depthchart", "CreationDate": None})


def _set(pages: _Pages, block: Block) -> None:
    match block:
        case Heading(text):
            pages.heading(text)
        case Prose(text) | Markup(plain=text):
            pages.paragraph(text)
        case Table():
            pages.table(block)
        case Listing(lines, summary):
            pages.listing(lines, summary)
        case Picture(number, drawing, caption):
            pages.picture(drawing, f"Figure {number}. {caption}")
        case Film():
            _set_film(pages, block)


def _set_film(pages: _Pages, film: Film) -> None:
    count = len(film.frames)
    wanted = min(FILM_PAGES, count)
    chosen = sorted({round(i * (count - 1) / max(1, wanted - 1)) for i in range(wanted)} | {film.start})
    for at in chosen:
        frame = film.frames[at]
        told = f" {'; '.join(frame.words[:3])}." if frame.words else ""
        caption = f"Figure {film.number}, picture {at + 1} of {count}. {film.caption} {frame.label}.{told}"
        pages.picture(frame.draw(), caption)


def _print(pdf: PdfPages, page: _Printed, title: str, number: str) -> None:
    """Centre the figure at the top of a page, with its caption below. The page reaches beyond the figure."""
    fig, caption = page.figure, page.caption
    width, height = (72 * float(inches) for inches in fig.get_size_inches())
    left = (WIDTH - width) / 2
    below = HEIGHT - height - (0 if width == WIDTH else 16)
    box = Bbox([[-left / 72, -below / 72], [(WIDTH - left) / 72, (HEIGHT - below) / 72]])
    muted = palette().muted

    def write(x: float, y: float, text: str, size: float, **how: Any) -> Any:
        return fig.text((x - left) / width, (y - below) / height, text, size=size, color=muted, **how)

    foot = f"{title}  ·  {page.section}" if page.section else title
    added = [
        write(MARGIN, 16, fit_text(foot, 7, ROOM * 0.8), 7),
        write(WIDTH - MARGIN, 16, number, 7, ha="right"),
    ]
    lines = wrap(caption, 8, ROOM) if caption else []
    added += [write(MARGIN, below - 14 - 10.5 * at, line, 8) for at, line in enumerate(lines[:4])]
    try:
        pdf.savefig(fig, bbox_inches=box)
    finally:
        for text in added:
            text.remove()


class _Printed(NamedTuple):
    """One page: a figure with its caption, or a page of text."""

    figure: Figure
    caption: str
    section: str


class _Pages:
    """Pages as they fill; ``section`` is what the next ones belong to."""

    def __init__(self) -> None:
        self.done: list[_Printed] = []
        self.section = ""
        self._page: Figure | None = None
        self._y = 0.0

    def text(self, line: str, size: float, *, x: float = 0.0, drop: bool = True, **how: Any) -> None:
        """One line ``x`` points from the margin; ``drop`` moves on below it."""
        page = self._room(size * 1.4)
        page.text((MARGIN + x) / WIDTH, (self._y - size) / HEIGHT, line, size=size, **how)
        if drop:
            self._y -= size * 1.45

    def gap(self, points: float) -> None:
        self._y -= points

    def heading(self, text: str) -> None:
        """Begin a section; not at the foot of a page."""
        self.section = text
        if self._page is not None and self._y < HEIGHT * 0.3:
            self._page = None
        self.gap(14)
        self.text(text, 13, weight="bold")
        self.gap(2)

    def paragraph(self, text: str) -> None:
        for line in wrap(text, BODY, ROOM * 0.86) if text else ():
            self.text(line, BODY)
        self.gap(4)

    def listing(self, lines: Sequence[str], summary: str) -> None:
        if summary:
            self.text(summary, CELL + 0.5, weight="bold")
        for line in lines:
            self.text(fit_text(line, MONO, ROOM * 0.8), MONO, family="DejaVu Sans Mono")
        self.gap(6)

    def picture(self, drawing: Figure, caption: str) -> None:
        """A page of its own; text goes on after it."""
        self._page = None
        self.done.append(_Printed(drawing, caption, self.section))

    def table(self, table: Table) -> None:
        """Rows over as many pages as they need, the head on each."""
        rows = [[str(cell) for cell in row] for row in table.rows]
        head, body = (
            [cell.replace("_", " ") for cell in rows[0]],
            rows[1:],
        )  # so that it can be broken in lines
        widths = column_widths([head, *body[:MOST_ROWS]], CELL, ROOM)
        if table.caption:
            self.text(fit_text(table.caption, CELL + 0.5, ROOM), CELL + 0.5, color=palette().muted)
        self._row(head, widths, table.numeric, weight="bold")
        for row in body[:MOST_ROWS]:
            if self._y - self._height(row, widths) < MARGIN:
                self._page = None
                self._row(head, widths, table.numeric, weight="bold")
            self._row(row, widths, table.numeric)
        if len(body) > MOST_ROWS:
            self.text(f"the first {MOST_ROWS} of {len(body):,} rows", CELL, color=palette().muted)
        self.gap(8)

    def _height(self, row: Sequence[str], widths: Sequence[float]) -> float:
        return (
            max(len(_cell_lines(cell, width)) for cell, width in zip(row, widths, strict=True)) * CELL * 1.45
        )

    def _row(self, row: Sequence[str], widths: Sequence[float], numeric: Sequence[int], **how: Any) -> None:
        self._room(self._height(row, widths))
        top, left, lowest = self._y, 0.0, self._y
        for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
            self._y = top
            for line in _cell_lines(cell, width):
                x = left + width - 8 if column in numeric else left
                self.text(line, CELL, x=x, ha="right" if column in numeric else "left", **how)
            left, lowest = left + width, min(lowest, self._y)
        self._y = lowest

    def _room(self, height: float) -> Figure:
        """The page under way, or a new one where ``height`` points do not fit on it."""
        if self._page is None or self._y - height < MARGIN:
            self._page = figure(WIDTH / 72, HEIGHT / 72, layout="none")
            self.done.append(_Printed(self._page, "", self.section))
            self._y = HEIGHT - MARGIN
        return self._page


def _cell_lines(cell: str, width: float) -> list[str]:
    return [fit_text(line, CELL, width - 6) for line in wrap(cell, CELL, width - 8)]
