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
    Scratch,
    copy_depth_zero,
    exp2,
    exp2_few,
    groups,
    inverse,
    load,
    pick,
)

__all__ = ["delta"]


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
    """Everything that does not need the state: q, k [n, H, C, K], v [n, H, C, V], beta [n, H, C], g [n, C, H]."""
    n, heads, width, dim = k.shape
    kind = k.dtype
    sums = (g.double() * LOG2E).cumsum(1).transpose(1, 2).contiguous()[..., None]  # G in bits, [n, H, C, 1]
    rows = scratch("rows", [n, heads, 1, 2, width, dim], kind)
    rows[:, :, 0, 0], rows[:, :, 0, 1] = k, q
    flat = rows.view(n * heads, 2, width, dim)
    products = scratch("products", [n * heads, 2 * width, width], kind)
    torch.bmm(flat.flatten(1, 2), flat[:, 0].mT, out=products)
    below = scratch("below", [n, heads, width, width], torch.float64)
    torch.sub(sums, sums.mT, out=below).clamp_(max=0.0)  # above the diagonal exp could overflow
    weights = exp2(below, scratch("weights", below.shape, kind))
    products = products.view(n, heads, 2, width, width)
    tri, scores = (scratch(name, weights.shape, kind) for name in ("tri", "scores"))
    torch.mul(products[:, :, 1], weights, out=scores).tril_().mul_(scale)
    lower = weights.mul_(products[:, :, 0]).mul_(beta[..., None]).tril_(-1)
    inverse(lower, tri).mul_(beta[..., None, :])
    rows.mul_(exp2_few(sums, kind)[:, :, None, None])
    keyed = torch.mul(k, exp2_few(sums[:, :, -1:] - sums, kind), out=scratch("keyed", k.shape, kind))

    def cut(chunks: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
        part = pick(sums, chunks)
        end = part[torch.arange(len(depth)), :, depth - 1][:, :, None]
        left = end - part
        left.masked_fill_(
            torch.arange(width, device=k.device)[:, None] >= depth.view(-1, 1, 1, 1), -torch.inf
        )
        return pick(k, chunks) * exp2_few(left, kind), exp2_few(end, kind)

    return Parts(rows, v, tri, scores, keyed, exp2_few(sums[:, :, -1:], kind), scale, cut)
