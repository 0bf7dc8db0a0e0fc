"""Chunk form of Mamba-2's scan.

With c the running sum of dt·A inside a chunk and S the state at its start:

    y_i = exp(c_i) (Σ_{j ≤ i} <C_i, B_j> x'_j + S C_i),   x'_j = exp(−c_j) dt_j x_j
    S_d = exp(c_d) (S + Σ_{j ≤ d} x'_j B_jᵀ)               the state after d tokens of the chunk

so that all heads of a group share one matrix <C_i, B_j> and one product. That holds for a head while −c stays below
LIMIT; its later rows and states are computed head by head from differences of c, which never exceed 0. Which
form a row takes depends on earlier tokens only, so a state does not depend on what follows it.

Letters as in `depthchart_kernels.mamba2`; n chunks of C tokens in a segment, R = H / G heads a group. The state is
held as [sequences, G, N, R·P].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from depthchart_kernels.batch import Batch, IntArray
from depthchart_kernels.chunked.walk import (
    LOG2E,
    Scratch,
    Segment,
    copy_depth_zero,
    exp2,
    exp2_few,
    groups,
    load,
    matmul,
    store,
)

__all__ = ["ssd"]

LIMIT = 58.0  # bits (40 nats): above TINY; 2^58 leaves float32 room for any input
AT_ONCE = 64  # states of a wave that are written together


@dataclass(frozen=True, eq=False)
class Parts:
    """What a segment's loop over waves needs; [n, G, C, ...] unless said."""

    inputs: Tensor  # [n, C, H, P], dt · x
    grown: Tensor  # [., R·P], x'; zeros where −c has passed LIMIT
    b: Tensor  # [., N]
    c: Tensor  # [., N]
    scores: Tensor  # [., C], <C_i, B_j> on and below the diagonal
    sums: Tensor  # [n, C, H], c in float64 and in bits: exp of nats is 2^bits
    heads: tuple[int, int, int]  # G, R, P


def ssd(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor | None,
    batch: Batch,
    pool: Tensor | None,
    width: int,
) -> Tensor:
    """Scan of Mamba-2. See `depthchart_kernels.ssd`."""
    kind = torch.float64 if x.dtype == torch.float64 else torch.float32
    (_, heads, size), states = x.shape, b.shape[2]
    split = (b.shape[1], heads // b.shape[1], size)
    output = torch.empty_like(x)
    if pool is not None:
        copy_depth_zero(batch, pool)
    like = torch.empty([heads, size, states], dtype=kind, device=x.device)
    scratch = Scratch(x.device)
    for group in groups(batch, width, tuple(like.shape)):
        state = _fold(load(batch, group.sequences, pool, like), split)
        for segment in group.segments:
            inputs = segment.take(x).to(kind)
            sb, sc = segment.take(b).to(kind), segment.take(c).to(kind)
            parts = _prepare(inputs, segment.take(dt), a, sb, sc, split, scratch)
            y = _walk(parts, segment, state, pool, scratch)
            segment.put(output, y if d is None else y.addcmul_(inputs, d.to(kind)[:, None]))
    return output


def _fold(state: Tensor, split: tuple[int, int, int]) -> Tensor:
    """States as users hold them [m, H, P, N] to [m, G, N, R·P]."""
    return state.unflatten(1, split[:2]).permute(0, 1, 4, 2, 3).flatten(3).contiguous()


def _unfold(state: Tensor, split: tuple[int, int, int]) -> Tensor:
    """The way back: [m, G, N, R·P] to [m, H, P, N]."""
    return state.unflatten(3, split[1:]).permute(0, 1, 3, 4, 2).flatten(1, 2)


def _prepare(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, split: tuple[int, int, int], scratch: Scratch
) -> Parts:
    """Everything that does not need the state: x [n, C, H, P], dt [n, C, H], b, c [n, C, G, N]."""
    kind, (n, width), g = x.dtype, x.shape[:2], split[0]
    sums = (dt.double() * (a.double() * LOG2E)).cumsum(1)
    grow = exp2_few(torch.where(sums >= -LIMIT, -sums, -torch.inf), kind)
    step = dt.to(kind)
    grown = scratch("grown", x.shape, kind)
    torch.mul(x, (step * grow)[..., None], out=grown)
    b, c = b.transpose(1, 2), c.transpose(1, 2)
    scores = scratch("scores", [n, g, width, width], kind)
    matmul(c, b.mT, scores).tril_()
    inputs = (
        x * step[..., None] if bool((sums[:, -1] < -LIMIT).any()) else x
    )  # only hard heads read the values
    return Parts(inputs, grown.view(n, width, g, -1).transpose(1, 2), b, c, scores, sums, split)


def _walk(parts: Parts, segment: Segment, state: Tensor, pool: Tensor | None, scratch: Scratch) -> Tensor:
    """The loop over waves: outputs [n, C, H, P]; ``state`` is advanced in place."""
    kind, (g, r, p), (n, width, _) = state.dtype, parts.heads, parts.sums.shape
    y = scratch("y", [n, g, width, r * p], kind)
    end = parts.sums[:, -1]
    hard_chunk, hard_head = (end < -LIMIT).nonzero(as_tuple=True)
    safe = []
    for (a, b), writes in zip(segment.waves, segment.writes, strict=True):
        now, chunks = state[: b - a], slice(a, b)
        matmul(parts.scores[chunks], parts.grown[chunks], y[chunks])
        matmul(parts.c[chunks], now, y[chunks], add=True)
        first, last = (int(torch.searchsorted(hard_chunk, edge)) for edge in (a, b))
        if last > first:
            safe.append(_hard_rows(parts, hard_chunk[first:last], hard_head[first:last], now, a))
        if pool is not None and len(writes):
            _snapshot(parts, a, writes, now, pool)
        _advance(
            now, parts.b[chunks], parts.grown[chunks], parts.inputs[chunks], parts.sums[chunks], end[chunks]
        )
    outputs = scratch("outputs", [n, width, g, r, p], kind)
    decay = exp2_few(parts.sums, kind).view(n, width, g, r, 1)
    y = torch.mul(y.view(n, g, width, r, p).transpose(1, 2), decay, out=outputs).flatten(2, 3)
    if safe:
        past = (parts.sums[hard_chunk, :, hard_head] < -LIMIT)[..., None]
        y[hard_chunk, :, hard_head] = torch.where(past, torch.cat(safe), y[hard_chunk, :, hard_head])
    return y


def _hard_rows(parts: Parts, chunk: Tensor, head: Tensor, state: Tensor, first: int) -> Tensor:
    """Outputs [f, C, P] of some (chunk, head), each with its own matrix of decays."""
    kind, (_, r, _) = state.dtype, parts.heads
    sums, group = parts.sums[chunk, :, head], head // r
    below = (sums[:, :, None] - sums[:, None]).clamp_(max=0.0)
    weights = exp2(below, torch.empty_like(below, dtype=kind))
    y = (parts.scores[chunk, group] * weights) @ parts.inputs[chunk, :, head]
    old = _head_states(state, parts.heads)[chunk - first, head]
    return y + exp2_few(sums, kind)[..., None] * (parts.c[chunk, group] @ old)


def _head_states(state: Tensor, split: tuple[int, int, int]) -> Tensor:
    """States [m, G, N, R·P] as a view [m, H, N, P], or a copy where there are several groups."""
    return state.unflatten(3, split[1:]).permute(0, 1, 3, 2, 4).flatten(1, 2)


def _advance(state: Tensor, b: Tensor, grown: Tensor, inputs: Tensor, sums: Tensor, end: Tensor) -> None:
    """Advance ``state`` [m, G, N, R·P] in place to the depth where the sums are ``end`` [m, H].

    b [m, G, C, N], grown [m, G, C, R·P] with zeros after that depth, inputs [m, C, H, P], sums [m, C, H] with +inf
    after that depth.
    """
    kind, (m, g) = state.dtype, state.shape[:2]
    heads, p = inputs.shape[2:]
    r = heads // g
    decay = end.exp2().to(kind)
    at, head = (end < -LIMIT).nonzero(as_tuple=True)
    replaced = state.new_empty([0])
    if len(at):
        weights = exp2_few((end[at, head][:, None] - sums[at, :, head]).clamp_(max=0.0), kind)
        old = _head_states(state, (g, r, p))[at, head]
        rows = b[at, head // r] * weights[..., None]
        replaced = decay[at, head][:, None, None] * old + rows.mT @ inputs[at, :, head]
    matmul(b.mT, grown, state, add=True)
    by_head = state.view(m, g, -1, r, p)
    by_head.mul_(decay.view(m, g, 1, r, 1))
    if len(at):
        by_head[at, head // r, :, head % r] = replaced


def _snapshot(parts: Parts, first: int, writes: IntArray, state: Tensor, pool: Tensor) -> None:
    """Write the wanted states of one wave: rows of (position, tokens into the chunk, slot)."""
    width = parts.sums.shape[1]
    for at in range(0, len(writes), AT_ONCE):
        place, depth, slots = (torch.from_numpy(np.ascontiguousarray(x)) for x in writes[at : at + AT_ONCE].T)
        chunks = place + first
        keep = torch.arange(width) < depth[:, None]
        sums = parts.sums[chunks]
        end = sums[torch.arange(len(depth)), depth - 1]
        sums = sums.masked_fill(~keep[..., None], torch.inf)
        grown = parts.grown[chunks].masked_fill(~keep[:, None, :, None], 0.0)
        then = state[place]
        _advance(then, parts.b[chunks], grown, parts.inputs[chunks], sums, end)
        store(pool, slots.numpy(), _unfold(then, parts.heads))
