"""Reports: prose, tables and figures, written as one offline HTML file, as a PDF, or as the figures' data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from depthchart.errors import one_of
from depthchart.files import write_text
from depthchart.report.blocks import Block, Film, Frame, Heading, Listing, Markup, Picture, Prose, Table
from depthchart.report.data import write_data
from depthchart.report.html import render
from depthchart.report.pdf import write_pdf

__all__ = ["FORMATS", "Advance", "Page", "frame_rows"]

FORMATS = ("html", "pdf")
Advance = Callable[[int, int], object]
"""Called with what is done and what there is to do; whatever it raises ends the writing."""


@dataclass
class Page:
    """A report under way. Text that is passed in is escaped; add what is HTML already with ``html``."""

    title: str
    lead: str = ""
    blocks: list[Block] = field(default_factory=list)
    _figures: int = 0

    def section(self, heading: str, *paragraphs: str) -> Page:
        """Begin a section with a heading and paragraphs of plain text."""
        number = 1 + sum(isinstance(block, Heading) for block in self.blocks)
        self.blocks.append(Heading(heading, f"section-{number}"))
        return self.prose(*paragraphs)

    def prose(self, *paragraphs: str) -> Page:
        """Add paragraphs of plain text."""
        self.blocks += [Prose(text) for text in paragraphs]
        return self

    def html(self, markup: str, plain: str = "") -> Page:
        """Add trusted HTML, and the text that stands for it in a PDF."""
        self.blocks.append(Markup(markup, plain))
        return self

    def figure(self, fig: Figure, caption: str, data: Mapping[str, pd.DataFrame] | None = None) -> Page:
        """Add a figure with its caption, and the frames that it was drawn from by name."""
        self._figures += 1
        self.blocks.append(Picture(self._figures, fig, caption, dict(data or {})))
        return self

    def film(
        self,
        frames: Sequence[Frame],
        caption: str,
        data: Mapping[str, pd.DataFrame] | None = None,
        start: int = -1,
    ) -> Page:
        """Add pictures to go through with a slider; ``start`` is the one that is shown first."""
        if frames:
            self._figures += 1
            self.blocks.append(
                Film(self._figures, tuple(frames), caption, start % len(frames), dict(data or {}))
            )
        return self

    def table(self, rows: Sequence[Sequence[object]], numeric: Sequence[int] = (), caption: str = "") -> Page:
        """Add a table; its first row is the head."""
        self.blocks.append(Table(rows, tuple(numeric), caption))
        return self

    def listing(self, lines: Sequence[str], summary: str = "") -> Page:
        """Add preformatted text, folded under ``summary`` where one is given."""
        self.blocks.append(Listing(tuple(lines), summary))
        return self

    def provenance(self, facts: Mapping[str, object]) -> Page:
        """Add the section that says where the numbers come from."""
        self.section("Provenance")
        return self.table([("what", "value"), *((name, str(value)) for name, value in facts.items())])

    def render(self, advance: Advance | None = None) -> str:
        """The whole page as HTML text."""
        return render(self.title, self.lead, self.blocks, advance)

    def write(
        self,
        path: str | Path,
        *,
        format: str | None = None,
        data: str | Path | None = None,
        data_format: str = "csv",
        advance: Advance | None = None,
    ) -> Path:
        """Write the report whole and return its path.

        Args:
            path: where to; folders are made.
            format: "html" or "pdf" (default: as the path ends).
            data: folder for the data of every figure, one file for each frame.
            data_format: "csv" or "parquet" (needs pyarrow).
            advance: told after each picture; raise in it to stop.

        Raises ValueError for an unknown format.
        """
        format = format or ("pdf" if Path(path).suffix.lower() == ".pdf" else "html")
        one_of("format", format, FORMATS)
        if data is not None:
            write_data(Path(data), self.blocks, data_format)
        if format == "pdf":
            return write_pdf(Path(path), self.title, self.lead, self.blocks, advance)
        return write_text(path, self.render(advance))


def frame_rows(frame: pd.DataFrame, digits: int = 3) -> list[tuple[object, ...]]:
    """A data frame as rows for ``Page.table``: head first, floats rounded, missing values as a dash."""
    body = [tuple(_cell(value, digits) for value in row) for row in frame.itertuples(index=False)]
    return [tuple(frame.columns), *body]


def _cell(value: object, digits: int) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and value != value):
        return "–"
    if isinstance(value, float):
        return f"{value:,.{digits}f}"
    return f"{value:,}" if isinstance(value, Integral) and not isinstance(value, bool) else str(value)
