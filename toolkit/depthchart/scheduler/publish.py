"""How a tracked state gets into the tree: while the request runs (checkpoint), and when it ends.

Who owns which tokens of a row, with the key cut at a tracked depth d (T: tree page)::

    [0, protected)            the tree, under the request's lock
    [protected, existing)     a copy of what the tree has already: freed
    [existing, floor(d, T))   handed to the tree
    [floor(d, T), d)          cut from the key, since no node can end at d
    [d, computed)             beyond the key

While the request runs it keeps the last two; when it ends they are freed as two segments. They are one where
d lies on the tree page. Where it does not, both share a page: that is sglang#39115.
"""

from __future__ import annotations

from array import array

from depthchart.cache.allocator import Pages, Segment, check_segments
from depthchart.cache.memory import Memory
from depthchart.cache.node import Node, Origin
from depthchart.errors import InvariantError, MisplacedStateError
from depthchart.events import Donated, Emit, NotDonated, Violation
from depthchart.scheduler.sequence import Sequence, Snapshot

__all__ = ["Publisher"]


class Publisher:
    """Donates tracked states to one memory's tree."""

    def __init__(self, memory: Memory, *, strict: bool, emit: Emit) -> None:
        self.memory, self.strict, self.emit = memory, strict, emit
        self.page = memory.geometry.tree_page

    def checkpoint(self, sequence: Sequence) -> None:
        """Publish all tracked states of a running request, shallowest first. In strict mode a fault raises
        before anything changes."""
        ordered = sorted(sequence.tracked, key=lambda s: s.depth)
        for earlier, snapshot in enumerate(ordered if self.strict else ()):
            # making room for an earlier one may evict the state that is in the way of a later one
            if earlier or not self._taken(sequence, snapshot):
                self._check_fit(sequence, snapshot)
        for snapshot in ordered:
            self._publish_running(sequence, snapshot)

    def finish(self, sequence: Sequence) -> tuple[Segment, ...]:
        """Publish the newest tracked state that fits (and those taken beside it), give the request's other
        tokens back. Returns the freed token ranges. In strict mode a fault raises before anything changes."""
        usable = [s for s in sequence.tracked if s.wanted <= sequence.computed]
        tracks = [s for s in usable if s.track is not None]
        last = tracks[-1] if tracks else None
        inner = [s for s in usable if s.track is None and (last is None or s.wanted < last.wanted)]
        self._check_end(sequence, last, inner)
        for snapshot in sorted(inner, key=lambda s: s.depth):
            self._publish_running(sequence, snapshot)
        for other in [s for s in sequence.tracked if s is not last]:
            self._drop(
                sequence,
                other,
                "superseded",
                f"the request ended with a newer state at {last.wanted if last else 0}",
            )
        existing = sequence.protected
        if last is not None:
            node, existing = self._insert(sequence, last.wanted // self.page)
            self._donate_at_end(sequence, last, node)
        own = self._segments(sequence, last, existing)
        self.memory.allocator.free(self._pages_in(sequence, own))
        self._free_unused(sequence)
        return own

    def supersede(self, sequence: Sequence, track: int) -> None:
        """A new state is about to take this ping-pong slot: what it held is lost."""
        for old in [s for s in sequence.tracked if s.track == track]:
            sequence.tracked.remove(old)
            self._tell(sequence, old, "superseded", "overwritten by a newer state")

    # --- one state ----------------------------------------------------------------------------------------

    def _publish_running(self, sequence: Sequence, snapshot: Snapshot) -> None:
        pages = snapshot.wanted // self.page
        if not pages:
            return self._drop(
                sequence, snapshot, "refused", f"depth {snapshot.wanted} is below the first tree page"
            )
        taken = self._taken(sequence, snapshot)
        fresh: int | None = None
        if not taken:
            self._check_fit(sequence, snapshot)
            if snapshot.track is not None and (fresh := self.memory.take_slot()) is None:
                # keep it: it may still be donated when the request ends
                return self._tell(
                    sequence, snapshot, "refused", "no state slot is free or evictable to replace it"
                )
        node, existing = self._insert(sequence, pages)
        self._move(sequence, node, existing)
        if taken:
            node.origin = min(node.origin, _origin(sequence, snapshot))
            return self._drop(
                sequence, snapshot, "refused", f"the node at {pages * self.page} has a state already"
            )
        # not always the locked node: a state that was kept may lie above what is protected by now
        self._file(sequence, snapshot, node)
        if snapshot.track is not None:
            assert fresh is not None
            sequence.tracks[snapshot.track] = fresh
        return None

    def _taken(self, sequence: Sequence, snapshot: Snapshot) -> bool:
        """Whether the node that would hold the state has one."""
        pages = snapshot.wanted // self.page
        return self.memory.tree.has_state(sequence.text.all_ids, pages, self._above(sequence, pages))

    def _above(self, sequence: Sequence, pages: int) -> Node | None:
        """The locked node, where it lies on the way to the end of the row's first ``pages`` pages."""
        lock = sequence.lock
        return lock if lock is not None and lock.end <= pages * self.page else None

    def _donate_at_end(self, sequence: Sequence, last: Snapshot, node: Node) -> None:
        if not node.end:
            self._drop(sequence, last, "refused", f"depth {last.wanted} is below the first tree page")
        elif node.state is not None:
            self.memory.tree.file_state(node, last.slot)  # refreshes the state that is there
            node.origin = min(node.origin, _origin(sequence, last))
            self._drop(sequence, last, "refused", f"the node at {node.end} has a state already")
        else:
            if last.track is not None:
                sequence.tracks.remove(last.slot)
            self._file(sequence, last, node)

    def _file(self, sequence: Sequence, snapshot: Snapshot, node: Node) -> None:
        problem = self.memory.misplaced(node, snapshot.slot)
        if problem is not None:
            self.emit(Violation(MisplacedStateError.__name__, problem, sequence.request))
        filed = self.memory.tree.file_state(node, snapshot.slot)
        assert filed
        node.origin = _origin(sequence, snapshot)
        sequence.tracked.remove(snapshot)
        consumed = self.memory.states.consumed(snapshot.slot)
        self.emit(
            Donated(sequence.request, node.node_id, snapshot.wanted, consumed, node.end, problem is None)
        )

    def _drop(self, sequence: Sequence, snapshot: Snapshot, outcome: str, reason: str) -> None:
        sequence.tracked.remove(snapshot)
        self._tell(sequence, snapshot, outcome, reason)
        if snapshot.track is None:
            self.memory.states.free(snapshot.slot)

    def _tell(self, sequence: Sequence, snapshot: Snapshot, outcome: str, reason: str) -> None:
        consumed = self.memory.states.consumed(snapshot.slot)
        self.emit(NotDonated(sequence.request, snapshot.wanted, consumed, outcome, reason))

    # --- KV -----------------------------------------------------------------------------------------------

    def _insert(self, sequence: Sequence, pages: int) -> tuple[Node, int]:
        """Insert the first ``pages`` pages of the row. Returns the node that ends there (the root where they are none),
        and how many tokens the tree had already."""
        inserted = self.memory.tree.insert(
            sequence.text.all_ids,
            sequence.row,
            pages,
            below=self._above(sequence, pages),
            request=sequence.request,
            namespace=sequence.namespace,
            priority=sequence.priority,
        )
        return inserted.node, max(inserted.existing, sequence.protected)

    def _move(self, sequence: Sequence, node: Node, existing: int) -> None:
        """Free the copies of what the tree had, take over the tree's pages for them, and move the lock to the node that
        was inserted just now."""
        tree, copied = self.memory.tree, min(existing, node.end) > sequence.protected
        if copied:
            self.memory.allocator.free_segments(sequence.row, [(sequence.protected, min(existing, node.end))])
        if node.end <= sequence.protected:
            return
        if sequence.lock is None:
            tree.lock(node)
        else:
            tree.move_lock(sequence.lock, node)
        sequence.lock, sequence.protected = node, node.end
        if copied:
            sequence.row[: node.end // self.page] = tree.pages_of(node)

    def _segments(self, sequence: Sequence, last: Snapshot | None, existing: int = 0) -> tuple[Segment, ...]:
        """The token ranges that a finished request frees; touching ranges that part on a page are one."""
        floor = (
            sequence.protected
            if last is None
            else max(sequence.protected, last.wanted // self.page * self.page)
        )
        cut = sequence.protected if last is None else max(last.wanted, sequence.protected)
        parts = [
            (sequence.protected, min(existing, floor)),
            (floor, cut),
            (max(cut, floor), sequence.computed),
        ]
        segments: list[Segment] = []
        for start, end in parts:
            if start >= end:
                continue
            if segments and segments[-1][1] == start and start % self.page == 0:
                segments[-1] = (segments[-1][0], end)
            else:
                segments.append((start, end))
        return tuple(segments)

    def _pages_in(self, sequence: Sequence, segments: tuple[Segment, ...]) -> Pages:
        """The pages that the ascending segments touch, each once (two share one where checks are off)."""
        pages, done = array("i"), 0
        for start, end in segments:
            stop = -(-end // self.page)
            pages += sequence.row[max(start // self.page, done) : stop]
            done = stop
        return pages

    def _free_unused(self, sequence: Sequence) -> None:
        """Pages that were taken for tokens never computed (a step that did not run)."""
        first = -(-sequence.computed // self.page)
        if first < len(sequence.row):
            self.memory.allocator.free(sequence.row[first:])

    # --- invariants ---------------------------------------------------------------------------------------

    def _check_end(self, sequence: Sequence, last: Snapshot | None, inner: list[Snapshot]) -> None:
        """The freed ranges must be page-disjoint and the states must fit their nodes: raise or record."""
        try:
            check_segments(self._segments(sequence, last), self.page, len(sequence.row) * self.page)
        except InvariantError as error:
            if self.strict:
                raise
            self.emit(Violation(type(error).__name__, str(error), sequence.request))
        for snapshot in [*inner, last] if last is not None else inner:
            self._check_fit(sequence, snapshot)

    def _check_fit(self, sequence: Sequence, snapshot: Snapshot) -> None:
        """In strict mode refuse, before anything changes, to file a state on a node of another depth."""
        node_end = snapshot.wanted // self.page * self.page
        tag = self.memory.states.tags[snapshot.slot]
        if not self.strict or not node_end or tag == sequence.text.tag(node_end):
            return
        consumed = "nothing" if tag is None else f"{tag.depth} tokens"
        raise MisplacedStateError(
            f"request {sequence.request!r}: the state tracked at depth {snapshot.wanted} has consumed {consumed}, "
            f"but the node that would hold it ends at {node_end}"
        )


def _origin(sequence: Sequence, snapshot: Snapshot) -> Origin:
    prompt, page = sequence.prompt_tokens, sequence.text.index.page
    if snapshot.wanted > prompt:
        return Origin.ANSWER
    return Origin.WAY if snapshot.wanted < prompt // page * page else Origin.PROMPT_END
