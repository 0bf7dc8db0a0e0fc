"""The host-side plan of one packed call: which tokens belong to which sequence, and which state slots are touched.

A `Batch` is checked once and shared by every operator of every layer, so that a layer's recurrent state and its
convolution window are always cut at the same token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Batch", "Integers", "Snapshot", "make_batch"]

IntArray = npt.NDArray[np.int64]
Integers = Any  # a list, a NumPy array or a tensor of whole numbers
Snapshot = tuple[int, int, int]


@dataclass(frozen=True, slots=False, eq=False)
class Batch:
    """A checked plan; make one with `make_batch`.

    Attributes
    ----------
    cu_seqlens: [sequences + 1], first token of each sequence in the packed batch, then the total.
    initial_slots: [sequences], pool slot that a sequence starts from; −1 starts from zeros.
    final_slots: [sequences], slot that gets the state after the last token; −1 writes nothing.
    snapshot_sequences, snapshot_depths, snapshot_slots: [snapshots] each, sorted by (sequence, depth).
    """

    cu_seqlens: IntArray
    initial_slots: IntArray
    final_slots: IntArray
    snapshot_sequences: IntArray
    snapshot_depths: IntArray
    snapshot_slots: IntArray

    @property
    def tokens(self) -> int:
        """Tokens in the packed batch."""
        return int(self.cu_seqlens[-1])

    @property
    def sequences(self) -> int:
        """Sequences in the packed batch, empty ones included."""
        return len(self.cu_seqlens) - 1

    @cached_property
    def lengths(self) -> IntArray:
        """[sequences], tokens of each sequence."""
        return np.diff(self.cu_seqlens)

    @cached_property
    def touches_states(self) -> bool:
        """Whether any slot is read or written."""
        slots = np.concatenate([self.initial_slots, self.final_slots, self.snapshot_slots])
        return bool((slots >= 0).any())

    @cached_property
    def highest_slot(self) -> int:
        """Highest slot that is read or written, −1 if none is."""
        slots = np.concatenate([[-1], self.initial_slots, self.final_slots, self.snapshot_slots])
        return int(slots.max())

    @cached_property
    def snapshot_starts(self) -> IntArray:
        """[sequences + 1]: sequence s owns snapshots snapshot_starts[s] up to snapshot_starts[s + 1]."""
        return np.searchsorted(self.snapshot_sequences, np.arange(self.sequences + 1)).astype(np.int64)

    @cached_property
    def writes(self) -> tuple[IntArray, IntArray, IntArray]:
        """Sequences, depths and slots of everything that is written: snapshots and finals alike."""
        owners = np.flatnonzero(self.final_slots >= 0)
        sequences = np.concatenate([self.snapshot_sequences, owners])
        depths = np.concatenate([self.snapshot_depths, self.lengths[owners]])
        return sequences, depths, np.concatenate([self.snapshot_slots, self.final_slots[owners]])


def make_batch(
    cu_seqlens: Integers,
    *,
    initial_slots: Integers | None = None,
    final_slots: Integers | None = None,
    snapshots: Iterable[Sequence[int]] | Integers = (),
) -> Batch:
    """Check a plan and freeze it.

    Parameters
    ----------
    cu_seqlens:
        [sequences + 1] whole numbers from 0, never falling; equal neighbours make an empty sequence.
    initial_slots, final_slots:
        [sequences], −1 for "zeros" and "do not write"; absent means −1 everywhere.
    snapshots:
        triples (sequence, depth, slot): after exactly ``depth`` of that sequence's tokens in this call
        its state is written to ``slot``. Depth 0 is the initial state, the sequence's length its final state.
        Any depth, any number per sequence, any order.

    Raises ``ValueError`` naming the argument, the value and what is legal: a written slot must not be written
    twice, nor be the initial slot of another sequence. A sequence may overwrite its own initial slot.

    >>> make_batch([0, 5], initial_slots=[0], final_slots=[0], snapshots=[(0, 3, 1)]).tokens
    5
    """
    bounds = _integers("cu_seqlens", cu_seqlens, None)
    if len(bounds) < 1 or bounds[0] != 0:
        raise ValueError(
            f"cu_seqlens must start with 0 and end with the number of tokens, got {_short(bounds)}"
        )
    falls = np.flatnonzero(np.diff(bounds) < 0)
    if len(falls):
        at = int(falls[0])
        raise ValueError(
            f"cu_seqlens must never fall, but entry {at + 1} is {bounds[at + 1]} after {bounds[at]}; "
            f"an empty sequence repeats {bounds[at]}"
        )
    count = len(bounds) - 1
    initial = _slots("initial_slots", initial_slots, count)
    final = _slots("final_slots", final_slots, count)
    sequences, depths, slots = _snapshots(snapshots, np.diff(bounds))
    batch = Batch(bounds, initial, final, sequences, depths, slots)
    _check_conflicts(batch)
    return batch


def as_integers(name: str, value: Integers, length: int | None = None) -> IntArray:
    """``value`` as a one-dimensional int64 array of ``length`` entries (any length if None), or ``ValueError``."""
    return _integers(name, value, length)


def _integers(name: str, value: Integers, length: int | None) -> IntArray:
    if hasattr(value, "detach"):  # a tensor, on whatever device
        value = value.detach().cpu().numpy()
    array = np.asarray(value)
    if array.size == 0:
        array = array.astype(np.int64).reshape(-1)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise ValueError(
            f"{name} must be a one-dimensional list of whole numbers, got shape {array.shape} of {array.dtype}"
        )
    if length is not None and len(array) != length:
        raise ValueError(f"{name} must have {length} entries, one a sequence, got {len(array)}")
    return array.astype(np.int64)


def _slots(name: str, value: Integers | None, count: int) -> IntArray:
    if value is None:
        return np.full(count, -1, dtype=np.int64)
    slots = _integers(name, value, count)
    bad = np.flatnonzero(slots < -1)
    if len(bad):
        at = int(bad[0])
        raise ValueError(f"{name}[{at}] is {slots[at]}; a slot is 0 or more, or −1 for none")
    return slots


def _snapshots(value: Any, lengths: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    elif not isinstance(value, np.ndarray):
        value = list(value)
    table = np.asarray(value) if len(value) else np.empty((0, 3), dtype=np.int64)
    if table.ndim != 2 or table.shape[1] != 3 or table.dtype.kind not in "iu":
        raise ValueError(
            f"snapshots must be triples (sequence, depth, slot) of whole numbers, got shape {table.shape} "
            f"of {table.dtype}"
        )
    table = table.astype(np.int64)
    sequences, depths, slots = table.T
    for row in np.flatnonzero((sequences < 0) | (sequences >= len(lengths)))[:1]:
        raise ValueError(
            f"snapshots[{row}] names sequence {sequences[row]}; legal are 0 to {len(lengths) - 1}"
        )
    for row in np.flatnonzero((depths < 0) | (depths > lengths[sequences]))[:1]:
        length = lengths[sequences[row]]
        raise ValueError(
            f"snapshots[{row}] asks for depth {depths[row]} of sequence {sequences[row]}, which has {length} tokens "
            f"in this call; legal are 0 to {length}, the nearest is {min(max(depths[row], 0), length)}"
        )
    for row in np.flatnonzero(slots < 0)[:1]:
        raise ValueError(f"snapshots[{row}] has slot {slots[row]}; a snapshot needs a slot of 0 or more")
    order = np.lexsort((depths, sequences))
    return sequences[order], depths[order], slots[order]


def _check_conflicts(batch: Batch) -> None:
    """Nothing is written twice, and nobody's initial state is overwritten by another sequence."""
    owners, _, slots = batch.writes
    order = np.argsort(slots, kind="stable")
    twice = np.flatnonzero(np.diff(slots[order]) == 0)
    if len(twice):
        first, second = owners[order[twice[0]]], owners[order[twice[0] + 1]]
        slot = slots[order[twice[0]]]
        raise ValueError(
            f"slot {slot} would be written twice, by sequence {first} and by sequence {second}; "
            "every final slot and every snapshot needs a slot of its own"
        )
    readers = np.flatnonzero(batch.initial_slots >= 0)
    if not len(readers) or not len(slots):
        return
    sorted_slots = slots[order]
    read = batch.initial_slots[readers]
    at = np.minimum(np.searchsorted(sorted_slots, read), len(slots) - 1)
    hit = (sorted_slots[at] == read) & (owners[order[at]] != readers)
    for row in np.flatnonzero(hit)[:1]:
        raise ValueError(
            f"slot {read[row]} is the initial state of sequence {readers[row]} and would be written by sequence "
            f"{owners[order[at[row]]]}; only a sequence itself may overwrite its initial slot"
        )


def _short(array: IntArray) -> str:
    return np.array2string(array, threshold=8)
