"""What the host tells the kernels: tables of chunks, snapshots and pieces, and whether a sequence is split.

A sequence is one piece, or several where few heads would leave most of the machine idle. A piece is a whole number of
chunks (the last one may be short), so the chunk grid, and with it every snapshot, is the same either way.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from depthchart_kernels.batch import Batch, IntArray
from depthchart_kernels.triton.common import MANY

__all__ = ["LEAST_CHUNKS", "LEAST_TOKENS", "Tables", "choose_pieces", "tables"]

LEAST_CHUNKS, LEAST_TOKENS = 8, 512  # of a piece: below that combining states costs more than the split gains
PROCESSORS = 132  # of an H200, where no device can be asked
_made: WeakKeyDictionary[Batch, dict[tuple[object, ...], Tables]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Tables:
    """Host-made tables of one batch on the device.

    ``sequences`` [pieces, 5]: first token, tokens, first chunk, initial slot, final slot (of the last piece only).
    ``chunks`` [chunks, 4]: first token, tokens, first snapshot, first snapshot of the next chunk.
    ``snapshots`` [snapshots, 2]: tokens into the chunk, slot. ``most``: 0, 1 or `MANY` snapshots in one chunk.
    ``runs`` [sequences, 4]: first piece, pieces, first of its pieces that are followed by another (counted among
    these), initial slot. ``followed`` [n]: those pieces. Both are empty where nothing is split.
    """

    sequences: Tensor
    chunks: Tensor
    snapshots: Tensor
    most: int
    runs: Tensor
    followed: Tensor

    @property
    def chunk_count(self) -> int:
        """Chunks of all sequences."""
        return int(self.chunks.shape[0])

    @property
    def piece_count(self) -> int:
        """Pieces of all sequences: as many as sequences where nothing is split."""
        return int(self.sequences.shape[0])

    @property
    def split(self) -> bool:
        """Whether any sequence has more than one piece."""
        return bool(len(self.followed))


def choose_pieces(lengths: IntArray, programs_each: int, width: int, multiprocessors: int) -> int:
    """Pieces that the longest sequence is cut into; 1 is no split.

    ``programs_each``: programs of the loop kernel a sequence, heads × blocks of the state's columns.

    A split is worth its second pass over the tokens (which finds how each piece maps the state before it to the state
    after it) where the loop fills less than half of the multiprocessors. Then as many pieces as fill them once, each of
    8 chunks and 512 tokens at least; one piece more than that would wait for a free multiprocessor.
    """
    programs = int(np.count_nonzero(lengths)) * programs_each
    if programs == 0 or 2 * programs > multiprocessors:
        return 1
    least = max(LEAST_TOKENS, LEAST_CHUNKS * width)
    return int(max(1, min(multiprocessors // programs, lengths.max() // least)))


@lru_cache(maxsize=16)
def processors(device: torch.device) -> int:
    """Multiprocessors of the device; those of an H200 where kernels are interpreted."""
    return (
        torch.cuda.get_device_properties(device).multi_processor_count
        if device.type == "cuda"
        else PROCESSORS
    )


def tables(
    batch: Batch, width: int, device: torch.device, programs_each: int = 0, split: int | None = None
) -> Tables:
    """The tables of ``batch`` with chunks of ``width`` tokens, kept for the next layer's call.

    ``split``: pieces of the longest sequence, shorter ones get fewer; chosen by `choose_pieces` if absent. Without
    ``programs_each`` nothing is split. Depth 0 is not in the tables (see `copy_depth_zero`).
    """
    if split is not None and split < 1:
        raise ValueError(f"split is {split}; legal are 1 (no split) and more pieces a sequence")
    pieces = 1
    if programs_each and batch.tokens:
        pieces = split or choose_pieces(batch.lengths, programs_each, width, processors(device))
    kept = _made.setdefault(batch, {})
    key = (width, device, pieces)
    if key not in kept:
        kept[key] = _make(batch, width, device, pieces)
    return kept[key]


def _make(batch: Batch, width: int, device: torch.device, pieces: int) -> Tables:
    lengths, begins = batch.lengths, batch.cu_seqlens[:-1]
    counts = -(-lengths // width)
    first = _starts(counts)
    owner, within = _ranks(counts)
    rows = np.minimum(lengths[owner] - within * width, width)
    keep = batch.snapshot_depths > 0
    depths, slots = batch.snapshot_depths[keep], batch.snapshot_slots[keep]
    chunk = first[batch.snapshot_sequences[keep]] + (depths - 1) // width
    edges = np.searchsorted(chunk, np.arange(first[-1] + 1))
    most = int(np.diff(edges).max(initial=0))
    longest = (
        max(1, -(-int(counts.max(initial=1)) // pieces)) if pieces > 1 else max(1, int(counts.max(initial=1)))
    )
    parts = np.maximum(-(-counts // longest), 1)  # an empty sequence is a piece, too, which the kernels skip
    whose, part = _ranks(parts)
    skip = part * longest
    last = part == parts[whose] - 1
    tokens = np.where(last, lengths[whose] - skip * width, longest * width)
    final = np.where(last & (lengths[whose] > 0), batch.final_slots[whose], -1)
    runs = np.column_stack([_starts(parts)[:-1], parts, _starts(parts - 1)[:-1], batch.initial_slots])
    followed = np.flatnonzero(~last)
    return Tables(
        _on(
            np.column_stack(
                [begins[whose] + skip * width, tokens, first[whose] + skip, batch.initial_slots[whose], final]
            ),
            device,
        ),
        _on(np.column_stack([begins[owner] + within * width, rows, edges[:-1], edges[1:]]), device),
        _on(np.column_stack([(depths - 1) % width + 1, slots]), device),
        most if most <= 1 else MANY,
        _on(runs if len(followed) else runs[:0], device),
        _on(followed, device),
    )


def _starts(counts: IntArray) -> IntArray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _ranks(counts: IntArray) -> tuple[IntArray, IntArray]:
    """Owner and rank within it of each of ``counts`` things a owner."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - _starts(counts)[owner]


def _on(array: IntArray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64)).to(device)
