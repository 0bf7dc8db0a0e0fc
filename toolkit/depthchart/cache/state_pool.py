"""The pool of recurrent states: slots, and the shadow tag of what each slot has really consumed."""

from __future__ import annotations

from collections.abc import Iterable

from depthchart.errors import DoubleFreeError, InvariantError
from depthchart.geometry import positive_int
from depthchart.tokens import Tag

__all__ = ["StatePool"]


class StatePool:
    """``slots`` fixed-size state slots. ``tags[slot]`` is the shadow tag (None: nothing written yet)."""

    def __init__(self, slots: int) -> None:
        slots = positive_int("state_slots", slots)
        self.total_slots = slots
        self.tags: list[Tag | None] = [None] * slots
        self._free = list(range(slots - 1, -1, -1))
        self._used = bytearray(slots)

    @property
    def free_slots(self) -> int:
        return len(self._free)

    def allocate(self) -> int | None:
        """A slot without a tag, or None where all are in use."""
        if not self._free:
            return None
        slot = self._free.pop()
        self._used[slot] = 1
        self.tags[slot] = None
        return slot

    def consumed(self, slot: int) -> int:
        """How many tokens the slot's state has really consumed; -1 where none was written."""
        tag = self.tags[slot]
        return -1 if tag is None else tag.depth

    def free(self, slot: int) -> None:
        """Take a slot back. Raises DoubleFreeError where it is free already."""
        if not 0 <= slot < self.total_slots or not self._used[slot]:
            raise DoubleFreeError(
                f"state slot {slot} is not in use: it was freed before, or never handed out"
            )
        self._used[slot] = 0
        self.tags[slot] = None
        self._free.append(slot)

    def check(self, owned: Iterable[int]) -> None:
        """Raise InvariantError unless every slot is free or in ``owned``, exactly once."""
        owners = bytearray(self.total_slots)
        for slot in [*self._free, *owned]:
            owners[slot] += 1
        for slot, count in enumerate(owners):
            if count != 1:
                raise InvariantError(
                    f"state slot {slot} has {count} owners; it must be free or owned exactly once"
                )
