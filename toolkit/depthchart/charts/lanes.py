"""The lanes of a checkpoint chart: bars, marks and their labels, drawn on axes whose unit is one point in y."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes

from depthchart.charts.legend import marker_styles
from depthchart.charts.marks import Marks, Misplaced
from depthchart.charts.placing import Room, fit_text, text_width
from depthchart.charts.sheet import TEXT, Sheet
from depthchart.charts.spots import mark_spot
from depthchart.charts.strokes import Box, add_boxes, add_lines, add_marks
from depthchart.charts.style import Palette

__all__ = ["draw_lanes"]

DASHES = (0, (2.5, 1.5))

Spots = dict[str, list[tuple[float, float]]]


def draw_lanes(ax: Axes, marks: Marks, sheet: Sheet, c: Palette) -> None:
    """Draw every lane; text only where it is readable and touches nothing."""
    room = Room(sheet.plot_width, sheet.plot_height)
    nodes: list[dict[str, Any]] = [
        {str(k): v for k, v in row.items()} for row in marks.nodes.to_dict("records")
    ]
    _bars(ax, nodes, sheet, c)
    _frames(ax, [node for node in nodes if node["node_id"] in marks.changed], sheet, c)
    _lines(ax, marks, nodes, sheet, c)
    _marks(ax, _spots(marks, nodes, sheet), sheet, room, c)
    for misplaced in marks.misplaced:
        _arrow(ax, misplaced, sheet, room, c)
    if sheet.readable:
        _take_rows(marks, sheet, room)
        _label_marks(ax, marks, sheet, room, c)
        _label_nodes(ax, nodes, sheet, room, c)
    if sheet.named:
        _label_lanes(ax, marks, nodes, sheet)


def _bars(ax: Axes, nodes: list[dict[str, Any]], sheet: Sheet, c: Palette) -> None:
    kv: list[Box] = []
    tombs: list[Box] = []
    locked: list[Box] = []
    for node in nodes:
        y, half = sheet.y(node["lane"]), sheet.half
        box = (node["start_tokens"], y - half, node["end_tokens"], y + half)
        (tombs if node["status"] == "tombstone" else kv).append(box)
        if node["kv_locks"]:
            locked.append(box)
        mark_spot(ax, str(node["node_id"]), box, _tip(node))
    add_boxes(ax, kv, fc=c.kv, ec=c.kv_edge, lw=0.7, zorder=2)
    add_boxes(ax, tombs, fc=c.paper, ec=c.tombstone, lw=0.7, zorder=2, hatch="////")
    add_boxes(ax, locked, fc="none", ec=c.locked, lw=min(1.8, sheet.pitch / 4), zorder=3)


def _tip(node: dict[str, Any]) -> str:
    return (
        f"node {node['node_id']}, tokens {node['start_tokens']:,} to {node['end_tokens']:,}, {node['status']}"
        + (f", made by {node['request']}" if node["request"] else "")
    )


def _frames(ax: Axes, nodes: list[dict[str, Any]], sheet: Sheet, c: Palette) -> None:
    """A frame around each of the nodes, a little off its bar."""
    air, width = min(2.6, sheet.pitch * 0.16), 2.2 * (sheet.high - sheet.low) / sheet.plot_width
    far = sheet.half + air
    boxes = [
        (
            n["start_tokens"] - width,
            sheet.y(n["lane"]) - far,
            n["end_tokens"] + width,
            sheet.y(n["lane"]) + far,
        )
        for n in nodes
    ]
    add_boxes(ax, boxes, fc="none", ec=c.ink, ls=DASHES, lw=min(1.2, sheet.pitch / 6), zorder=4)


def _lines(ax: Axes, marks: Marks, nodes: list[dict[str, Any]], sheet: Sheet, c: Palette) -> None:
    """Forks down to the last child, rows beyond the tree, and what requests without a node have reused."""
    forks = [
        [(n["end_tokens"], sheet.y(n["lane"])), (n["end_tokens"], sheet.y(n["reach_lane"]))]
        for n in nodes
        if n["reach_lane"] > n["lane"]
    ]
    rows = [[(a, sheet.y(lane)), (b, sheet.y(lane))] for lane, a, b in marks.rows]
    reused = [[(0, sheet.y(lane)), (stop, sheet.y(lane))] for lane, stop in marks.reused]
    add_lines(ax, forks, ec=c.muted, lw=0.7, zorder=1)
    add_lines(ax, rows, ec=c.muted, ls=":", lw=1, zorder=1)
    add_lines(ax, reused, ec=c.kv_edge, lw=1.6, zorder=1)


def _spots(marks: Marks, nodes: list[dict[str, Any]], sheet: Sheet) -> Spots:
    """Depth and height of every mark by kind. Refusals lie in the gap below the bar, clear of the states."""
    spots: Spots = {
        kind: [] for kind in ("state", "tombstone", "locked", "misplaced", "refused", "superseded")
    }
    for node in nodes:
        at = (node["end_tokens"], sheet.y(node["lane"]))
        if node["state_locks"]:
            spots["locked"].append(at)
        if node["status"] in ("state", "tombstone"):
            spots[node["status"]].append(at)
    spots["misplaced"] = [(m.end_tokens, sheet.y(m.lane)) for m in marks.misplaced]
    spots["refused"] = [(r.depth_tokens, _off_bar(marks, sheet, r.lane)) for r in marks.refused]
    spots["superseded"] = [(depth, _off_bar(marks, sheet, lane)) for lane, depth in marks.superseded]
    return spots


def _off_bar(marks: Marks, sheet: Sheet, lane: int) -> float:
    return sheet.gap(lane) if lane < marks.node_lanes else sheet.y(lane)


def _marks(ax: Axes, spots: Spots, sheet: Sheet, room: Room, c: Palette) -> None:
    small = min(5.5, max(2.0, sheet.pitch * 0.3))
    sizes = {"locked": sheet.dot * 1.6, "refused": small, "superseded": small}
    for kind, how in marker_styles(c).items():
        size = sizes.get(kind, sheet.dot)
        shown = _thinned(spots[kind], sheet) if kind in ("refused", "superseded") else spots[kind]
        if not shown:
            continue
        depths, heights = zip(*shown, strict=True)
        add_marks(ax, depths, heights, ms=size, zorder=5, **how)
        r = size / 2 + 1
        for depth, y in shown:
            room.take((sheet.x(depth) - r, y - r, sheet.x(depth) + r, y + r))


def _thinned(spots: list[tuple[float, float]], sheet: Sheet) -> list[tuple[float, float]]:
    """Without marks that would touch an earlier one in the same lane."""
    kept: list[tuple[float, float]] = []
    last: dict[float, float] = {}
    for depth, y in sorted(spots):
        x = sheet.x(depth)
        if x - last.get(y, -99.0) >= 6:
            kept.append((depth, y))
            last[y] = x
    return kept


def _arrow(ax: Axes, m: Misplaced, sheet: Sheet, room: Room, c: Palette) -> None:
    left, right = sorted((sheet.x(m.true_tokens), sheet.x(m.end_tokens)))
    if right - left <= 8:
        return
    y = sheet.y(m.lane)
    how = {"arrowstyle": "->", "color": c.misplaced, "lw": 1.3, "shrinkA": 0, "shrinkB": sheet.dot / 2}
    ax.annotate("", (m.end_tokens, y), (m.true_tokens, y), arrowprops=how, zorder=6)
    room.take((left, y - 2, right, y + 2))


def _take_rows(marks: Marks, sheet: Sheet, room: Room) -> None:
    for lane, start, stop in [*marks.rows, *((lane, 0, stop) for lane, stop in marks.reused)]:
        y = sheet.y(lane)
        room.take((sheet.x(start), y - 1, sheet.x(stop), y + 1))


def _label_marks(ax: Axes, marks: Marks, sheet: Sheet, room: Room, c: Palette) -> None:
    r = sheet.dot / 2 + 2
    row_ends = {lane: sheet.x(stop) for lane, _, stop in sorted(marks.rows)}
    for m in marks.misplaced:
        left, right = sorted((sheet.x(m.true_tokens), sheet.x(m.end_tokens)))
        beyond = max(right, row_ends.get(m.lane, 0.0))
        _text(ax, m.label, sheet, room, sheet.y(m.lane), [right + r, beyond + r, -(left - r)], c.misplaced)
    for f in marks.refused if len(marks.reasons) > 1 else ():
        x = sheet.x(f.depth_tokens)
        numbers = ",".join(map(str, f.reasons[:3]))
        _text(ax, numbers, sheet, room, _off_bar(marks, sheet, f.lane), [x + r, -(x - r)], c.refused)


def _label_nodes(ax: Axes, nodes: list[dict[str, Any]], sheet: Sheet, room: Room, c: Palette) -> None:
    r = sheet.dot / 2 + 2
    for node in nodes:
        x = sheet.x(max(node["start_tokens"], sheet.low)) + r
        space = sheet.x(node["end_tokens"]) - r - x
        number = node["node_id"]
        for text in (f"node {number} · {node['request']}", f"node {number}", str(number)):
            fits = node["status"] != "tombstone" and text_width(text, TEXT) + 2 < space
            if fits and _text(ax, text, sheet, room, sheet.y(node["lane"]), [x], c.ink):
                break


def _text(ax: Axes, text: str, sheet: Sheet, room: Room, y: float, xs: list[float], colour: str) -> bool:
    """Write beginning at the first free one of ``xs`` (negative: ending at its amount), or not at all."""
    width = text_width(text, TEXT) + 2
    rects = ((x, y - 4.2, x + width, y + 4.2) for x in (v if v >= 0 else -v - width for v in xs))
    spot = room.first_free(rects)
    if spot is not None:
        ax.text(sheet.depth(spot[0] + 1), y, text, size=TEXT, color=colour, va="center_baseline", zorder=7)
    return spot is not None


def _label_lanes(ax: Axes, marks: Marks, nodes: list[dict[str, Any]], sheet: Sheet) -> None:
    names = {n["lane"]: f"{n['namespace']} {n['request']}".strip() for n in nodes if n["leaf"]}
    names |= {marks.node_lanes + i: f"{name} (no own node)" for i, name in enumerate(marks.outside)}
    for lane, name in names.items():
        text = fit_text(name, TEXT, sheet.margin)
        ax.annotate(text, (0, sheet.y(lane)), (-6, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
                    ha="right", va="center", size=TEXT)  # fmt: skip
