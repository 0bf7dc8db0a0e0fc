"""Chunk form of the delta rules, for one decay a head and for one a channel.

With G the running sum of log decay inside a chunk and S the state at its start:

    Tri = (I + L)^-1 diag(beta),   L_ij = beta_i <k_i, exp(G_i − G_j) k_j>  below the diagonal
    U   = Tri (V − (K ∘ exp G) S)
    O   = scale (Q ∘ exp G) S + A U,   A_ij = scale <q_i, exp(G_i − G_j) k_j>  on and below the diagonal
    S_d = exp(G_d) ∘ S + (K ∘ exp(G_d − G))ᵀ U, rows up to d only: the state after d tokens of the chunk

Letters as in `depthchart_kernels.delta_rule`; n chunks of C tokens in a segment.
"""

from __future__ import annotations

import torch
from torch import Tensor

from depthchart_kernels.batch import Batch
from depthchart_kernels.chunked.channel import channel_parts
from depthchart_kernels.chunked.parts import Parts, walk
from depthchart_kernels.chunked.walk import (
    LOG2E,
    Rows,
    Scratch,
    copy_depth_zero,
    exp2,
    exp2_few,
    groups,
    inverse,
    load,
)

__all__ = ["delta"]

LIMIT = 58.0  # bits (40 nats): above TINY; 2^58 leaves float32 room for any key


def delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    batch: Batch,
    pool: Tensor | None,
    scale: float,
    width: int,
) -> Tensor:
    """Scan of the delta rule; g is [T, HV] or [T, HV, K]. See `depthchart_kernels.gated_delta`."""
    kind = torch.float64 if q.dtype == torch.float64 else torch.float32
    prepare = head_parts if g.ndim == 2 else channel_parts
    output = torch.empty_like(v)
    if pool is not None:
        copy_depth_zero(batch, pool)
    like = torch.empty([v.shape[1], k.shape[2], v.shape[2]], dtype=kind, device=q.device)
    scratch = Scratch(q.device)
    for group in groups(batch, width, tuple(like.shape)):
        state = load(batch, group.sequences, pool, like)
        for segment in group.segments:
            sq, sk, sv, sbeta = (segment.take(x).transpose(1, 2).to(kind) for x in (q, k, v, beta))
            repeats = v.shape[1] // k.shape[1]
            if repeats > 1:
                sq, sk = (x.repeat_interleave(repeats, dim=1) for x in (sq, sk))
            parts = prepare(sq, sk, sv, sbeta, segment.take(g), scale, scratch)
            with segment.place(output, kind) as out:
                walk(parts, segment, state, pool, scratch, out.transpose(1, 2))
    return output


def head_parts(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor, scale: float, scratch: Scratch
) -> Parts:
    """What the walk needs where decay is per head: q, k [n, H, C, K], v [n, H, C, V], beta [n, H, C], g [n, C, H].

    exp(G_i − G_j) is split at the chunk's start while G_i stays above −LIMIT; later rows get it from the difference.
    """
    n, heads, width, dim = k.shape
    kind = k.dtype
    sums = (g.double() * LOG2E).cumsum(1).transpose(1, 2).contiguous()[..., None]  # G in bits, [n, H, C, 1]
    rows = scratch("rows", [n, heads, 1, 2, width, dim], kind)
    fall = exp2_few(sums, kind)
    torch.mul(k, fall, out=rows[:, :, 0, 0])
    torch.mul(q, fall, out=rows[:, :, 0, 1])
    grow = exp2_few(torch.where(sums >= -LIMIT, -sums, -torch.inf), kind)
    columns = torch.mul(k, grow, out=scratch("columns", k.shape, kind))
    products = scratch("products", [n, heads, 2, width, width], kind)
    flat = products.view(n * heads, 2 * width, width)
    torch.bmm(rows.view(n * heads, 2 * width, dim), columns.view(n * heads, width, dim).mT, out=flat)
    hard = (sums[:, :, -1, 0] < -LIMIT).nonzero(as_tuple=True)
    if len(hard[0]):
        keep = (sums[hard] >= -LIMIT)[:, None]
        products[hard] = torch.where(keep, products[hard], _differences(q[hard], k[hard], sums[hard]))
    lower, tri, scores = (
        scratch(name, [n, heads, width, width], kind) for name in ("lower", "tri", "scores")
    )
    torch.mul(products[:, :, 0], beta[..., None], out=lower).tril_(-1)
    inverse(lower, tri).mul_(beta[..., None, :])
    torch.mul(products[:, :, 1], scale, out=scores).tril_()
    keyed = torch.mul(k, exp2_few(sums[:, :, -1:] - sums, kind), out=columns)

    def cut(chunks: Rows, depth: int) -> tuple[Tensor, Tensor]:
        part = sums[chunks, :, :depth]
        end = part[:, :, -1:]
        return k[chunks, :, :depth] * exp2_few(end - part, kind), exp2_few(end, kind)

    return Parts(rows, v, tri, scores, keyed, exp2_few(sums[:, :, -1:], kind), scale, cut)


def _differences(q: Tensor, k: Tensor, sums: Tensor) -> Tensor:
    """exp(G_i − G_j) times <k_i, k_j> and <q_i, k_j> [f, 2, C, C] of q, k [f, C, K]; above the diagonal anything."""
    below = (sums - sums.mT).clamp_(max=0.0)
    weights = exp2(below, torch.empty_like(below, dtype=k.dtype))
    products = torch.bmm(torch.cat([k, q], dim=1), k.mT).unflatten(1, (2, -1))
    return products.mul_(weights[:, None])
