"""Which marks a checkpoint chart shows, and in which lane: frames in, plain lists out, nothing drawn.

All depths are in tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pandas as pd

from depthchart.charts.layout import lane_layout, relevant_nodes, require_columns
from depthchart.columns import CHECKPOINTS

__all__ = ["Marks", "Misplaced", "Refused", "collect_marks"]

MAX_EXTRA_LANES = 12


class Misplaced(NamedTuple):
    """A state of depth ``true_tokens``, filed at a node that ends at ``end_tokens``."""

    lane: int
    true_tokens: int
    end_tokens: int
    where: str

    @property
    def label(self) -> str:
        """How far it is off: ``+64 tokens``."""
        return f"{self.true_tokens - self.end_tokens:+,} tokens".replace("-", "−")


class Refused(NamedTuple):
    """Refusals at one spot; ``reasons`` are numbers of footnotes, from 1."""

    lane: int
    depth_tokens: int
    reasons: tuple[int, ...]


@dataclass(slots=True)
class Marks:
    """Everything to draw. ``nodes`` is the frame of ``lane_layout``; lanes after its last one belong to
    ``outside``: requests of which nothing is in the tree."""

    nodes: pd.DataFrame
    total_nodes: int
    outside: list[str] = field(default_factory=list)
    rows: list[tuple[int, int, int]] = field(default_factory=list)
    misplaced: list[Misplaced] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    superseded: list[tuple[int, int]] = field(default_factory=list)
    reasons: list[tuple[str, int]] = field(default_factory=list)
    hidden_marks: int = 0

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
    lane_layout(nodes)  # judge the whole frame, also the part that is not shown
    seen = nodes
    if window is not None:
        seen = seen[(seen["end_tokens"] > window[0]) & (seen["start_tokens"] < window[1])]
    placed = lane_layout(relevant_nodes(seen, max_nodes))
    marks = Marks(placed, total_nodes=len(nodes))
    for node in _records(placed[placed["status"].eq("misplaced") & placed["state_depth_tokens"].notna()]):
        true, end = int(node["state_depth_tokens"]), int(node["end_tokens"])
        marks.misplaced.append(Misplaced(int(node["lane"]), true, end, f"node {node['node_id']}"))
    if checkpoints is not None and len(checkpoints):
        require_columns(checkpoints, CHECKPOINTS, "checkpoints")
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
        self._outside: dict[Any, int] = {}
        self._refused: dict[tuple[int, int], list[int]] = {}
        self._reasons: dict[str, int] = {}
        self._counts: dict[str, int] = {}

    def place(self, checkpoints: pd.DataFrame, window: tuple[float, float] | None) -> None:
        for row in _records(checkpoints[checkpoints["outcome"].ne("donated")]):
            depth = _first(row, "depth_tokens", "end_tokens")
            if row["outcome"] == "misplaced" and row["node_id"] in self._by_id:
                self._row_beyond(row, self._by_id[row["node_id"]])
                continue  # the node itself shows what it holds
            if window is not None and not window[0] <= depth <= window[1]:
                self._marks.hidden_marks += 1
                continue
            spot = self._spot(row)
            if spot is None:
                self._marks.hidden_marks += 1
                continue
            self._add(row, depth, spot)
        self._marks.refused = [
            Refused(lane, depth, tuple(sorted(set(why)))) for (lane, depth), why in self._refused.items()
        ]
        self._marks.reasons = [(reason, self._counts[reason]) for reason in self._reasons]

    def _add(self, row: Mapping[str, Any], depth: int, spot: tuple[int, int]) -> None:
        lane = spot[0]
        if row["outcome"] in ("superseded", "pending"):
            self._marks.superseded.append((lane, depth))
        elif row["outcome"] == "misplaced":
            true, end = _first(row, "state_depth_tokens", "depth_tokens"), _first(row, "node_end_tokens", "end_tokens")
            self._marks.misplaced.append(Misplaced(lane, true, end, f"request {row['request']}"))
        else:
            reason = str(row["reason"]) if pd.notna(row["reason"]) and row["reason"] else "no reason recorded"
            number = self._reasons.setdefault(reason, len(self._reasons) + 1)
            self._counts[reason] = self._counts.get(reason, 0) + 1
            self._refused.setdefault((lane, depth), []).append(number)
        self._row_beyond(row, spot)

    def _row_beyond(self, row: Mapping[str, Any], spot: tuple[int, int]) -> None:
        """The part of the request's row that the tree does not hold."""
        stop = max(_first(row, "end_tokens", "depth_tokens"), _first(row, "depth_tokens", "end_tokens"))
        if stop > spot[1]:
            self._marks.rows.append((spot[0], spot[1], stop))

    def _spot(self, row: Mapping[str, Any]) -> tuple[int, int] | None:
        """Lane and depth at which the tree ends there; None where the place is not shown."""
        if pd.notna(row["node_id"]) and row["node_id"] in self._by_id:
            return self._by_id[row["node_id"]]
        request = row["request"]
        if request in self._by_request:
            return self._by_request[request]
        if request in self._hidden:
            return None
        if request not in self._outside:
            if len(self._outside) == MAX_EXTRA_LANES:
                return None
            self._outside[request] = self._marks.node_lanes + len(self._outside)
            self._marks.outside.append(str(request))
        return self._outside[request], 0


def _first(row: Mapping[str, Any], *columns: str) -> int:
    """The first of the columns that is not <NA>; 0 where all are."""
    return next((int(row[column]) for column in columns if pd.notna(row[column])), 0)


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    columns = [str(column) for column in frame.columns]
    return [dict(zip(columns, values, strict=True)) for values in frame.itertuples(index=False, name=None)]
