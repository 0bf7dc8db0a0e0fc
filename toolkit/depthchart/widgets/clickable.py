"""Pictures and tables of which the parts can be clicked; what was clicked is told by its key.

Every explorer has another way to the same thing (a drop-down), for keyboards and for front ends without scripts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import anywidget
import traitlets as t
from matplotlib.figure import Figure

from depthchart.charts.spots import spots
from depthchart.charts.style import PALETTES, to_svg
from depthchart.display import table_html
from depthchart.errors import one_of

__all__ = ["AUTO", "Clickable", "Picture", "Rows", "Theme"]

AUTO = "auto"
_HERE = Path(__file__).parent

Heard = Callable[[str], object]
Drawn = tuple[bytes, list[list[Any]]]
"""A picture as SVG, and its spots."""


class Clickable(anywidget.AnyWidget):  # type: ignore[misc]
    """A widget that tells the key of what was clicked to ``on_click``; those in ``chosen`` are outlined."""

    chosen = t.List(t.Unicode()).tag(sync=True)

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self._heard: list[Heard] = []
        self.on_msg(self._hear)

    def on_click(self, heard: Heard) -> None:
        """Call ``heard(key)`` at each click."""
        self._heard.append(heard)

    def click(self, key: str) -> None:
        """Do what a click on the part of this key does."""
        for heard in self._heard:
            heard(key)

    def _hear(self, widget: object, content: Any, buffers: object) -> None:
        if isinstance(content, dict) and isinstance(content.get("click"), str):
            self.click(content["click"])


class Picture(Clickable):
    """A figure as SVG in ``value``; its ``spots`` can be clicked. ``dark`` is whether the page around it is dark;
    ``reveal`` scrolls the page to it when it appears."""

    _esm = (_HERE / "clickable.js").read_text(encoding="utf-8")
    _css = (_HERE / "clickable.css").read_text(encoding="utf-8")
    value = t.Bytes().tag(sync=True)
    spots: Any = t.List().tag(sync=True)
    alt = t.Unicode().tag(sync=True)
    dark = t.Bool(False).tag(sync=True)
    reveal = t.Bool(False).tag(sync=True)

    def show(self, drawn: Figure | Drawn, *, clickable: bool = True) -> None:
        """Show a figure with its spots; ``clickable=False`` leaves them out, where a click would do nothing."""
        svg, found = drawn if isinstance(drawn, tuple) else self.draw(drawn)
        with self.hold_sync():  # together, or a click would meet the spots of another picture
            self.value, self.spots = svg, found if clickable else []

    @staticmethod
    def draw(figure: Figure) -> Drawn:
        """What ``show`` takes: to be kept where a picture comes again."""
        return to_svg(figure).encode(), [list(spot) for spot in spots(figure)]


class Rows(Clickable):
    """A table of which each row can be clicked; a click on a heading sorts."""

    _esm = (_HERE / "rows.js").read_text(encoding="utf-8")
    _css = (_HERE / "clickable.css").read_text(encoding="utf-8")
    html = t.Unicode().tag(sync=True)

    def show(
        self, rows: Sequence[Sequence[object]], keys: Iterable[str], numeric: Sequence[int] = ()
    ) -> None:
        """Show text cells, the head first; ``keys`` are those of the rows below it."""
        start, head, *body = table_html(rows, numeric=numeric).split("<tr>")
        keyed = [f'<tr data-key="{escape(key)}">{row}' for key, row in zip(keys, body, strict=True)]
        self.html = "".join([start, "<tr>", head, *keyed])


class Theme:
    """The theme of an explorer: as asked for, or (``"auto"``) that of the page on which ``picture`` is seen.

    ``name`` is the one to draw in; ``changed()`` is called when the page has turned out to be of the other one.
    """

    def __init__(self, asked: str, picture: Picture, changed: Callable[[], object]) -> None:
        one_of("theme", asked, (AUTO, *PALETTES))
        self.asked, self._picture, self._changed = asked, picture, changed
        if asked == AUTO:
            picture.observe(lambda change: self._changed(), names="dark")

    @property
    def name(self) -> str:
        """ "light" or "dark"."""
        if self.asked != AUTO:
            return self.asked
        return "dark" if self._picture.dark else "light"
