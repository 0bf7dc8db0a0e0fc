"""The radix tree redrawn from a run's events, at any moment, without the run's memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from depthchart.events import (
    Entry,
    Locked,
    Matched,
    NodeAdded,
    NodeRemoved,
    NodeSplit,
    StateDropped,
    StateFiled,
    Unlocked,
)

__all__ = ["DrawnNode", "TreeView", "redraw"]


@dataclass(slots=True)
class DrawnNode:
    """A node as the events tell it (columns.NODES); depths in tokens. ``last_used_s``: the last match through
    it, or its making."""

    node_id: int
    parent_id: int
    namespace: str
    start: int
    end: int
    request: str
    created_s: float
    last_used_s: float
    state_depth: int | None = None
    fits: bool = True
    had_state: bool = False
    kv_locks: int = 0
    state_locks: int = 0
    children: dict[int, DrawnNode] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """One of columns.STATUS."""
        if self.state_depth is not None:
            return "state" if self.fits else "misplaced"
        return "tombstone" if self.had_state else "bare"


class TreeView:
    """Nodes by id, changed by one event after another."""

    def __init__(self) -> None:
        self.nodes: dict[int, DrawnNode] = {}

    def apply(self, entry: Entry) -> None:
        """Take one event into account; those that do not touch the tree change nothing."""
        match entry.event:
            case NodeAdded(node_id, parent_id, start, end, request, namespace):
                now = entry.time_s
                parent = parent_id if parent_id in self.nodes else -1
                self.nodes[node_id] = DrawnNode(node_id, parent, namespace, start, end, request, now, now)
            case NodeSplit(node_id, upper_id, at):
                self._split(self.nodes[node_id], upper_id, at)
            case NodeRemoved(node_id):
                del self.nodes[node_id]
            case StateFiled(node_id, _, state_depth, fits):
                node = self.nodes[node_id]
                node.state_depth, node.fits, node.had_state = state_depth, fits, True
            case StateDropped(node_id):
                self.nodes[node_id].state_depth = None
            case Locked(node_id, state) | Unlocked(node_id, state):
                self._lock(node_id, 1 if isinstance(entry.event, Locked) else -1, state)
            case Matched(node_id=node_id):
                for node in self.path(node_id):
                    node.last_used_s = entry.time_s

    def path(self, node_id: int) -> list[DrawnNode]:
        """The node and those above it, deepest first."""
        found = []
        while node_id in self.nodes:
            found.append(self.nodes[node_id])
            node_id = self.nodes[node_id].parent_id
        return found

    def _split(self, node: DrawnNode, upper_id: int, at: int) -> None:
        upper = DrawnNode(
            upper_id,
            node.parent_id,
            node.namespace,
            node.start,
            at,
            node.request,
            node.created_s,
            node.last_used_s,
        )
        upper.kv_locks = node.kv_locks
        self.nodes[upper_id] = upper
        node.parent_id, node.start = upper_id, at

    def _lock(self, node_id: int, change: int, state: bool) -> None:
        for node in self.path(node_id):
            node.kv_locks += change
        if state:
            self.nodes[node_id].state_locks += change


def redraw(entries: Iterable[Entry], at: float | None = None) -> TreeView:
    """The tree after all events up to and including time ``at`` in seconds (None: after all)."""
    view = TreeView()
    for entry in entries:
        if at is not None and entry.time_s > at:
            break
        view.apply(entry)
    return view
