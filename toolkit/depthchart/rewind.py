"""A run's tree at any moment, forwards and backwards: the events applied one by one, with copies kept on the way.

A moment is a number of events that have happened. Going back starts from the copy before it, so that it costs at most
the events between two copies, whatever the length of the run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from depthchart.events import (
    Aborted,
    Donated,
    Entry,
    Extended,
    Finished,
    Locked,
    Matched,
    NodeAdded,
    NodeRemoved,
    NodeSplit,
    Rejected,
    StateDropped,
    StateFiled,
    Unlocked,
    Violation,
)
from depthchart.redraw import TreeView
from depthchart.told import told

__all__ = ["Moment", "Past", "Rewind"]

LEAST_APART = 256  # events between two copies
MOST_COPIES = 128
CHANGES = (NodeAdded, NodeSplit, NodeRemoved, StateFiled, StateDropped, Violation)


@dataclass(frozen=True, slots=True)
class Moment:
    """After the first ``count`` events; ``first`` is the first event that belongs to it. Times in seconds."""

    first: int
    count: int
    step: int
    time_s: float


class Past(NamedTuple):
    """One thing that happened to a node, in words."""

    time_s: float
    step: int
    what: str


class Rewind:
    """A run's events with the tree that they make; ``deepest`` is the deepest token that was ever computed or filed.

    Args:
        entries: the run's events, in order (``Run.log``).
        advance: called with the number of events read since the last call; whatever it raises ends the reading.
    """

    def __init__(self, entries: Iterable[Entry], advance: Callable[[int], object] | None = None) -> None:
        self.entries = list(entries)
        self.deepest = 0
        self._apart = max(LEAST_APART, -(-len(self.entries) // MOST_COPIES))
        self._copies: list[TreeView] = [TreeView()]
        self._touched: dict[int, list[int]] = {}
        self._of: dict[str, list[int]] = {}
        self._left: set[str] = set()
        self._named: dict[str, list[tuple[int, int]]] = {}
        self._view, self._count = TreeView(), 0
        for count, entry in enumerate(self.entries):
            self._note(count, entry)
            self._forward(count + 1)
            if (count + 1) % self._apart == 0:
                self._copies.append(self._view.copy())
                if advance is not None:
                    advance(self._apart)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def node_ids(self) -> list[int]:
        """Every node that there ever was, in order of making."""
        return [node_id for node_id in self._touched if node_id]

    def at(self, count: int) -> TreeView:
        """The tree after the first ``count`` events (0: empty). It is shared: copy it to keep it."""
        if not 0 <= count <= len(self.entries):
            raise ValueError(
                f"count={count}: must lie between 0 and the {len(self.entries)} events of the run"
            )
        copy = count // self._apart
        if count < self._count or copy * self._apart > self._count:
            self._view, self._count = self._copies[copy].copy(), copy * self._apart
        self._forward(count)
        return self._view

    def moments(self, by: str = "step", *, changes_only: bool = True) -> list[Moment]:
        """When the tree changed: once for each ``"step"`` in which it did, or for each ``"event"`` that did it.

        Always begins with the empty tree and ends with the last event. ``changes_only=False`` gives every step or event.
        """
        if by not in ("step", "event"):
            raise ValueError(f"by={by!r}: must be 'step' or 'event'")
        found = [Moment(0, 0, 0, 0.0)]
        first = 0
        for at, entry in enumerate(self.entries):
            last = at + 1 == len(self.entries)
            ends = last or by == "event" or self.entries[at + 1].step != entry.step
            if ends and (
                last
                or not changes_only
                or any(isinstance(e.event, CHANGES) for e in self.entries[first : at + 1])
            ):
                found.append(Moment(first, at + 1, entry.step, entry.time_s))
            if ends:
                first = at + 1
        return found

    def count_at(self, time_s: float) -> int:
        """How many events had happened at a time (seconds), those of that instant included."""
        return bisect_right(self.entries, time_s, key=lambda entry: entry.time_s)

    def changed(self, moment: Moment) -> set[int]:
        """The nodes that a moment's events made, split, gave a state or took one from."""
        found: set[int] = set()
        for entry in self.entries[moment.first : moment.count]:
            event = entry.event
            if isinstance(event, CHANGES) and not isinstance(event, Violation | NodeRemoved):
                found.add(event.node_id)
            if isinstance(event, NodeSplit):
                found.add(event.upper_id)
        return found

    def history(self, node_id: int) -> list[Past]:
        """Everything that happened to a node, in order and in words; empty for a node that never was."""
        rows = (self.entries[at] for at in self._touched.get(node_id, ()))
        return [Past(entry.time_s, entry.step, told(entry.event, node_id)) for entry in rows]

    def nodes_of(self, request: str, count: int) -> set[int]:
        """The nodes of a request's path, as far as they are in the tree after ``count`` events: those that it made,
        matched or gave a state, and all above them."""
        view = self.at(count)
        named = {node.node_id for node in view.nodes.values() if node.request == request}
        named.update(node_id for at, node_id in self._named.get(request, ()) if at < count)
        return {node.node_id for node_id in named for node in view.path(node_id)}

    def running(self, moment: Moment) -> list[str]:
        """The requests that were running at a moment, or left in it, in order of arrival."""
        return [
            request
            for request, ats in self._of.items()
            if ats[0] < moment.count and (ats[-1] >= moment.first or request not in self._left)
        ]

    def decisions(self, requests: Iterable[str], count: int) -> list[Entry]:
        """The events of these requests among the first ``count``: what ``frames.checkpoints`` needs to know."""
        ats = sorted(at for request in requests for at in self._of.get(request, ()) if at < count)
        return [self.entries[at] for at in ats]

    @property
    def requests(self) -> list[str]:
        """Every request that was ever matched or ran, in order of arrival."""
        return list(self._of)

    def _forward(self, count: int) -> None:
        while self._count < count:
            self._view.apply(self.entries[self._count])
            self._count += 1

    def _note(self, at: int, entry: Entry) -> None:
        """Remember which nodes an event concerns; a match concerns the whole path."""
        event: Any = entry.event
        if request := getattr(event, "request", ""):
            self._of.setdefault(request, []).append(at)
        if isinstance(event, Finished | Aborted | Rejected):
            self._left.add(event.request)
        if isinstance(event, Matched | Donated):
            self._named.setdefault(event.request, []).append((at, event.node_id))
        if isinstance(event, NodeAdded | Extended):
            self.deepest = max(self.deepest, event.end)
        match event:
            case NodeSplit(node_id, upper_id):
                ids = [node_id, upper_id]
            case Matched(node_id=node_id):
                ids = [node.node_id for node in self._view.path(node_id)]
            case (
                NodeAdded()
                | NodeRemoved()
                | StateFiled()
                | StateDropped()
                | Locked()
                | Unlocked()
                | Donated()
            ):
                ids = [event.node_id]
            case _:
                return
        for node_id in ids:
            self._touched.setdefault(node_id, []).append(at)
