"""Chunk form of Mamba-2's scan.

With c the running sum of dt·A inside a chunk and S the state at its start:

    y_i = exp(c_i) (Σ_{j ≤ i} <C_i, B_j> x'_j + S C_i),   x'_j = exp(−c_j) dt_j x_j
    S_d = exp(c_d) S + Σ_{j ≤ d} exp(c_d − c_j) dt_j x_j B_jᵀ     the state after d tokens of the chunk

so that all heads of a group share one matrix <C_i, B_j>, and every product is one for the whole group. The outputs'
form holds for a head while −c stays below LIMIT; its later rows are computed head by head from differences of c, which
never exceed 0, and what S gives them counts as 0.

Letters as in `depthchart_kernels.mamba2`; n chunks of C tokens in a segment, R = H / G heads a group. States are taken
as [sequences · G, R·P, N], which is how the pool holds them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from depthchart_kernels.batch import Batch, IntArray
from depthchart_kernels.chunked.walk import (
    LOG2E,
    Scratch,
    Segment,
    batches,
    copy_depth_zero,
    exp2,
    exp2_few,
    groups,
    load,
    pick,
    store_advanced,
)

__all__ = ["ssd"]

LIMIT = 58.0  # bits (40 nats): above TINY; 2^58 leaves float32 room for any input


@dataclass(frozen=True, eq=False)
class Parts:
    """What a segment's loop over waves needs; [n·G, C, ...] unless said."""

    step: Tensor  # [n, C, H], dt
    x: Tensor  # [n, C, H, P]
    grown: Tensor  # [., R·P], x'; zeros where −c has passed LIMIT
    kept: Tensor  # [., R·P], exp(c_C − c) dt x
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
    skip = None if d is None else d.to(kind)[:, None]
    scratch = Scratch(x.device)
    for group in groups(batch, width, tuple(like.shape)):
        state = load(batch, group.sequences, pool, like)
        for segment in group.segments:
            inputs, sb, sc = (segment.take(part).to(kind) for part in (x, b, c))
            parts = _prepare(inputs, segment.take(dt), a, sb, sc, split, scratch)
            y = _walk(parts, segment, state, pool, scratch)
            with segment.place(output, kind) as out:
                _finish(parts, y, skip, out)
    return output


def _prepare(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, split: tuple[int, int, int], scratch: Scratch
) -> Parts:
    """Everything that does not need the state: x [n, C, H, P], dt [n, C, H], b, c [n, C, G, N]."""
    kind, (n, width), g = x.dtype, x.shape[:2], split[0]
    sums = (dt.double() * (a.double() * LOG2E)).cumsum(1)
    grow = exp2_few(torch.where(sums >= -LIMIT, -sums, -torch.inf), kind)
    step = dt.to(kind)
    grown = _weigh(x, step * grow, g, scratch("grown", [n, g, width, split[1] * split[2]], kind))
    keep = exp2_few(sums[:, -1:] - sums, kind)
    kept = _weigh(x, step * keep, g, scratch("kept", [n, g, width, split[1] * split[2]], kind))
    b, c = (part.transpose(1, 2).reshape(n * g, width, -1) for part in (b, c))
    scores = scratch("scores", [n * g, width, width], kind)
    torch.bmm(c, b.mT, out=scores).tril_()
    return Parts(step, x, grown, kept, b, c, scores, sums, split)


def _weigh(x: Tensor, weights: Tensor, g: int, out: Tensor) -> Tensor:
    """x [n, C, H, P] times weights [n, C, H] into ``out`` [n, G, C, R·P]; gives it as [n·G, C, R·P]."""
    n, width, _, p = x.shape
    by_group = out.view(n, g, width, -1, p).transpose(1, 2)
    torch.mul(x.unflatten(2, (g, -1)), weights.view(n, width, g, -1, 1), out=by_group)
    return out.flatten(0, 1)


def _walk(parts: Parts, segment: Segment, state: Tensor, pool: Tensor | None, scratch: Scratch) -> Tensor:
    """The loop over waves: <C, B> x' + C S [n·G, C, R·P]; ``state`` [sequences, H, P, N] is advanced in place."""
    g, r, p = parts.heads
    y = torch.bmm(parts.scores, parts.grown, out=scratch("y", parts.grown.shape, parts.grown.dtype))
    decay = exp2_few(parts.sums[:, -1], state.dtype)[..., None, None]
    sizes = [b - a for a, b in segment.waves]
    flat = [m * g for m in sizes]
    waves = zip(
        sizes,
        *(part.split(flat) for part in (y, parts.c, parts.kept.mT, parts.b)),
        decay.split(sizes),
        segment.writes,
        strict=True,
    )
    first = 0
    for m, wave_y, c, kept, b, wave_decay, writes in waves:
        now = state[:m]
        flat_now = now.view(m * g, r * p, -1)
        wave_y.baddbmm_(c, flat_now.mT)
        if pool is not None and len(writes):
            _snapshot(parts, first, writes, now, pool)
        now.mul_(wave_decay)
        flat_now.baddbmm_(kept, b)
        first += m
    return y


def _finish(parts: Parts, y: Tensor, skip: Tensor | None, out: Tensor) -> None:
    """Outputs [n, C, H, P] from what the walk gave; rows past LIMIT anew."""
    (n, width, _), (g, r, p) = parts.sums.shape, parts.heads
    y = y.view(n, g, width, r, p).transpose(1, 2)
    decay = exp2_few(parts.sums, y.dtype).view(n, width, g, r, 1)
    torch.mul(y, decay, out=out.unflatten(2, (g, r)))
    chunk, head = (parts.sums[:, -1] < -LIMIT).nonzero(as_tuple=True)
    if len(chunk):
        sums = parts.sums[chunk, :, head]
        below = (sums[:, :, None] - sums[:, None]).clamp_(max=0.0)
        weights = exp2(below, torch.empty_like(below, dtype=y.dtype))
        weights.mul_(parts.scores[chunk * g + head // r])
        anew = weights @ (parts.x[chunk, :, head] * parts.step[chunk, :, head][..., None])
        out[chunk, :, head] = torch.where((sums < -LIMIT)[..., None], anew, out[chunk, :, head])
    if skip is not None:
        out.addcmul_(parts.x, skip)


def _snapshot(parts: Parts, first: int, writes: IntArray, state: Tensor, pool: Tensor) -> None:
    """Write the wanted states of one wave: rows of (position, tokens into the chunk, slot)."""
    g, r, p = parts.heads
    for place, depth, slots in batches(writes):
        chunks = place + first
        keep = torch.arange(parts.sums.shape[1]) < depth[:, None]
        sums = pick(parts.sums, chunks)
        end = sums[torch.arange(len(depth)), depth - 1]
        weights = exp2_few((end[:, None] - sums).masked_fill_(~keep[..., None], -torch.inf), state.dtype)
        kept = torch.empty([len(depth), g, sums.shape[1], r * p], dtype=state.dtype, device=state.device)
        kept = _weigh(pick(parts.x, chunks), pick(parts.step, chunks) * weights, g, kept)
        b = pick(parts.b.unflatten(0, (-1, g)), chunks).flatten(0, 1)
        decay = exp2_few(end, state.dtype)[..., None, None]
        old = pick(state, place)
        store_advanced(pool, slots, old, decay, kept.mT, b)
