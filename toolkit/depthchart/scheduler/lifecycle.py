"""The life of a request in the cache: match, extend, checkpoint, decode, finish, abort.

The same code serves the simulator, the real engine and the replay of scripts. It plans what the executor
must do (which states to copy and to write) and keeps the books; it never looks at tensors.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import NamedTuple

from depthchart.cache.memory import Holding, Memory
from depthchart.depth import Decision, Rule, rule_of
from depthchart.errors import PoolExhausted
from depthchart.events import (
    Aborted,
    Admitted,
    Emit,
    Extended,
    Finished,
    Freed,
    Matched,
    Retracted,
    Tracked,
    ignore,
)
from depthchart.scheduler.publish import Publisher
from depthchart.scheduler.sequence import Sequence, Snapshot
from depthchart.tokens import TAINTED, Tag, Text

__all__ = ["Decode", "Extend", "Lifecycle", "StateCopy"]

TRACK_SLOTS = 2


class StateCopy(NamedTuple):
    """Copy one state slot to another before the step runs (copy-on-write of a matched state)."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Extend:
    """Plan of one prefill row: run the tokens ``[prefix, end)`` on ``working`` (from zeros at prefix 0), and
    write ``snapshots`` on the way."""

    sequence: Sequence
    prefix: int
    end: int
    decision: Decision
    snapshots: tuple[Snapshot, ...]


@dataclass(frozen=True, slots=True)
class Decode:
    """Plan of one decode row: run token ``position`` on ``working``; ``snapshot`` is a copy of the state
    after it, where one is due. ``tokens`` is more than one where steps without a checkpoint are planned together."""

    sequence: Sequence
    position: int
    snapshot: Snapshot | None
    tokens: int = 1


class Lifecycle:
    """Moves requests through one memory under one depth rule.

    ``strict``: a broken invariant raises, leaving the memory as it was; otherwise it is emitted as a Violation
    and the run goes on, as an engine without the check would. ``spare_pages`` are freed on top of what an
    extend needs (SGLang evicts one page more a request; we do not).
    """

    def __init__(
        self,
        memory: Memory,
        rule: str | Rule = "absolute",
        *,
        strict: bool = True,
        spare_pages: int = 0,
        emit: Emit = ignore,
    ) -> None:
        self.memory = memory
        self.geometry = memory.geometry
        self.page = memory.geometry.tree_page
        self.rule = rule_of(rule)
        self.decode_grid = self.rule.decode_grid(self.geometry)
        self.spare_pages = spare_pages
        self.emit = emit
        self.publisher = Publisher(memory, strict=strict, emit=emit)
        self.active: dict[str, Sequence] = {}
        self.copies: list[StateCopy] = []

    @property
    def strict(self) -> bool:
        return self.publisher.strict

    # --- arriving -----------------------------------------------------------------------------------------

    def begin(
        self, request: str, text: Text, prompt_tokens: int | None = None, priority: int = 0
    ) -> Sequence | None:
        """Match at most one token less than the text, lock the node, copy its state to the request's own slot.

        ``prompt_tokens``: how much of the text is the prompt (all of it, unless the request resumes after a
        retraction). Returns None, with nothing held, where no state slot can be had for the copy.
        """
        if request in self.active:
            raise ValueError(f"request={request!r}: is running already; finish or abort it first")
        if len(text) < 1:
            raise ValueError(f"request={request!r}: the prompt must have at least one token")
        prompt = len(text) if prompt_tokens is None else prompt_tokens
        if not 1 <= prompt <= len(text):
            raise ValueError(
                f"prompt_tokens={prompt}: must lie in [1, {len(text)}], the text of request {request!r}; "
                f"nearest legal: {min(max(prompt, 1), len(text))}"
            )
        tree = self.memory.tree
        match = tree.match(text.all_ids, (len(text) - 1) // self.page)
        tree.lock(match.node)
        sequence = Sequence(request, text, prompt, priority, lock=match.node, branch=match.branch)
        if match.tokens:
            sequence.working = self.memory.take_slot()
            if sequence.working is None:
                tree.unlock(match.node)
                return None
            assert match.node.state is not None
            self.memory.states.tags[sequence.working] = self.memory.states.tags[match.node.state]
            self.copies.append(StateCopy(match.node.state, sequence.working))
        sequence.row = tree.pages_of(match.node)
        sequence.computed = sequence.protected = match.tokens
        self.active[request] = sequence
        ends = match.node.node_id, match.kv_node.node_id
        self.emit(Matched(request, match.tokens, match.kv_tokens, match.branch, *ends))
        self.emit(Admitted(request, match.tokens))
        return sequence

    def take_copies(self) -> tuple[StateCopy, ...]:
        """The state copies that the executor must do before its next step, handed over once."""
        copies, self.copies = tuple(self.copies), []
        return copies

    # --- prefill ------------------------------------------------------------------------------------------

    def plan_extend(self, sequence: Sequence, end: int) -> Extend:
        """Take what the extend ``[computed, end)`` needs and decide its checkpoint.

        Raises PoolExhausted, taking nothing, where KV pages or the request's three state slots cannot be had;
        RuleError where a user's rule misbehaves.
        """
        prefix = sequence.computed
        if not prefix < end <= len(sequence.text):
            raise ValueError(
                f"end={end}: must lie in ({prefix}, {len(sequence.text)}] for request {sequence.request!r}"
            )
        decision = self.rule(self.geometry, prefix, end, sequence.branch)
        self.take_row(sequence, end)
        snapshots = self._plan_snapshots(sequence, prefix, end, decision)
        return Extend(sequence, prefix, end, decision, snapshots)

    def commit_extend(self, plan: Extend) -> None:
        """Book a prefill row that the executor has run."""
        sequence = plan.sequence
        self._make_way(sequence, plan.snapshots)
        self._write_tags(sequence, plan.prefix, plan.end, plan.snapshots)
        sequence.computed = plan.end
        wanted = plan.decision.depth if plan.decision.donate else None
        self.emit(
            Extended(
                sequence.request, plan.prefix, plan.end, wanted, plan.decision.donate, plan.decision.reason
            )
        )
        for snapshot in plan.snapshots:
            if snapshot.track is None:
                sequence.planned.remove(snapshot.slot)
            self._track(sequence, snapshot, "prefill", plan.prefix, plan.end)

    def cancel_extend(self, plan: Extend) -> None:
        """Give back what a plan took beyond the request's own row and slots (it was not run). Nothing is left to give
        back where the request itself has gone since."""
        for snapshot in plan.snapshots:
            if snapshot.slot in plan.sequence.planned:
                plan.sequence.planned.remove(snapshot.slot)
                self.memory.states.free(snapshot.slot)

    def checkpoint(self, sequence: Sequence) -> None:
        """Publish what was tracked: insert the page-floored key, donate, rematch, move the lock."""
        self.publisher.checkpoint(sequence)

    # --- decode -------------------------------------------------------------------------------------------

    def plan_decode(self, sequence: Sequence, tokens: int = 1) -> Decode:
        """Take what one decode step needs, or ``tokens`` steps up to the next checkpoint at most; raises PoolExhausted,
        taking nothing, without a page."""
        end = sequence.computed + tokens
        if not 1 <= tokens <= self.decode_grid - sequence.computed % self.decode_grid:
            raise ValueError(
                f"tokens={tokens}: must be at least 1 and not pass the next multiple of {self.decode_grid}"
            )
        if end > len(sequence.text):
            raise ValueError(
                f"request {sequence.request!r} has no token {end - 1}: append it before its decode step"
            )
        self.take_row(sequence, end)
        snapshot = None
        if end % self.decode_grid == 0:
            track = sequence.next_track
            snapshot = Snapshot(sequence.tracks[track], end, end, track)
        return Decode(sequence, sequence.computed, snapshot, tokens)

    def commit_decode(self, plan: Decode) -> None:
        """Book a decode row that the executor has run."""
        sequence, snapshots = plan.sequence, () if plan.snapshot is None else (plan.snapshot,)
        self._make_way(sequence, snapshots)
        self._write_tags(sequence, plan.position, plan.position + plan.tokens, snapshots)
        sequence.computed += plan.tokens
        for snapshot in snapshots:
            self._track(sequence, snapshot, "decode", snapshot.depth - 1, snapshot.depth)

    # --- leaving ------------------------------------------------------------------------------------------

    def finish(self, sequence: Sequence) -> tuple[tuple[int, int], ...]:
        """Donate the last usable state, insert its key, free the rest, unlock. Returns the freed token ranges."""
        segments = self.publisher.finish(sequence)
        self._release(sequence)
        self.emit(Freed(sequence.request, segments))
        self.emit(Finished(sequence.request, sequence.computed, len(sequence.text) - sequence.prompt_tokens))
        return segments

    def abort(self, sequence: Sequence) -> tuple[tuple[int, int], ...]:
        """Give everything back and donate nothing. Returns the freed token ranges."""
        held = sequence.computed
        segments = ((sequence.protected, held),) if held > sequence.protected else ()
        self.memory.allocator.free(sequence.row[sequence.protected // self.page :])
        self._release(sequence)
        self.emit(Freed(sequence.request, segments))
        self.emit(Aborted(sequence.request, held))
        return segments

    def retract(self, sequence: Sequence) -> None:
        """Take a running request off the memory, keeping its last usable state in the tree (where it may be
        evicted), so that it resumes from there when it is admitted again."""
        segments = self.publisher.finish(sequence)
        self._release(sequence)
        self.emit(Freed(sequence.request, segments))
        self.emit(Retracted(sequence.request, sequence.computed))

    def holdings(self) -> list[Holding]:
        """What all running requests hold, for ``Memory.check_invariants``."""
        return [sequence.holding() for sequence in self.active.values()]

    def check_invariants(self) -> None:
        """DESIGN section 3 for the memory and all running requests; raises InvariantError."""
        self.memory.check_invariants(self.holdings())

    # --- helpers ------------------------------------------------------------------------------------------

    def take_row(self, sequence: Sequence, end: int) -> None:
        """Grow the row to hold ``end`` tokens, and take the request's missing state slots. Raises PoolExhausted, taking
        nothing, where they cannot be had."""
        missing = (sequence.working is None) + TRACK_SLOTS - len(sequence.tracks)
        if missing:
            room = self.memory.states.free_slots + self.memory.tree.evictable_states
            if missing > room:
                raise PoolExhausted(
                    f"request {sequence.request!r} needs {missing} state slots; {room} are free or evictable"
                )
        pages = -(-end // self.page) - len(sequence.row)
        if pages > 0:
            sequence.row += self.memory.take_pages(pages, self.spare_pages)
        if not missing:
            return
        slots = self.memory.take_slots(missing)
        assert slots is not None
        if sequence.working is None:
            sequence.working = slots.pop()
        sequence.tracks += slots

    def _plan_snapshots(
        self, sequence: Sequence, prefix: int, end: int, decision: Decision
    ) -> tuple[Snapshot, ...]:
        """One snapshot in the next ping-pong slot; further ones in slots of their own, as far as there are any."""
        snapshots: list[Snapshot] = []
        for wanted in decision.depths:
            stored = self.rule.stored_depth(self.geometry, prefix, end, wanted)
            if wanted == decision.depth:
                track = sequence.next_track
                snapshots.append(Snapshot(sequence.tracks[track], wanted, stored, track))
            elif (slot := self.memory.take_slot()) is not None:
                snapshots.append(Snapshot(slot, wanted, stored, None))
                sequence.planned.append(slot)
        return tuple(snapshots)

    def _make_way(self, sequence: Sequence, snapshots: tuple[Snapshot, ...]) -> None:
        """Give up what the ping-pong slots of these snapshots held, before it is overwritten."""
        for snapshot in snapshots:
            if snapshot.track is not None:
                self.publisher.supersede(sequence, snapshot.track)

    def _track(self, sequence: Sequence, snapshot: Snapshot, kind: str, prefix: int, end: int) -> None:
        if snapshot.track is not None:
            sequence.next_track = (snapshot.track + 1) % TRACK_SLOTS
        sequence.tracked.append(snapshot)
        consumed = self.memory.states.consumed(snapshot.slot)
        self.emit(Tracked(sequence.request, kind, prefix, end, snapshot.wanted, consumed))

    def _write_tags(self, sequence: Sequence, prefix: int, end: int, snapshots: tuple[Snapshot, ...]) -> None:
        """The shadow of what the executor did: working state and snapshots have consumed these tokens, on top
        of whatever the working state had consumed before."""
        tags, text = self.memory.states.tags, sequence.text
        assert sequence.working is not None
        before = tags[sequence.working] if prefix else Tag(0, text.index.root(text.namespace))
        sound = before is not None and (
            (before is sequence.read and before.depth == prefix) or before == text.tag(prefix)
        )
        start = 0 if before is None else before.depth

        def read(depth: int) -> Tag:
            return text.tag(depth) if sound else Tag(start + depth - prefix, TAINTED)

        for snapshot in snapshots:
            tags[snapshot.slot] = read(snapshot.depth)
        tags[sequence.working] = now = read(end)
        sequence.read = now if sound else None

    def _release(self, sequence: Sequence) -> None:
        """Slots and lock; the KV was dealt with before."""
        for slot in sequence.slots():
            self.memory.states.free(slot)
        if self.copies:
            self.copies = [copy for copy in self.copies if copy.target != sequence.working]
        if sequence.lock is not None:
            self.memory.tree.unlock(sequence.lock)
        sequence.tracked, sequence.tracks, sequence.planned, sequence.row = [], [], [], array("i")
        sequence.working = sequence.lock = None
        del self.active[sequence.request]
