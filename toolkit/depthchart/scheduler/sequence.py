"""One request while it runs: its text, its KV row, its state slots, its lock."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from depthchart.cache import Node
from depthchart.cache.allocator import Pages
from depthchart.cache.memory import Holding
from depthchart.tokens import Tag, Text

__all__ = ["Sequence", "Snapshot"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state to be written by the executor, or already written, and not yet in the tree.

    ``wanted`` is the depth asked for, ``depth`` what the kernel stores for it, ``slot`` where. ``track`` is
    the ping-pong position (0 or 1), or None for a slot taken for this one snapshot.
    """

    slot: int
    wanted: int
    depth: int
    track: int | None


@dataclass(eq=False, slots=True)
class Sequence:
    """A request inside the cache. Token counts: ``computed`` have KV and went through the recurrence,
    the first ``protected`` of them belong to the tree, under ``lock``; the pages ``row[protected // page:]``
    are the request's own.

    A running request holds one ``working`` state slot and two ``tracks`` (a decode step writes a checkpoint
    to one while the other may still be the newest, sglang#14792). ``planned`` are the slots of further snapshots
    of an extend that is planned and neither booked nor cancelled yet. ``read``: the tag of the working state where it
    has read just the first ``computed`` tokens of the text; None where that is not known.
    """

    request: str
    text: Text
    prompt_tokens: int
    priority: int = 0
    row: Pages = field(default_factory=lambda: array("i"))
    computed: int = 0
    protected: int = 0
    lock: Node | None = None
    branch: int | None = None
    working: int | None = None
    tracks: list[int] = field(default_factory=list)
    next_track: int = 0
    tracked: list[Snapshot] = field(default_factory=list)
    planned: list[int] = field(default_factory=list)
    read: Tag | None = None

    @property
    def namespace(self) -> str:
        return self.text.namespace

    def own_pages(self) -> Pages:
        return self.row[self.protected // self.text.index.page :]

    def slots(self) -> list[int]:
        """All state slots that the request holds."""
        slots = [*self.tracks, *self.planned, *(s.slot for s in self.tracked if s.track is None)]
        if self.working is not None:
            slots.append(self.working)
        return slots

    def holding(self) -> Holding:
        """What the request holds, for ``Memory.check_invariants``."""
        return Holding(self.request, self.own_pages(), self.slots(), self.lock)
