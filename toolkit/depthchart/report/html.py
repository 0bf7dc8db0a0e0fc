"""A report as one HTML file: no request leaves it, and it reads well without scripts too."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from html import escape

from matplotlib.figure import Figure

from depthchart.charts.style import to_png, to_svg
from depthchart.display import table_html
from depthchart.report.blocks import Block, Film, Frame, Heading, Listing, Markup, Picture, Prose, Table
from depthchart.report.look import SCRIPT, STYLE, themed

__all__ = ["render"]

HUGE_SVG = 1_500_000  # characters: above it a figure is stored as PNG
LONG_TABLE = 16  # rows: above it a table scrolls in a box of its own
_LONG_CELL = re.compile(r"<td( [^>]*>(?=[^<]{48}))")  # cells of many words are set in lines
# Nothing may be fetched, whatever somebody else's text in the report says.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def render(
    title: str, lead: str, blocks: Sequence[Block], advance: Callable[[int, int], object] | None = None
) -> str:
    """The whole page as text; ``advance`` is told after each picture how many are done, of how many."""
    total = sum(len(b.frames) if isinstance(b, Film) else isinstance(b, Picture) for b in blocks)
    done = 0

    def drawn() -> None:
        nonlocal done
        done += 1
        if advance is not None:
            advance(done, total)

    toc = "".join(
        f'<li><a href="#{b.anchor}">{escape(b.text)}</a></li>' for b in blocks if isinstance(b, Heading)
    )
    body = "".join(_block(block, drawn) for block in blocks)
    told = f'<p class="lead">{escape(lead)}</p>' if lead else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1>{told}<nav><ol>{toc}</ol></nav>{body}<script>{SCRIPT}</script></body></html>\n"
    )


def _block(block: Block, drawn: Callable[[], None]) -> str:
    match block:
        case Heading(text, anchor):
            return f'<h2 id="{anchor}">{escape(text)}</h2>'
        case Prose(text):
            return f"<p>{escape(text)}</p>"
        case Markup(html):
            return f'<div class="wide" tabindex="0">{html}</div>'
        case Table():
            return _table(block)
        case Listing(lines, summary):
            text = f"<pre>{escape(chr(10).join(lines))}</pre>"
            return f"<details><summary>{escape(summary)}</summary>{text}</details>" if summary else text
        case Picture(number, figure, caption):
            drawing = _drawing(figure, f"figure-{number}", "paths")
            drawn()
            return _figure(number, f'<div class="drawing">{drawing}</div>', caption)
        case Film():
            return _film(block, drawn)


def _table(table: Table) -> str:
    words = f"<p class='caption'>{escape(table.caption)}</p>" if table.caption else ""
    kind = "wide long" if len(table.rows) > LONG_TABLE else "wide"
    html = table_html(table.rows, numeric=table.numeric).replace("<table ", "<table data-sort ", 1)
    head, body = html.split("</thead>", 1)
    body = _LONG_CELL.sub(r'<td class="words"\1', body)
    html = f"{head.replace('_', '_<wbr>')}</thead>{body}"  # long names may be broken
    return f'{words}<div class="{kind}" tabindex="0">{html}</div>'


def _figure(number: int, inside: str, caption: str) -> str:
    return (
        f'<figure role="group">{inside}'
        f"<figcaption><b>Figure {number}.</b> {escape(caption)}</figcaption></figure>"
    )


def _film(film: Film, drawn: Callable[[], None]) -> str:
    """All frames in the page, one of them shown; the slider's script only changes which."""
    shown = [_frame(film, at, frame) for at, frame in _counted(film.frames, drawn)]
    last = len(film.frames) - 1
    controls = (
        '<div class="controls"><button type="button" data-back aria-label="back">◀</button>'
        '<button type="button" data-play>Play</button>'
        '<button type="button" data-on aria-label="on">▶</button>'
        f'<input type="range" min="0" max="{last}" value="{film.start}" step="1" aria-label="moment">'
        f"<output>{escape(film.frames[film.start].label)}</output></div>"
    )
    return _figure(film.number, f'<div class="film" data-film>{controls}{"".join(shown)}</div>', film.caption)


def _counted(frames: Sequence[Frame], drawn: Callable[[], None]) -> Iterator[tuple[int, Frame]]:
    for at, frame in enumerate(frames):
        yield at, frame
        drawn()


def _frame(film: Film, at: int, frame: Frame) -> str:
    hidden = "" if at == film.start else " hidden"
    words = "".join(f"<li>{escape(line)}</li>" for line in frame.words)
    drawing = _drawing(frame.draw(), f"figure-{film.number}-{at}", "real")
    label = escape(frame.label)
    return f'<div class="frame" data-label="{label}"{hidden}><div class="drawing">{drawing}</div><ul>{words}</ul></div>'


def _drawing(figure: Figure, salt: str, text: str) -> str:
    """Inline SVG; a PNG at twice the screen's resolution where the SVG would be huge."""
    svg = to_svg(figure, salt=salt, text=text)
    if len(svg) > HUGE_SVG:
        png = b64encode(to_png(figure, dpi=200)).decode()
        return f'<img alt="" src="data:image/png;base64,{png}">'
    return themed(_with_own_ids(svg[svg.index("<svg") :], f"{salt}-"))


def _with_own_ids(svg: str, prefix: str) -> str:
    """Ids are shared by a whole page: each figure gets its own, or one would borrow another's clip paths."""
    return re.sub(r'(\bid="|\bhref="#|url\(#)', lambda found: found[1] + prefix, svg)
