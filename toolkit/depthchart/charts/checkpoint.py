"""The checkpoint chart: token depth on x, one lane per branch, checkpoints as marks. Depths in tokens, sizes in points."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from depthchart.charts.depths import axis_step, depth_text, geometry_text, rulers
from depthchart.charts.marks import Marks, collect_marks
from depthchart.charts.placing import Room, fit_text, legend_columns, text_width, wrap
from depthchart.charts.style import Palette, figure, style
from depthchart.geometry import Geometry

__all__ = ["checkpoint_chart"]

LEFT, RIGHT, TOP, WIDTH, SIZE, ROW = 118.0, 14.0, 40.0, 720.0, 7.0, 12.0


def checkpoint_chart(
    nodes: pd.DataFrame,
    checkpoints: pd.DataFrame | None = None,
    geometry: Geometry | None = None,
    *,
    title: str | None = None,
    theme: str = "light",
    max_nodes: int = 200,
    window: tuple[float, float] | None = None,
) -> Figure:
    """Draw a radix tree (NODES) and its CHECKPOINTS over token depth; ``window`` limits the depths shown."""
    marks = collect_marks(nodes, checkpoints, max_nodes, window)
    low, high = window if window is not None else (0.0, max(1.0, marks.deepest() * 1.1))
    plot_w = WIDTH - LEFT - RIGHT
    with style(theme) as c:
        rows = rulers(geometry, high - low, plot_w) if geometry else []
        handles = _legend(marks, c)
        columns = legend_columns([str(h.get_label()) for h in handles], SIZE + 0.5, WIDTH - 30) if handles else 1
        notes = _notes(marks)
        below = 34 + 14 * -(-len(handles) // columns) + 10 * len(notes)
        pitch = max(1.5, min(24.0, (540 - TOP - below - ROW * len(rows)) / marks.lanes))
        head = ROW * len(rows) + 4
        plot_h = head + pitch * marks.lanes
        total = TOP + plot_h + below
        fig = figure(WIDTH / 72, total / 72, theme=theme, layout="none")  # every size is known in points
        ax = fig.add_axes((LEFT / WIDTH, below / total, plot_w / WIDTH, plot_h / total))
        ax.set(xlim=(low, high), ylim=(plot_h, 0), xlabel="token depth (tokens)")
        ax.set_yticks([])
        ax.spines["left"].set_visible(False)
        step = axis_step(high - low, plot_w, geometry.tree_page if geometry else 1)
        ticks = [t for t in range(int(-(-low // step) * step), int(high) + 1, step)]
        ax.set_xticks(ticks, [depth_text(t) for t in ticks])
        for i, ruler in enumerate(rows):
            y = i * ROW + ROW * 0.6
            ax.vlines(ruler.ticks(low, high), y - 3, y + 3, colors=c.muted, lw=0.7)
            ax.plot([low, high], [y, y], color=c.grid, lw=0.7, zorder=0)
            ax.annotate(fit_text(ruler.label, SIZE, LEFT - 10), (0, y), (-6, 0), xycoords=("axes fraction", "data"),
                        textcoords="offset points", ha="right", va="center", size=SIZE, color=c.muted)
            if ruler.name == "tree page":
                ax.vlines(ruler.ticks(low, high), head, plot_h, colors=c.grid, lw=0.6, zorder=0)
        _lanes(ax, marks, c, low, plot_w / (high - low), head, pitch, plot_w, plot_h)
        heading = f"{title or 'Checkpoint chart'}"
        fig.text(10 / WIDTH, 1 - 10 / total, fit_text(heading, 10, WIDTH - 20), size=10, weight="normal", va="top")
        shown = len(marks.nodes)
        parts = [f"showing {shown} of {marks.total_nodes} nodes" if shown < marks.total_nodes else f"{shown} nodes"]
        parts += [geometry_text(geometry)] if geometry else []
        parts += [f"{marks.hidden_marks} checkpoints not shown"] if marks.hidden_marks else []
        fig.text(10 / WIDTH, 1 - 25 / total, fit_text(" · ".join(parts), SIZE + 0.5, WIDTH - 20), size=SIZE + 0.5, color=c.muted, va="top")
        if handles:
            fig.legend(handles=handles, loc="lower left", ncols=columns, fontsize=SIZE + 0.5, borderaxespad=0,
                       bbox_to_anchor=(10 / WIDTH, (4 + 10 * len(notes)) / total))
        for i, note in enumerate(notes):
            fig.text(14 / WIDTH, (4 + 10 * (len(notes) - 1 - i)) / total, note, size=SIZE, color=c.muted, va="bottom")
    return fig


def _lanes(ax: Axes, marks: Marks, c: Palette, low: float, sx: float, head: float, pitch: float, w: float, h: float) -> None:
    def y(lane: int) -> float:
        return head + (lane + 0.5) * pitch

    room, half, dot = Room(w, h), min(7.0, pitch * 0.31), min(8.0, max(2.0, pitch * 0.45))
    r = dot / 2 + 1.5
    bars: dict[str, list[Any]] = {"kv": [], "tomb": [], "lock": []}
    spots: dict[str, list[tuple[float, float]]] = {k: [] for k in ("state", "tombstone", "locked", "misplaced", "refused", "superseded")}
    lines = []
    for n in marks.nodes.to_dict("records"):
        a, b, yy = n["start_tokens"], n["end_tokens"], y(n["lane"])
        box = [(a, yy - half), (b, yy - half), (b, yy + half), (a, yy + half)]
        bars["tomb" if n["status"] == "tombstone" else "kv"].append(box)
        if n["kv_locks"]:
            bars["lock"].append(box)
        if n["state_locks"]:
            spots["locked"].append((b, yy))
        if n["status"] in ("state", "tombstone"):
            spots[n["status"]].append((b, yy))
        if n["reach_lane"] > n["lane"]:
            lines.append([(b, yy), (b, y(n["reach_lane"]))])
    spots["misplaced"] = [(m.end_tokens, y(m.lane)) for m in marks.misplaced]
    spots["refused"] = [(m.depth_tokens, y(m.lane)) for m in marks.refused]
    spots["superseded"] = [(d, y(lane)) for lane, d in marks.superseded]
    ax.add_collection(LineCollection(lines, colors=c.muted, linewidths=0.7, zorder=1))
    ax.add_collection(LineCollection([[(a, y(lane)), (b, y(lane))] for lane, a, b in marks.rows], colors=c.muted, linestyles=":", linewidths=1, zorder=1))
    ax.add_collection(PolyCollection(bars["kv"], facecolors=c.kv, edgecolors=c.kv_edge, linewidths=0.7, zorder=2))
    ax.add_collection(PolyCollection(bars["tomb"], facecolors=c.paper, edgecolors=c.tombstone, hatch="////", linewidths=0.7, zorder=2))
    ax.add_collection(PolyCollection(bars["lock"], facecolors="none", edgecolors=c.locked, linewidths=min(1.8, pitch / 4), zorder=3))
    for kind, how in _markers(c).items():
        if spots[kind]:
            ax.scatter(*zip(*spots[kind], strict=True), s=(dot * (1.6 if kind == "locked" else 1)) ** 2, zorder=5, **how)
            for d, yy in spots[kind]:
                room.take(((d - low) * sx - r, yy - r, (d - low) * sx + r, yy + r))
    for m in marks.misplaced:
        if abs(m.true_tokens - m.end_tokens) * sx > 8:
            ax.annotate("", (m.end_tokens, y(m.lane)), (m.true_tokens, y(m.lane)), arrowprops={"arrowstyle": "->", "color": c.misplaced, "lw": 1.3, "shrinkA": 0, "shrinkB": dot / 2}, zorder=6)
            left, right = sorted(((m.true_tokens - low) * sx, (m.end_tokens - low) * sx))
            room.take((left, y(m.lane) - 2, right, y(m.lane) + 2))

    def label(text: str, yy: float, lefts: list[float], colour: str) -> bool:
        tw = text_width(text, SIZE)
        spot = room.first_free((x, yy - 4.6, x + tw + 2, yy + 4.6) for x in (v if v >= 0 else -v - tw - 2 for v in lefts))
        if spot:
            ax.text(low + (spot[0] + 1) / sx, yy, text, size=SIZE, color=colour, va="center", zorder=7)
        return spot is not None

    if pitch < 9.5:
        return
    for m in marks.misplaced:
        ends = sorted(((m.true_tokens - low) * sx, (m.end_tokens - low) * sx))
        label(m.label, y(m.lane), [ends[1] + r, -(ends[0] - r)], c.misplaced)
    for f in marks.refused:
        x = (f.depth_tokens - low) * sx
        label(",".join(map(str, f.reasons[:3])), y(f.lane), [x + r, -(x - r)], c.refused)
    for n in marks.nodes.to_dict("records"):
        x = (max(n["start_tokens"], low) - low) * sx + r + 1
        space = (n["end_tokens"] - low) * sx - r - x
        for text in (f"node {n['node_id']} · {n['request']}", f"node {n['node_id']}", str(n["node_id"])):
            if n["status"] != "tombstone" and text_width(text, SIZE) + 2 < space and label(text, y(n["lane"]), [x], c.ink):
                break
    names = {n["lane"]: f"{n['namespace']} {n['request']}".strip() for n in marks.nodes.to_dict("records") if n["leaf"]}
    names |= {marks.node_lanes + i: f"{name} (not in the tree)" for i, name in enumerate(marks.outside)}
    for lane, name in names.items():
        ax.annotate(fit_text(name, SIZE, LEFT - 12), (0, y(lane)), (-6, 0), xycoords=("axes fraction", "data"), textcoords="offset points", ha="right", va="center", size=SIZE)


def _markers(c: Palette) -> dict[str, dict[str, Any]]:
    return {
        "locked": {"marker": "o", "facecolors": "none", "edgecolors": c.locked, "linewidths": 1.3},
        "state": {"marker": "o", "facecolors": c.state, "edgecolors": c.paper, "linewidths": 0.6},
        "tombstone": {"marker": "o", "facecolors": c.paper, "edgecolors": c.tombstone, "linewidths": 1.2},
        "misplaced": {"marker": "D", "facecolors": c.misplaced, "edgecolors": c.paper, "linewidths": 0.6},
        "refused": {"marker": "x", "color": c.refused, "linewidths": 1.5},
        "superseded": {"marker": "v", "facecolors": "none", "edgecolors": c.muted, "linewidths": 0.9},
    }


def _legend(marks: Marks, c: Palette) -> list[Any]:
    n = marks.nodes
    status = set(n["status"])
    dots = {"marker": "o", "ls": "", "ms": 6}
    every = [
        (len(n) > 0, Patch(fc=c.kv, ec=c.kv_edge, label="KV of a node")),
        ("state" in status, Line2D([], [], color=c.state, label="state of this depth", **dots)),
        ("tombstone" in status, Patch(fc=c.paper, ec=c.tombstone, hatch="////", label="tombstone: state evicted")),
        (bool(marks.misplaced), Line2D([], [], color=c.misplaced, label="misplaced: arrow from its true depth", **dots | {"marker": "D"})),
        (bool(marks.refused), Line2D([], [], color=c.refused, label="refused (reason below)", **dots | {"marker": "x"})),
        (bool(marks.superseded), Line2D([], [], mec=c.muted, mfc="none", label="tracked, not filed", **dots | {"marker": "v"})),
        (bool(n["kv_locks"].gt(0).any()), Patch(fc="none", ec=c.locked, lw=1.8, label="KV locked")),
        (bool(n["state_locks"].gt(0).any()), Line2D([], [], mec=c.locked, mfc="none", label="state locked", **dots | {"ms": 8})),
        (bool(marks.rows), Line2D([], [], color=c.muted, ls=":", label="row beyond the tree")),
    ]
    return [handle for occurs, handle in every if occurs]


def _notes(marks: Marks) -> list[str]:
    notes = []
    for i, (reason, count) in enumerate(marks.reasons[:6], 1):
        notes.append(wrap(f"{i}  {reason}" + (f" (×{count})" if count > 1 else ""), SIZE, WIDTH - 30)[0])
    if len(marks.reasons) > 6:
        notes.append(f"and {len(marks.reasons) - 6} further reasons")
    return notes
