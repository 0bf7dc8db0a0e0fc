"""A tree at one moment of a run: its picture, a headline, what happened just then, and one node's history."""

from __future__ import annotations

from collections import OrderedDict
from html import escape

import ipywidgets as w

from depthchart.display import table_html
from depthchart.geometry import Geometry
from depthchart.moments import headline, moment_chart, moment_words
from depthchart.rewind import Moment, Rewind
from depthchart.widgets.clickable import AUTO, Drawn, Picture, Theme

__all__ = ["TreePane"]

KEPT_PICTURES = 64
LOUD = ("MISPLACED", "BROKEN", "WRONG")
MOST_PAST = 200


class TreePane(w.VBox):
    """Shows one moment after another of ``rewind``; ``node_id`` is the node whose history is told."""

    def __init__(self, rewind: Rewind, geometry: Geometry, *, theme: str = AUTO, clock: bool = True) -> None:
        self.load(rewind, geometry, clock=clock)
        self.head, self.words, self.past = w.HTML(), w.HTML(), w.HTML()
        self.picture = Picture(alt="the radix tree over token depth; click a node for its history")
        self.theme = Theme(theme, self.picture, self._again)
        super().__init__([self.head, self.picture, self.words, self.past])
        self.add_class("depthchart-tree")

    def load(self, rewind: Rewind, geometry: Geometry, *, clock: bool = True) -> None:
        """Take another run's events; ``show`` draws them. ``clock``: whether their times mean anything."""
        self.rewind, self.geometry, self.clock = rewind, geometry, clock
        self._pictures: OrderedDict[tuple[object, ...], Drawn] = OrderedDict()
        self._shown: tuple[Moment, str, int | None] | None = None

    def show(self, moment: Moment, request: str = "", node_id: int | None = None) -> None:
        """Draw a moment; of one ``request`` alone where it is given, with the history of ``node_id``."""
        self._shown = moment, request, node_id
        self.picture.show(self._drawn(moment, request))
        self.picture.chosen = [] if node_id is None else [str(node_id)]
        self.head.value = f"<b>{escape(headline(self.rewind, moment, clock=self.clock))}</b>"
        self.words.value = _list(moment_words(self.rewind, moment))
        self.past.value = "" if node_id is None else _history(self.rewind, moment, node_id)

    def _again(self) -> None:
        """The same moment in the other theme."""
        if self._shown is not None:
            self.show(*self._shown)

    def _drawn(self, moment: Moment, request: str) -> Drawn:
        """The picture and its spots; the last ones are kept, since one goes back and forth."""
        key = (moment.first, moment.count, request, self.theme.name)
        if key not in self._pictures:
            figure = moment_chart(
                self.rewind,
                moment,
                self.geometry,
                request=request,
                theme=self.theme.name,
                clock=self.clock,
            )
            self._pictures[key] = Picture.draw(figure)
            if len(self._pictures) > KEPT_PICTURES:
                self._pictures.popitem(last=False)
        self._pictures.move_to_end(key)
        return self._pictures[key]


def _list(lines: list[str]) -> str:
    items = "".join(
        f'<li style="margin:0{";font-weight:bold" if any(word in line for word in LOUD) else ""}">'
        f"{escape(line)}</li>"
        for line in lines
    )
    return f'<ul style="margin:2px 0;padding-left:20px;line-height:1.4">{items}</ul>'


def _history(rewind: Rewind, moment: Moment, node_id: int) -> str:
    """The node's whole life; what lies after the moment is shown paler."""
    past = rewind.history(node_id)
    rows = [(f"{p.time_s:,.2f}", str(p.step), p.what) for p in past]
    told = (
        rows
        if len(rows) <= MOST_PAST
        else [*rows[: MOST_PAST // 2], ("…", "…", "…"), *rows[-MOST_PAST // 2 :]]
    )
    gone = "" if node_id in rewind.at(moment.count).nodes else " (not in the tree at this moment)"
    title = f"<b>Node {node_id}{gone}: what happened to it in the whole run ({len(rows):,} entries)</b>"
    table = table_html([("time [s]", "step", "what"), *told], numeric=(0, 1))
    return f'<div style="max-height:260px;overflow:auto;line-height:1.35">{title}{table}</div>'
