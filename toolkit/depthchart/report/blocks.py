"""What a report consists of, whatever it is written as: headings, prose, tables, figures, films, listings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import pandas as pd
from matplotlib.figure import Figure

__all__ = ["Block", "Film", "Frame", "Heading", "Listing", "Markup", "Picture", "Prose", "Table"]


@dataclass(frozen=True)
class Heading:
    text: str
    anchor: str


@dataclass(frozen=True)
class Prose:
    text: str


@dataclass(frozen=True)
class Markup:
    """Trusted HTML; ``plain`` stands for it where there is no HTML."""

    html: str
    plain: str = ""


@dataclass(frozen=True)
class Table:
    """Text cells; the first row is the head, ``numeric`` are columns set to the right."""

    rows: Sequence[Sequence[object]]
    numeric: Sequence[int] = ()
    caption: str = ""


@dataclass(frozen=True)
class Listing:
    """Preformatted lines, folded under ``summary`` where one is given."""

    lines: Sequence[str]
    summary: str = ""


@dataclass(frozen=True)
class Picture:
    """A figure with its caption, and the frames that it was drawn from by name."""

    number: int
    figure: Figure
    caption: str
    data: dict[str, pd.DataFrame] = field(default_factory=dict)


@dataclass(frozen=True)
class Frame:
    """One picture of a film: drawn when it is asked for. ``label`` names the moment, ``words`` tell what happened."""

    draw: Callable[[], Figure]
    label: str
    words: Sequence[str] = ()


@dataclass(frozen=True)
class Film:
    """Pictures in order, and one to begin with."""

    number: int
    frames: Sequence[Frame]
    caption: str
    start: int = -1
    data: dict[str, pd.DataFrame] = field(default_factory=dict)


Block: TypeAlias = Heading | Prose | Markup | Table | Listing | Picture | Film
