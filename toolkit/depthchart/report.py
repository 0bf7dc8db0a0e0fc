"""Self-contained HTML pages: prose, tables and figures in one file that opens offline."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from depthchart.charts.style import to_svg
from depthchart.display import table_html
from depthchart.files import write_text

__all__ = ["Page", "frame_rows"]


@dataclass
class Page:
    """A report under way. Text that is passed in is escaped; add what is HTML already with ``html``."""

    title: str
    lead: str = ""
    _parts: list[str] = field(default_factory=list)
    _toc: list[tuple[str, str]] = field(default_factory=list)
    _figures: int = 0

    def section(self, heading: str, *paragraphs: str) -> Page:
        """Begin a section with a heading and paragraphs of plain text."""
        anchor = f"section-{len(self._toc) + 1}"
        self._toc.append((anchor, heading))
        self._parts.append(f'<h2 id="{anchor}">{escape(heading)}</h2>')
        return self.prose(*paragraphs)

    def prose(self, *paragraphs: str) -> Page:
        """Add paragraphs of plain text."""
        self._parts += [f"<p>{escape(text)}</p>" for text in paragraphs]
        return self

    def html(self, markup: str) -> Page:
        """Add trusted HTML."""
        self._parts.append(markup)
        return self

    def figure(self, fig: Figure, caption: str) -> Page:
        """Add a figure as inline SVG with its caption."""
        self._figures += 1
        svg = to_svg(fig, salt=f"figure-{self._figures}", text="paths")
        svg = _with_own_ids(svg[svg.index("<svg") :], f"figure-{self._figures}-")
        self._parts.append(
            f'<figure role="group"><div class="drawing">{svg}</div>'
            f"<figcaption><b>Figure {self._figures}.</b> {escape(caption)}</figcaption></figure>"
        )
        return self

    def table(self, rows: Sequence[Sequence[object]], numeric: Sequence[int] = (), caption: str = "") -> Page:
        """Add a table; its first row is the head."""
        words = f"<p class='caption'>{escape(caption)}</p>" if caption else ""
        self._parts.append(f'<div class="wide">{words}{table_html(rows, numeric=numeric)}</div>')
        return self

    def listing(self, lines: Sequence[str], summary: str = "") -> Page:
        """Add preformatted text, folded under ``summary`` where one is given."""
        text = f"<pre>{escape(chr(10).join(lines))}</pre>"
        self._parts.append(
            f"<details><summary>{escape(summary)}</summary>{text}</details>" if summary else text
        )
        return self

    def provenance(self, facts: Mapping[str, object]) -> Page:
        """Add the section that says where the numbers come from."""
        self.section("Provenance")
        return self.table([("what", "value"), *((name, str(value)) for name, value in facts.items())])

    def render(self) -> str:
        """The whole page as HTML text."""
        toc = "".join(f'<li><a href="#{anchor}">{escape(heading)}</a></li>' for anchor, heading in self._toc)
        lead = f'<p class="lead">{escape(self.lead)}</p>' if self.lead else ""
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self.title)}</title><style>{_STYLE}</style></head><body>"
            f"<h1>{escape(self.title)}</h1>{lead}<nav><ol>{toc}</ol></nav>{''.join(self._parts)}</body></html>\n"
        )

    def write(self, path: str | Path) -> Path:
        """Write the page whole and return its path."""
        return write_text(path, self.render())


def _with_own_ids(svg: str, prefix: str) -> str:
    """Ids are shared by a whole page: each figure gets its own, or one would borrow another's clip paths."""
    return re.sub(r'(\bid="|\bhref="#|url\(#)', lambda found: found[1] + prefix, svg)


def frame_rows(frame: pd.DataFrame, digits: int = 3) -> list[tuple[object, ...]]:
    """A data frame as rows for ``Page.table``: head first, floats rounded, missing values as a dash."""
    body = [tuple(_cell(value, digits) for value in row) for row in frame.itertuples(index=False)]
    return [tuple(frame.columns), *body]


def _cell(value: object, digits: int) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and value != value):
        return "–"
    if isinstance(value, float):
        return f"{value:,.{digits}f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; color: #1d2733; background: #fff;
       max-width: 60rem; margin: 0 auto; padding: 1.5rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; margin: 0 0 .4rem; }
h2 { font-size: 1.25rem; margin: 2.4rem 0 .5rem; padding-top: .7rem; border-top: 1px solid #dfe4ea; }
p { max-width: 46rem; margin: .5rem 0; }
.lead { font-size: 1.05rem; color: #414c58; }
nav ol { margin: .6rem 0 0; padding-left: 1.3rem; }
a { color: #00487a; }
figure { margin: 1.2rem 0; }
figcaption, .caption { color: #5b6673; font-size: .9rem; max-width: 46rem; margin: .3rem 0; }
.drawing svg { max-width: 100%; height: auto; display: block; }
.wide { overflow-x: auto; margin: .8rem 0; }
table { font-size: .9rem; font-variant-numeric: tabular-nums; }
thead th { border-bottom: 1.5px solid #5b6673; }
tbody tr:nth-child(even) td { background: #f4f7fa; }
td { vertical-align: top; }
pre { background: #f4f7fa; padding: .8rem 1rem; overflow-x: auto; font-size: .82rem; line-height: 1.4; border-radius: 4px; }
details { margin: .8rem 0; } summary { cursor: pointer; color: #00487a; }
@media print { nav { display: none; } h2 { break-after: avoid; } figure { break-inside: avoid; } }
"""
