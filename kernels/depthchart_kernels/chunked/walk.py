"""How the chunk forms walk over a packed batch, and what they share.

Every sequence has its own chunk grid, from its first token. Sequences are taken in groups; wave w of a group is chunk
w of every sequence that has one, and a segment is a run of waves whose parallel work is done at once. A long sequence
is a group of its own, so that its whole chunks are views of the inputs and nothing is copied.

A chunk is always computed at its full width: rows past the end are zeros with no decay. Hence a state at any depth
comes from the same arithmetic as the final state of a run that was cut there, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import threshold

from depthchart_kernels.batch import Batch, IntArray

__all__ = [
    "LOG2E",
    "TINY",
    "Group",
    "Rows",
    "Scratch",
    "Segment",
    "batches",
    "copy_depth_zero",
    "exp2",
    "exp2_few",
    "groups",
    "inverse",
    "load",
    "store_advanced",
]

Rows = slice | Tensor  # of a first dimension
TINY = 2.0**-60  # a decay below it is 0: far below rounding, and far from products of subnormal numbers
LOG2E = 1.4426950408889634
ALONE = 512  # a sequence longer than this many tokens is a group of its own
SEGMENT = 512  # tokens whose parallel work is done at once: what a core's cache holds
AT_ONCE = 64  # states of a wave that are written together
STATES = 1 << 22  # state elements that a group holds at most


@dataclass(frozen=True, eq=False)
class Segment:
    """Chunks of one group, wave after wave.

    ``starts``, ``rows`` [chunks]: first token and number of tokens of each chunk. ``waves``: (first, last + 1) chunk
    of each wave; chunk first + i belongs to sequence i of the group. ``writes``: for each wave, those of its states
    that are wanted, as (position in the wave, tokens into the chunk, slot).
    """

    width: int
    starts: IntArray
    rows: IntArray
    waves: tuple[tuple[int, int], ...]
    writes: tuple[IntArray, ...]
    whole: bool  # one sequence's adjacent, full chunks: inputs are viewed, not gathered

    def take(self, x: Tensor) -> Tensor:
        """``x`` [tokens, ...] as [chunks, width, ...]; rows past a chunk's end are zeros."""
        if self.whole:
            first = int(self.starts[0])
            return x[first : first + len(self.starts) * self.width].unflatten(0, (-1, self.width))
        index, valid = self._index(x.device)
        taken = x[index.clamp(max=x.shape[0] - 1)]
        return taken.masked_fill_(~valid.view(-1, *[1] * (x.ndim - 1)), 0.0).unflatten(0, (-1, self.width))

    @contextmanager
    def place(self, output: Tensor, kind: torch.dtype) -> Iterator[Tensor]:
        """Where the segment's rows [chunks, width, ...] of ``output`` may be written in ``kind``; rounded at the end."""
        if self.whole and output.dtype == kind:
            yield self.take(output)
            return
        rows = output.new_empty([len(self.starts), self.width, *output.shape[1:]], dtype=kind)
        yield rows
        self.put(output, rows)

    def put(self, output: Tensor, y: Tensor) -> None:
        """Write ``y`` [chunks, width, ...] to the segment's rows of ``output`` [tokens, ...]."""
        if self.whole:
            self.take(output).copy_(y)
            return
        index, valid = self._index(y.device)
        output[index[valid]] = y.flatten(0, 1)[valid].to(output.dtype)

    def _index(self, device: torch.device) -> tuple[Tensor, Tensor]:
        steps = np.arange(self.width)
        index = torch.from_numpy((self.starts[:, None] + steps).reshape(-1))
        valid = torch.from_numpy((steps < self.rows[:, None]).reshape(-1))
        return index.to(device), valid.to(device)


@dataclass(frozen=True, eq=False)
class Group:
    """Sequences that are walked together, longest first, and their segments."""

    sequences: IntArray
    segments: tuple[Segment, ...]


class Scratch:
    """Buffers that the segments of one call reuse: fresh memory costs more than most of what is written to it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._held: dict[tuple[str, torch.dtype], Tensor] = {}

    def __call__(self, name: str, shape: Sequence[int], kind: torch.dtype) -> Tensor:
        """The contiguous buffer of this name; what the last segment left in it is still there."""
        size = prod(shape)
        held = self._held.get((name, kind))
        if held is None or held.numel() < size:
            held = self._held[name, kind] = torch.empty(size, dtype=kind, device=self._device)
        return held[:size].view(*shape)


def groups(batch: Batch, width: int, state_shape: tuple[int, ...], segment: int = SEGMENT) -> Iterator[Group]:
    """All sequences with tokens, in groups whose states fit STATES elements; segments of about ``segment`` tokens."""
    order = np.argsort(-batch.lengths, kind="stable")
    order = order[batch.lengths[order] > 0]
    most = max(1, STATES // prod(state_shape))
    wanted = _wanted(batch, width)
    at = 0
    while at < len(order):
        size = 1 if batch.lengths[order[at]] > ALONE else most
        members = order[at : at + size]
        yield Group(members, tuple(_segments(batch, members, width, wanted, segment)))
        at += size


def _wanted(batch: Batch, width: int) -> tuple[IntArray, IntArray]:
    """Writes at depth 1 and more, sorted by (sequence, chunk): rows of (sequence, chunk, tokens in, slot)."""
    sequences, depths, slots = batch.writes
    keep = depths > 0
    sequences, depths, slots = sequences[keep], depths[keep], slots[keep]
    chunk = (depths - 1) // width
    table = np.stack([sequences, chunk, depths - chunk * width, slots], axis=1)
    table = table[np.lexsort((chunk, sequences))]
    return table, np.searchsorted(table[:, 0], np.arange(batch.sequences + 1)).astype(np.int64)


def _segments(
    batch: Batch, members: IntArray, width: int, wanted: tuple[IntArray, IntArray], most: int
) -> Iterator[Segment]:
    table, first = wanted
    lengths, begins = batch.lengths[members], batch.cu_seqlens[members]
    chunks = -(-lengths // width)
    mine = np.concatenate([np.arange(first[s], first[s + 1]) for s in members]).astype(np.int64)
    place = np.repeat(np.arange(len(members)), first[members + 1] - first[members])
    by_wave = np.argsort(table[mine, 1], kind="stable")
    mine, place = mine[by_wave], place[by_wave]
    bounds = np.searchsorted(table[mine, 1], np.arange(chunks[0] + 1))
    wave = 0
    while wave < chunks[0]:
        stop, size = wave, 0
        while stop < chunks[0] and (stop == wave or size * width < most):
            partial = len(members) == 1 and (stop + 1) * width > lengths[0]
            if partial and stop > wave:
                break  # the last, partial chunk of a long sequence is gathered by itself
            size += int(np.searchsorted(-chunks, -stop, side="left"))
            stop += 1
        active = [int(np.searchsorted(-chunks, -w, side="left")) for w in range(wave, stop)]
        ends = np.cumsum(active)
        starts = np.concatenate(
            [begins[:n] + w * width for n, w in zip(active, range(wave, stop), strict=True)]
        )
        rows = np.concatenate(
            [lengths[:n] - w * width for n, w in zip(active, range(wave, stop), strict=True)]
        )
        rows = np.minimum(rows, width)
        writes = []
        for w in range(wave, stop):
            part = slice(bounds[w], bounds[w + 1])
            writes.append(np.column_stack([place[part], table[mine[part], 2:]]))
        yield Segment(
            width,
            starts,
            rows,
            tuple(zip((ends - active).tolist(), ends.tolist(), strict=True)),
            tuple(writes),
            len(members) == 1 and bool((rows == width).all()),
        )
        wave = stop


def copy_depth_zero(batch: Batch, pool: Tensor) -> None:
    """Write what is wanted at depth 0: initial states, of empty sequences their final ones too."""
    sequences, depths, slots = batch.writes
    for s, slot in zip(sequences[depths == 0].tolist(), slots[depths == 0].tolist(), strict=True):
        source = int(batch.initial_slots[s])
        if source < 0:
            pool[slot] = 0.0
        elif source != slot:
            pool[slot] = pool[source]


def load(batch: Batch, members: IntArray, pool: Tensor | None, like: Tensor) -> Tensor:
    """Initial states [members, ...] of a group, in ``like``'s dtype; ``like`` has one state's shape."""
    states = like.new_zeros([len(members), *like.shape])
    held = np.flatnonzero(batch.initial_slots[members] >= 0)
    if pool is not None and len(held):
        slots = torch.from_numpy(batch.initial_slots[members][held]).to(pool.device)
        states[torch.from_numpy(held).to(pool.device)] = pool[slots].to(like.dtype)
    return states


def batches(writes: IntArray) -> Iterator[tuple[Rows, int, IntArray]]:
    """Positions, depth and slots of a wave's wanted states, those of equal depth together; one position is a slice."""
    writes = writes[np.argsort(writes[:, 1], kind="stable")]
    cuts = np.flatnonzero(np.diff(writes[:, 1])) + 1
    for same in np.split(writes, cuts):
        for at in range(0, len(same), AT_ONCE):
            place, depths, slots = same[at : at + AT_ONCE].T
            rows = slice(int(place[0]), int(place[0]) + 1)
            yield rows if len(place) == 1 else torch.from_numpy(place.copy()), int(depths[0]), slots


def store_advanced(
    pool: Tensor, slots: IntArray, states: Tensor, decay: Tensor, left: Tensor, right: Tensor
) -> None:
    """Write decay ∘ states + left @ right to slots of the pool, a single one in place.

    states [n, H, ...] of the pool's shape, decay of a shape that fits them; left [n·h, rows, inner] and right
    [n·h, inner, columns], where rows · columns times h make a state.
    """
    place = pool[int(slots[0])][None] if len(slots) == 1 else None
    direct = place is not None and place.dtype == states.dtype and place.is_contiguous()
    then = torch.mul(states, decay, out=place) if direct else states * decay
    then.view(left.shape[0], left.shape[1], -1).baddbmm_(left, right)
    if not direct:
        pool[torch.from_numpy(slots.copy()).to(pool.device)] = then.to(pool.dtype)


def exp2(x: Tensor, out: Tensor) -> Tensor:
    """2^x of float64 exponents, in ``out``'s dtype; exp2 is twice as fast as exp and doesn't crawl where it underflows.

    Vector and scalar code may differ in the last bit, so the result is the same in every call only where the last
    dimensions fill whole vectors; elsewhere use `exp2_few`. Below TINY the result is 0: subnormal numbers would slow
    matrix products down tenfold.
    """
    torch.exp2(out.copy_(x), out=out)
    return out if out.dtype == torch.float64 else threshold(out, TINY, 0.0, inplace=True)


def exp2_few(x: Tensor, kind: torch.dtype) -> Tensor:
    """2^x of float64 exponents, rounded to ``kind`` at the end; below TINY 0. For arrays small enough for that."""
    power = x.exp2()
    return (power if kind == torch.float64 else threshold(power, TINY, 0.0, inplace=True)).to(kind)


def inverse(lower: Tensor, out: Tensor) -> Tensor:
    """``out`` = (I + L)^-1 of strictly lower triangular ``lower`` [..., C, C]: substitution, wide ones by 2 × 2 blocks.

    Never by powers of L: with nearly parallel keys they reach 1e16 where the inverse stays within [−1, 1].
    """
    size = lower.shape[-1]
    if size <= 64:
        eye = torch.eye(size, dtype=lower.dtype, device=lower.device).expand_as(lower)
        return torch.linalg.solve_triangular(lower, eye, upper=False, unitriangular=True, out=out)
    half = size // 2
    first, second = (
        inverse(lower[..., part, part], torch.empty_like(lower[..., part, part]))
        for part in (slice(0, half), slice(half, size))
    )
    out.zero_()
    out[..., :half, :half], out[..., half:, half:] = first, second
    out[..., half:, :half] = -second @ (lower[..., half:, :half] @ first)
    return out
