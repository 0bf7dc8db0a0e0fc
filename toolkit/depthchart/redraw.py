"""The radix tree redrawn from a run's events, at any moment, without the run's memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from html import escape

from depthchart.display import table_html
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

MOST_ROWS = 60
INDENT = "\u2003"  # HTML keeps it


@dataclass(slots=True, repr=False)
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

    @property
    def status(self) -> str:
        """One of columns.STATUS."""
        if self.state_depth is not None:
            return "state" if self.fits else "misplaced"
        return "tombstone" if self.had_state else "bare"

    def __repr__(self) -> str:
        return f"Node {self.node_id} [{self.start:,}, {self.end:,}) {self.state_words}"

    @property
    def state_words(self) -> str:
        """What its state is worth, in words."""
        if self.state_depth is None:
            return "tombstone: its state was evicted" if self.had_state else "no state"
        if self.fits:
            return f"state of {self.state_depth:,} tokens"
        off = self.state_depth - self.end
        if not off:
            return f"MISPLACED state: has read {self.state_depth:,} other tokens"
        return f"MISPLACED state: has read {self.state_depth:,} tokens ({off:+,})".replace("(-", "(−")

    def _repr_html_(self) -> str:
        """The node as a table, for a notebook."""
        rows = [
            ("node", self.node_id),
            ("tokens", f"[{self.start:,}, {self.end:,})"),
            ("state", self.state_words),
            ("below", "the root" if self.parent_id < 0 else f"node {self.parent_id}"),
            ("made by", self.request or "unknown"),
            ("made, last used", f"{self.created_s:,.2f} s, {self.last_used_s:,.2f} s"),
            ("locks", f"{self.kv_locks} on the KV, {self.state_locks} on the state"),
        ]
        return table_html([("what", "value"), *rows])


class TreeView:
    """Nodes by id, changed by one event after another."""

    def __init__(self) -> None:
        self.nodes: dict[int, DrawnNode] = {}

    def __repr__(self) -> str:
        counts = Counter(node.status for node in self.nodes.values())
        told = ", ".join(f"{count:,} {status}" for status, count in sorted(counts.items()))
        return f"TreeView of {len(self.nodes):,} nodes" + (f": {told}" if told else "")

    def __str__(self) -> str:
        """One line for each node, indented by its place in the tree."""
        return "\n".join([repr(self), *(f"{'  ' * (depth + 1)}{node!r}" for node, depth in self.walk())])

    def _repr_html_(self) -> str:
        """The tree as a table, for a notebook; ``charts.checkpoint_chart`` draws it."""
        shown = list(self.walk())
        rows = [
            (
                INDENT * depth + str(node.node_id),
                f"{node.start:,}",
                f"{node.end:,}",
                node.state_words,
                node.request,
            )
            for node, depth in shown[:MOST_ROWS]
        ]
        more = f"<p>and {len(shown) - MOST_ROWS:,} more</p>" if len(shown) > MOST_ROWS else ""
        head = ("node", "from [tokens]", "to [tokens]", "state", "made by")
        return f"<b>{escape(repr(self))}</b>{table_html([head, *rows], numeric=(1, 2))}{more}"

    def walk(self) -> Iterator[tuple[DrawnNode, int]]:
        """All nodes with their depth in the tree (0: children of the root), depth first, in order of making."""
        children: dict[int, list[DrawnNode]] = {}
        for node in sorted(self.nodes.values(), key=lambda node: (node.created_s, node.node_id)):
            children.setdefault(node.parent_id, []).append(node)
        stack = [(node, 0) for node in reversed(children.get(-1, []))]
        while stack:
            node, depth = stack.pop()
            yield node, depth
            stack += [(child, depth + 1) for child in reversed(children.get(node.node_id, []))]

    def copy(self) -> TreeView:
        """The same tree, apart from this one."""
        other = TreeView()
        other.nodes = {node_id: replace(node) for node_id, node in self.nodes.items()}
        return other

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
            case Matched(node_id=node_id, kv_node_id=kv_node_id):
                for node in self.path(kv_node_id or node_id):  # a match refreshes the KV of its whole path
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
