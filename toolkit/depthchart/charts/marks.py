"""Which marks a checkpoint chart shows, and in which lane: frames in, plain lists out, nothing drawn.

All depths are in tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pandas as pd

from depthchart.charts.layout import check_nodes, lane_layout, relevant_nodes, require_columns
from depthchart.columns import CHECKPOINTS

__all__ = ["Marks", "Misplaced", "Reason", "Refused", "collect_marks"]

MOST_OUTSIDE, MOST_REASONS = 3, 4
MOST_CUT_ROWS, MOST_CUTS = 3, 8


class Misplaced(NamedTuple):
    """A state of depth ``true_tokens``, filed at a node that ends at ``end_tokens``."""

    lane: int
    true_tokens: int
    end_tokens: int
    where: str

    @property
    def label(self) -> str:
        """What it has read and how far that is off: ``has read 576 (+64)``."""
        off = f"{self.true_tokens - self.end_tokens:+,}".replace("-", "−")
        return f"has read {self.true_tokens:,} ({off})"


class Refused(NamedTuple):
    """Refusals at one spot; ``reasons`` are numbers of footnotes, from 1."""

    lane: int
    depth_tokens: int
    reasons: tuple[int, ...]


class Reason(NamedTuple):
    """Why ``times`` checkpoints were refused; reasons that differ in their numbers alone are one, told by its
    newest ``example``."""

    example: str
    times: int
    same: bool

    @property
    def text(self) -> str:
        """The example, and how many more there are."""
        if self.times == 1:
            return self.example
        return (
            f"{self.example} (×{self.times})" if self.same else f"{self.example} (and {self.times - 1} alike)"
        )


@dataclass(slots=True)
class Marks:
    """Everything to draw. ``nodes`` is the frame of ``lane_layout``; lanes after its last one belong to
    ``outside``: the newest requests that have no node of their own.

    ``rows`` are (lane, start, stop) of tokens that the tree does not hold, ``reused`` (lane, stop) of what a request
    outside found in the tree, ``superseded`` (lane, depth). ``cuts`` has, for a few short requests, the
    depths at which their prefill steps began and ended. ``changed``: nodes to be framed.
    """

    nodes: pd.DataFrame
    total_nodes: int
    outside: list[str] = field(default_factory=list)
    rows: list[tuple[int, int, int]] = field(default_factory=list)
    misplaced: list[Misplaced] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    superseded: list[tuple[int, int]] = field(default_factory=list)
    reused: list[tuple[int, int]] = field(default_factory=list)
    cuts: list[tuple[str, list[int]]] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)
    hidden_marks: int = 0
    changed: set[int] = field(default_factory=set)

    @property
    def lanes(self) -> int:
        """Number of lanes, at least one."""
        return max(1, self.node_lanes + len(self.outside))

    @property
    def node_lanes(self) -> int:
        """Lanes that the tree's leaves take."""
        return int(self.nodes["leaf"].sum())

    def deepest(self) -> int:
        """The deepest token depth that is drawn."""
        depths = [int(self.nodes["end_tokens"].max())] if len(self.nodes) else [0]
        depths += [stop for _, _, stop in self.rows] + [m.true_tokens for m in self.misplaced]
        depths += [r.depth_tokens for r in self.refused] + [depth for _, depth in self.superseded]
        return max(depths)


def collect_marks(
    nodes: pd.DataFrame,
    checkpoints: pd.DataFrame | None,
    max_nodes: int,
    window: tuple[float, float] | None,
) -> Marks:
    """Choose the nodes to show, give them lanes, and find the place of every checkpoint."""
    if checkpoints is not None:
        require_columns(checkpoints, CHECKPOINTS, "checkpoints")
    check_nodes(nodes)  # also the part that is not shown
    seen = nodes
    if window is not None:
        seen = seen[(seen["end_tokens"] > window[0]) & (seen["start_tokens"] < window[1])]
    seen = relevant_nodes(seen, max_nodes)
    placed = lane_layout(seen)
    marks = Marks(placed, total_nodes=len(nodes))
    for node in _records(placed[placed["status"].eq("misplaced") & placed["state_depth_tokens"].notna()]):
        true, end = int(node["state_depth_tokens"]), int(node["end_tokens"])
        marks.misplaced.append(Misplaced(int(node["lane"]), true, end, f"node {node['node_id']}"))
    if checkpoints is not None and len(checkpoints):
        marks.cuts = _cuts(checkpoints, window)
        _Placer(marks, nodes).place(checkpoints, window)
    return marks


class _Placer:
    """Finds the lane of each checkpoint: its node's, else that of its request's deepest node."""

    def __init__(self, marks: Marks, all_nodes: pd.DataFrame) -> None:
        self._marks = marks
        self._by_id: dict[Any, tuple[int, int]] = {}
        self._by_request: dict[Any, tuple[int, int]] = {}
        for node in _records(marks.nodes[["node_id", "request", "lane", "end_tokens"]]):
            spot = (int(node["lane"]), int(node["end_tokens"]))
            self._by_id[node["node_id"]] = spot
            if spot[1] > self._by_request.get(node["request"], (0, -1))[1]:
                self._by_request[node["request"]] = spot
        self._hidden = set(all_nodes["request"]) - set(self._by_request)
        self._outside: dict[Any, tuple[int, int]] = {}
        self._refused: dict[tuple[int, int], list[int]] = {}
        self._reasons: dict[str, list[str]] = {}
        self._alike = False

    def place(self, checkpoints: pd.DataFrame, window: tuple[float, float] | None) -> None:
        rows = _records(checkpoints[checkpoints["outcome"].ne("donated")])
        shown = [
            row for row in rows if window is None or window[0] <= _depth(row) <= window[1] or self._filed(row)
        ]
        self._marks.hidden_marks = len(rows) - len(shown)
        self._open_outside(shown)
        texts = {_reason(row) for row in shown if row["outcome"] == "refused"}
        self._alike = len(texts) > MOST_REASONS  # then those that differ in their numbers alone become one
        for row in shown:
            self._add(row)
        self._marks.refused = [Refused(*at, tuple(sorted(set(why)))) for at, why in self._refused.items()]
        self._marks.reasons = [Reason(t[-1], len(t), len(set(t)) == 1) for t in self._reasons.values()]

    def _filed(self, row: Mapping[str, Any]) -> bool:
        """Whether it is the state of a node that is shown: the node itself says so."""
        return row["outcome"] == "misplaced" and row["node_id"] in self._by_id

    def _open_outside(self, rows: list[dict[str, Any]]) -> None:
        """Lanes below the tree for the newest requests that have no node of their own."""
        first: dict[Any, int] = {}
        for row in rows:
            request = row["request"]
            known = row["node_id"] in self._by_id or request in self._by_request or request in self._hidden
            if not known:
                first.setdefault(request, _first(row, "prefix_tokens"))
        for request in list(first)[-MOST_OUTSIDE:]:
            lane = self._marks.node_lanes + len(self._outside)
            self._outside[request] = (lane, first[request])
            self._marks.outside.append(str(request))
            if first[request]:
                self._marks.reused.append((lane, first[request]))

    def _add(self, row: Mapping[str, Any]) -> None:
        spot = self._spot(row)
        if spot is None:
            self._marks.hidden_marks += 1
            return
        self._row_beyond(row, spot)
        if self._filed(row):
            return
        lane, depth = spot[0], _depth(row)
        if row["outcome"] in ("superseded", "pending"):
            self._marks.superseded.append((lane, depth))
        elif row["outcome"] == "misplaced":
            true, end = (
                _first(row, "state_depth_tokens", "depth_tokens"),
                _first(row, "node_end_tokens", "end_tokens"),
            )
            self._marks.misplaced.append(Misplaced(lane, true, end, f"request {row['request']}"))
        else:
            self._refused.setdefault((lane, depth), []).append(self._number(_reason(row)))

    def _number(self, text: str) -> int:
        """The footnote that tells this reason."""
        kind = re.sub(r"\d[\d,]*", "#", text) if self._alike else text
        self._reasons.setdefault(kind, []).append(text)
        return list(self._reasons).index(kind) + 1

    def _row_beyond(self, row: Mapping[str, Any], spot: tuple[int, int]) -> None:
        """The part of the request's row that the tree does not hold."""
        stop = max(_first(row, "end_tokens", "depth_tokens"), _first(row, "depth_tokens", "end_tokens"))
        if stop > spot[1]:
            self._marks.rows.append((spot[0], spot[1], stop))

    def _spot(self, row: Mapping[str, Any]) -> tuple[int, int] | None:
        """Lane and depth at which the tree ends there; None where the place is not shown."""
        if pd.notna(row["node_id"]) and row["node_id"] in self._by_id:
            return self._by_id[row["node_id"]]
        return self._by_request.get(row["request"]) or self._outside.get(row["request"])


def _cuts(checkpoints: pd.DataFrame, window: tuple[float, float] | None) -> list[tuple[str, list[int]]]:
    """Where the prefill steps of each request began and ended; nothing where that would fill the chart."""
    rows = checkpoints[checkpoints["kind"].eq("prefill")]
    found: dict[str, set[int]] = {}
    for request, prefix, end in zip(rows["request"], rows["prefix_tokens"], rows["end_tokens"], strict=True):
        inside = {
            int(d) for d in (prefix, end) if pd.notna(d) and (window is None or window[0] <= d <= window[1])
        }
        found.setdefault(str(request), set()).update(inside)
    if len(found) > MOST_CUT_ROWS or any(len(depths) > MOST_CUTS for depths in found.values()):
        return []
    return [(request, sorted(depths)) for request, depths in found.items() if depths]


def _reason(row: Mapping[str, Any]) -> str:
    return str(row["reason"]) if pd.notna(row["reason"]) and row["reason"] else "no reason recorded"


def _depth(row: Mapping[str, Any]) -> int:
    return _first(row, "depth_tokens", "end_tokens")


def _first(row: Mapping[str, Any], *columns: str) -> int:
    """The first of the columns that is not <NA>; 0 where all are."""
    return next((int(row[column]) for column in columns if pd.notna(row[column])), 0)


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    columns = [str(column) for column in frame.columns]
    return [dict(zip(columns, values, strict=True)) for values in frame.itertuples(index=False, name=None)]
