"""The parts that explorers show beside their pictures, as HTML: tables, advice, errors. All text is escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from depthchart.cases.one_path import OnePath
from depthchart.charts.style import Palette
from depthchart.display import table_html
from depthchart.geometry import Advice, Geometry

__all__ = [
    "advice_panel",
    "decision_panel",
    "error_panel",
    "grid_line",
    "marks_panel",
    "repeat_panel",
    "verdict_panel",
]


# Middle tones that are read on a white page and on a black one; meanings as in charts.style.
_BOTH = Palette(
    kv="#7fb3d5", kv_edge="#3d8fc9", state="#1a9c74", tombstone="#8a929b", misplaced="#d9651f", refused="#c2559e",
    locked="#3d8fc9", ink="currentColor", muted="#868e97", grid="#8a929b", paper="transparent",
)  # fmt: skip


def grid_line(geometry: Geometry, rule: str) -> str:
    """The grids in one line of small text, in tokens."""
    grids = (
        ("tree page", geometry.tree_page),
        ("cache chunk", geometry.cache_chunk),
        ("checkpoint grid", geometry.checkpoint_grid),
        ("decode checkpoints every", geometry.track_grid),
        ("shortest reusable prefix", geometry.shortest_reusable(rule)),
    )
    return _small(" · ".join(f"{name} <b>{tokens:,}</b>" for name, tokens in grids) + " tokens")


def verdict_panel(sentence: str, faults: Iterable[str], right: bool | None = True) -> str:
    """What came of it, and the broken invariants below it. ``right``: whether it is what was asked for (None: nothing
    ran); the edge tells it by its colour."""
    broken = list(faults)
    edge = _BOTH.misplaced if broken else _BOTH.state if right else _BOTH.muted if right is None else _BOTH.refused
    items = "".join(f"<li>{escape(text)}</li>" for text in dict.fromkeys(broken))
    told = f'<ul style="margin:2px 0 0;padding-left:20px">{items}</ul>' if items else ""
    return f'<div style="{_box(edge)}">{escape(sentence)}{told}</div>'


def decision_panel(path: OnePath) -> str:
    """The decisions of a path as a table; depths in tokens."""
    return f'<div style="line-height:1.4">{table_html(path.rows(), numeric=(2, 3, 4))}</div>'


def advice_panel(remarks: Iterable[Advice]) -> str:
    """What a geometry costs or breaks, worst first."""
    c = _BOTH
    colours = {"breaks": c.misplaced, "costs": c.locked, "note": c.muted}
    order = list(colours)
    items = [
        f'<li style="margin:2px 0"><b style="color:{colours[remark.severity]}">{escape(remark.severity)}</b> '
        f"{escape(remark.text)}</li>"
        for remark in sorted(remarks, key=lambda remark: order.index(remark.severity))
    ]
    return (
        f'<ul style="margin:4px 0;padding-left:20px;line-height:1.35">{"".join(items)}</ul>' if items else ""
    )


def error_panel(error: Exception) -> str:
    """An error's own words, where the picture would be."""
    return f'<div role="alert" style="{_box(_BOTH.misplaced)}">{escape(str(error))}</div>'


def _small(html: str) -> str:
    return f'<div style="opacity:0.8;line-height:1.4">{html}</div>'


def _box(edge: str) -> str:
    return f"border-left:4px solid {edge};padding:4px 10px;margin:4px 0;line-height:1.4"


def marks_panel() -> str:
    """What the marks of a checkpoint chart mean, folded."""
    c = _BOTH
    marks = (
        ("▬", c.kv_edge, "a bar is a node of the tree: KV of the tokens from its start to its end"),
        ("●", c.state, "a state that has read exactly the tokens up to here: a request can go on from it"),
        (
            "◆",
            c.misplaced,
            "a state that has read more or fewer tokens than its node's depth: wrong text for whoever goes on",
        ),
        (
            "○",
            c.tombstone,
            "tombstone, its bar hatched: the state was evicted; the KV alone lets nobody go on here",
        ),
        ("▭", c.locked, "a thick outline: in use by a running request, so it is not evicted"),
        ("×", c.refused, "a rule's decision that left no checkpoint; why is written below the chart"),
        ("▽", c.muted, "a state that was kept for later and has not been given to a node"),
        ("┄", c.muted, "a dashed frame: changed just now; a dotted line: computed, but not in the tree"),
    )
    rows = "".join(
        f'<tr><td style="color:{colour};padding:0 8px;font-size:1.2em">{sign}</td><td>{escape(text)}</td></tr>'
        for sign, colour, text in marks
    )
    summary = '<summary style="cursor:pointer">What the marks mean</summary>'
    return f'<details>{summary}<table style="line-height:1.4">{rows}</table></details>'


def repeat_panel(lines: Iterable[str], what: str = "it") -> str:
    """How to do again what is shown, folded: a command, or lines of Python; ``what`` is what they repeat."""
    text = escape("\n".join(lines))
    summary = f'<summary style="cursor:pointer">To repeat {what}</summary>'
    style = "line-height:1.35;font-size:12px;margin:4px 0;overflow-x:auto;white-space:pre-wrap"
    return f'<details>{summary}<pre style="{style}">{text}</pre></details>'
