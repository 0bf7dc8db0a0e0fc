"""The one look of all figures: style sheet, colours with fixed meanings, PNG and SVG.

Figures are made without pyplot, so nothing is kept alive by a global registry. Sizes of figures are
in inches, sizes of text and marks in points.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from depthchart.errors import one_of

__all__ = [
    "DEFAULT",
    "PALETTES",
    "Chart",
    "Palette",
    "figure",
    "palette",
    "style",
    "theme_name",
    "to_png",
    "to_svg",
    "use_theme",
]


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours by meaning (``#rrggbb``); every mark also has a shape of its own.

    ``kv`` and ``kv_edge`` fill and outline tokens whose KV is cached, ``tombstone`` a node whose state was
    evicted, ``state`` is a state of the right depth, ``misplaced`` one of another depth, ``refused``
    a checkpoint that was not taken or not filed, ``locked`` what is in use. ``ink``, ``muted``,
    ``grid`` and ``paper`` are text, lesser text, faint lines and background.
    """

    kv: str
    kv_edge: str
    state: str
    tombstone: str
    misplaced: str
    refused: str
    locked: str
    ink: str
    muted: str
    grid: str
    paper: str


PALETTES: Final = {
    "light": Palette(
        kv="#cfe6f6",
        kv_edge="#56a5d8",
        state="#007a59",
        tombstone="#8a929b",
        misplaced="#c94f00",
        refused="#a3287c",
        locked="#00487a",
        ink="#1d2733",
        muted="#5b6673",
        grid="#dfe4ea",
        paper="#ffffff",
    ),
    "dark": Palette(
        kv="#1d4560",
        kv_edge="#4f9fd3",
        state="#2fcf9f",
        tombstone="#7c8794",
        misplaced="#ff8a3d",
        refused="#ef8fc8",
        locked="#c3e4ff",
        ink="#e6ebf1",
        muted="#94a1b0",
        grid="#2b333c",
        paper="#14181d",
    ),
}

DEFAULT: Final = "default"
"""The theme that ``use_theme`` chose last; at first that of the environment (``DEPTHCHART_THEME``), else "light"."""

VARIABLE: Final = "DEPTHCHART_THEME"
_chosen = ""
_HERE = Path(__file__).parent
# rc_context swaps matplotlib's global settings: two threads inside it would restore each other's.
_LOCK = threading.RLock()


def use_theme(theme: str) -> None:
    """Draw every chart that names no theme of its own in this one, ``"light"`` or ``"dark"``, from now on."""
    global _chosen
    _chosen = one_of("theme", theme, PALETTES)


def theme_name(theme: str = DEFAULT) -> str:
    """``"light"`` or ``"dark"``, where ``"default"`` is what ``use_theme`` chose, else the environment
    (``DEPTHCHART_THEME=dark``). Raises ValueError for other names."""
    if theme != DEFAULT:
        return one_of("theme", theme, PALETTES)
    return _chosen or one_of(VARIABLE, os.environ.get(VARIABLE) or "light", PALETTES)


def palette(theme: str = DEFAULT) -> Palette:
    """The colours of a theme."""
    return PALETTES[theme_name(theme)]


@contextmanager
def style(theme: str = DEFAULT) -> Iterator[Palette]:
    """Apply depthchart's style inside the block and give the theme's palette.

    One thread at a time is inside; the settings outside are restored at the end.
    """
    colours = palette(theme)
    with _LOCK, mpl.rc_context(_settings(theme_name(theme))):
        yield colours


class Chart(Figure):
    """A figure that shows itself in a notebook, without pyplot."""

    def _repr_svg_(self) -> str:
        return to_svg(self)


def figure(width: float = 10.0, height: float = 5.0, *, theme: str = DEFAULT, **options: Any) -> Figure:
    """An empty figure (inches) in depthchart's style, with an Agg canvas and without pyplot."""
    with style(theme):
        made = Chart(figsize=(width, height), **options)
    FigureCanvasAgg(made)
    return made


def to_png(fig: Figure, dpi: float = 100) -> bytes:
    """The figure as PNG; the same figure gives the same bytes."""
    out = io.BytesIO()
    with _LOCK:
        # Level 1 costs a third more bytes and saves most of the time of writing the file.
        fig.savefig(out, format="png", dpi=dpi, metadata={"Software": None}, pil_kwargs={"compress_level": 1})
    return out.getvalue()


def to_svg(fig: Figure, salt: str = "depthchart", *, text: str = "real") -> str:
    """The figure as SVG text, with repeatable ids and no date.

    ``text="real"`` can be searched and takes half the time, and shows in the viewer's font where the style's own
    is missing; ``"paths"`` looks the same everywhere. Give figures that share one HTML page different
    ``salt`` values, so that their ids differ.
    """
    if text not in ("real", "paths"):
        raise ValueError(f"text={text!r}: must be 'real' or 'paths'")
    out = io.StringIO()
    with _LOCK, mpl.rc_context({"svg.fonttype": "none" if text == "real" else "path", "svg.hashsalt": salt}):
        fig.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


@cache
def _settings(theme: str) -> Any:
    """The style sheet as rcParams: the light one, with the dark one's changes on top."""
    sheets = ["depthchart.mplstyle", *(["depthchart-dark.mplstyle"] if theme == "dark" else [])]
    settings: Any = {}
    for sheet in sheets:
        settings.update(mpl.rc_params_from_file(str(_HERE / sheet), use_default_template=False))
    return settings
