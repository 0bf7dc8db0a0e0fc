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

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

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
    store_advanced,
)

__all__ = ["ssd"]

SEGMENT = 2048  # tokens whose small work is done at once
LIMIT = 58.0  # bits (40 nats): above TINY; 2^58 leaves float32 room for any input


@dataclass(frozen=True, eq=False)
class Parts:
    """What the loop over a segment's n chunks needs; all but ``heads`` are split at the same chunks."""

    x: Tensor  # [n, C, H, P]
    b: Tensor  # [n, G, C, N]
    c: Tensor  # [n, G, C, N]
    scores: Tensor  # [n, G, C, C], <C_i, B_j> on and below the diagonal
    sums: Tensor  # [n, C, H], c in float64 and in bits: exp of nats is 2^bits
    step: Tensor  # [n, C, H], dt
    grow: Tensor  # [n, C, H], exp(−c) dt; zeros where −c has passed LIMIT
    keep: Tensor  # [n, C, H], exp(c_C − c) dt
    fall: Tensor  # [n, C, H], exp c
    heads: tuple[int, int, int]  # G, R, P

    def waves(self, sizes: list[int]) -> Iterator[Parts]:
        """The same, wave by wave."""
        names = [f.name for f in fields(self)[:-1]]
        split = zip(*(getattr(self, name).split(sizes) for name in names), strict=True)
        return (replace(self, **dict(zip(names, wave, strict=True))) for wave in split)


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
    for group in groups(batch, width, tuple(like.shape), SEGMENT):
        state = load(batch, group.sequences, pool, like)
        for segment in group.segments:
            inputs, sb, sc = (segment.take(part).to(kind) for part in (x, b, c))
            parts = _prepare(inputs, segment.take(dt), a, sb, sc, split)
            with segment.place(output, kind) as out:
                _walk(parts, segment, state, pool, skip, scratch, out)
    return output


def _prepare(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, split: tuple[int, int, int]) -> Parts:
    """What is small and does not need the state: x [n, C, H, P], dt [n, C, H], b, c [n, C, G, N]."""
    kind, g = x.dtype, split[0]
    sums = (dt.double() * (a.double() * LOG2E)).cumsum(1)
    step = dt.to(kind)
    grow = exp2_few(torch.where(sums >= -LIMIT, -sums, -torch.inf), kind).mul_(step)
    keep = exp2_few(sums[:, -1:] - sums, kind).mul_(step)
    b, c = (part.transpose(1, 2).reshape(part.shape[0] * g, part.shape[1], -1) for part in (b, c))
    scores = torch.bmm(c, b.mT).tril_()
    b, c, scores = (part.unflatten(0, (-1, g)) for part in (b, c, scores))
    return Parts(x, b, c, scores, sums, step, grow, keep, exp2_few(sums, kind), split)


def _walk(
    parts: Parts,
    segment: Segment,
    state: Tensor,
    pool: Tensor | None,
    skip: Tensor | None,
    scratch: Scratch,
    out: Tensor,
) -> None:
    """The loop over waves: outputs into ``out`` [n, C, H, P]; ``state`` [sequences, H, P, N] is advanced in place.

    What is large is made wave by wave, so that it stays in a core's cache.
    """
    g, r, p = parts.heads
    hard = bool((parts.sums[:, -1] < -LIMIT).any())
    sizes = [b - a for a, b in segment.waves]
    for wave, wave_out, writes in zip(parts.waves(sizes), out.split(sizes), segment.writes, strict=True):
        m, width = wave.sums.shape[:2]
        now = state[:m]
        flat_now = now.view(m * g, r * p, -1)
        y = scratch("y", [m, g, width, r * p], state.dtype)
        flat_y = y.flatten(0, 1)
        torch.bmm(wave.c.flatten(0, 1), flat_now.mT, out=flat_y)
        weighted = _weigh(wave.x, wave.grow, g, scratch("grown", y.shape, state.dtype))
        flat_y.baddbmm_(wave.scores.flatten(0, 1), weighted)
        _scale(y, wave.fall, wave_out)
        if hard:
            _redo(wave, wave_out)
        if skip is not None:
            wave_out.addcmul_(wave.x, skip)
        if pool is not None and len(writes):
            _snapshot(wave, writes, now, pool, scratch)
        now.mul_(wave.fall[:, -1, :, None, None])
        weighted = _weigh(wave.x, wave.keep, g, scratch("kept", y.shape, state.dtype))
        flat_now.baddbmm_(weighted.mT, wave.b.flatten(0, 1))


def _weigh(x: Tensor, weights: Tensor, g: int, out: Tensor) -> Tensor:
    """x [n, C, H, P] times weights [n, C, H] into ``out`` [n, G, C, R·P]; gives it as [n·G, C, R·P]."""
    if g == 1:
        torch.mul(x, weights[..., None], out=out.view(x.shape))
    else:
        by_group = out.unflatten(3, (-1, x.shape[3])).transpose(1, 2)
        torch.mul(x.unflatten(2, (g, -1)), weights.unflatten(2, (g, -1))[..., None], out=by_group)
    return out.flatten(0, 1)


def _scale(y: Tensor, weights: Tensor, out: Tensor) -> None:
    """y [n, G, C, R·P] times weights [n, C, H] into ``out`` [n, C, H, P]."""
    g = y.shape[1]
    y = y.unflatten(3, (-1, out.shape[3])).transpose(1, 2)
    torch.mul(y, weights.unflatten(2, (g, -1))[..., None], out=out.unflatten(2, (g, -1)))


def _redo(parts: Parts, out: Tensor) -> None:
    """Outputs of rows past LIMIT from differences of the sums."""
    r = parts.heads[1]
    chunk, head = (parts.sums[:, -1] < -LIMIT).nonzero(as_tuple=True)
    if not len(chunk):
        return
    sums = parts.sums[chunk, :, head]
    below = (sums[:, :, None] - sums[:, None]).clamp_(max=0.0)
    weights = exp2(below, torch.empty_like(below, dtype=out.dtype))
    weights.mul_(parts.scores[chunk, head // r])
    anew = weights @ (parts.x[chunk, :, head] * parts.step[chunk, :, head][..., None])
    out[chunk, :, head] = torch.where((sums < -LIMIT)[..., None], anew, out[chunk, :, head])


def _snapshot(parts: Parts, writes: IntArray, state: Tensor, pool: Tensor, scratch: Scratch) -> None:
    """Write the wanted states of one wave: rows of (position, tokens into the chunk, slot)."""
    g, r, p = parts.heads
    for place, depth, slots in batches(writes):
        sums, x = parts.sums[place, :depth], parts.x[place, :depth]
        end = sums[:, -1]
        weights = exp2_few(end[:, None] - sums, state.dtype).mul_(parts.step[place, :depth])
        kept = _weigh(x, weights, g, scratch("kept", [x.shape[0], g, depth, r * p], state.dtype))
        decay = exp2_few(end, state.dtype)[..., None, None]
        b = parts.b[place, :, :depth].flatten(0, 1)
        store_advanced(pool, slots, state[place], decay, kept.mT, b)
