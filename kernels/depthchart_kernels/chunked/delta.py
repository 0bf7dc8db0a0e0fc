"""Chunk form of the delta rules, for one decay a head and for one a channel.

With G the running sum of log decay inside a chunk and S the state at its start:

    Tri = (I + L)^-1 diag(beta),   L_ij = beta_i <k_i, exp(G_i − G_j) k_j>  below the diagonal
    U   = Tri (V − (K ∘ exp G) S)
    O   = scale (Q ∘ exp G) S + A U,   A_ij = scale <q_i, exp(G_i − G_j) k_j>  on and below the diagonal
    S_d = exp(G_d) ∘ S + (K ∘ exp(G_d − G))ᵀ U, rows up to d only: the state after d tokens of the chunk

Letters as in `depthchart_kernels.delta_rule`; n chunks of C tokens in a segment.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from depthchart_kernels.batch import Batch, IntArray
from depthchart_kernels.chunked.channel import channel_scores
from depthchart_kernels.chunked.walk import (
    LOG2E,
    Scratch,
    Segment,
    copy_depth_zero,
    exp2,
    exp2_few,
    groups,
    inverse,
    load,
    matmul,
    store,
)

__all__ = ["delta"]

AT_ONCE = 64  # states of a wave that are written together


@dataclass(frozen=True, eq=False)
class Parts:
    """What a segment's loop over waves needs; all [n, HV, C, ...] unless said."""

    k: Tensor  # [., K], times exp G where decay is per channel
    q: Tensor  # [., K], times scale · exp G
    v: Tensor  # [., V]
    tri: Tensor  # [., C]
    scores: Tensor  # [., C], A
    rows: Tensor | None  # [., 1], −exp G where decay is per head
    plain_k: Tensor  # [., K]
    sums: Tensor  # [., 1] or [., K], G in float64 and in bits: exp of nats is 2^bits


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
    output = torch.empty_like(v)
    if pool is not None:
        copy_depth_zero(batch, pool)
    like = torch.empty([v.shape[1], k.shape[2], v.shape[2]], dtype=kind, device=q.device)
    scratch = Scratch(q.device)
    for group in groups(batch, width, tuple(like.shape)):
        state = load(batch, group.sequences, pool, like)
        for segment in group.segments:
            sq, sk, sv, sbeta = (segment.take(x).transpose(1, 2).to(kind) for x in (q, k, v, beta))
            parts = _prepare(
                sq, sk, sv, sbeta, segment.take(g if g.ndim == 3 else g[..., None]), scale, scratch
            )
            segment.put(output, _walk(parts, segment, state, pool, scratch).transpose(1, 2))
    return output


def _prepare(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor, scale: float, scratch: Scratch
) -> Parts:
    """Everything that does not need the state. g [n, C, HV, 1 or K]; the rest [n, heads, C, ...]."""
    kind, (n, _, width, _), value_heads = k.dtype, k.shape, v.shape[1]
    triangle = torch.ones(width, width, dtype=torch.float64, device=g.device).tril_().mul_(LOG2E)
    raw = scratch("raw", [n, width, g[0, 0].numel()], torch.float64).copy_(g.flatten(2))
    sums = scratch("sums", raw.shape, torch.float64)
    torch.matmul(triangle, raw, out=sums)
    sums = sums.view(g.shape).transpose(1, 2)  # [n, HV, C, 1 or K]
    if g.shape[3] == 1:
        sums = sums.contiguous()  # else every product of it would inherit the odd layout
        lower, scores = _head_scores(q, k, sums, scratch)
        k, q = (
            x.repeat_interleave(value_heads // x.shape[1], dim=1) if x.shape[1] < value_heads else x
            for x in (k, q)
        )
        decay = exp2_few(sums, kind)
        scaled_k, scaled_q = k, torch.mul(q, scale * decay, out=scratch("scaled q", q.shape, kind))
        rows = decay.neg_()
    else:
        k, q = (
            x.repeat_interleave(value_heads // x.shape[1], dim=1) if x.shape[1] < value_heads else x
            for x in (k, q)
        )
        lower, scores, scaled_k, scaled_q = channel_scores(q, k, sums, scratch)
        scaled_q, rows = scaled_q.mul_(scale), None
    lower.mul_(beta[..., None]).tril_(-1)
    tri = inverse(lower, scratch("tri", lower.shape, kind)).mul_(beta[..., None, :])
    return Parts(scaled_k, scaled_q, v, tri, scores.mul_(scale).tril_(), rows, k, sums)


def _head_scores(q: Tensor, k: Tensor, sums: Tensor, scratch: Scratch) -> tuple[Tensor, Tensor]:
    """exp(G_i − G_j) times <k_i, k_j> and <q_i, k_j>, each [n, HV, C, C], for one decay a head."""
    kind, (n, heads, width, _), value_heads = k.dtype, k.shape, sums.shape[1]
    products = scratch("products", [2, n, heads, width, width], kind)
    matmul(k, k.mT, products[0])
    matmul(q, k.mT, products[1])
    below = scratch("below", [n, value_heads, width, width], torch.float64)
    torch.sub(sums, sums.mT, out=below).clamp_(
        max=0.0
    )  # above the diagonal it is positive: exp could overflow
    weights = exp2(below, scratch("weights", below.shape, kind)).view(n, heads, -1, width, width)
    both = scratch("scores", [2, *weights.shape], kind)
    torch.mul(products[:, :, :, None], weights, out=both)
    return both[0].flatten(1, 2), both[1].flatten(1, 2)


def _walk(parts: Parts, segment: Segment, state: Tensor, pool: Tensor | None, scratch: Scratch) -> Tensor:
    """The loop over waves: outputs [n, HV, C, V]; ``state`` [sequences, HV, K, V] is advanced in place."""
    shape, kind = parts.v.shape, parts.v.dtype
    u, output, rest = (scratch(name, shape, kind) for name in ("u", "output", "rest"))
    keys, decay = _end_factors(parts, parts.sums, None, scratch)
    keyed = (
        parts.plain_k
    )  # each row's share of the state: its factor goes to k if there is one a channel, else to u
    if parts.rows is None:
        keyed = torch.mul(parts.plain_k, keys, out=scratch("keyed", keys.shape, kind))
    for (a, b), writes in zip(segment.waves, segment.writes, strict=True):
        now = state[: b - a]
        matmul(parts.k[a:b], now, rest[a:b])
        if parts.rows is None:
            torch.sub(parts.v[a:b], rest[a:b], out=rest[a:b])
        else:
            torch.addcmul(parts.v[a:b], rest[a:b], parts.rows[a:b], out=rest[a:b])
        matmul(parts.tri[a:b], rest[a:b], u[a:b])
        matmul(parts.q[a:b], now, output[a:b])
        matmul(parts.scores[a:b], u[a:b], output[a:b], add=True)
        if pool is not None and len(writes):
            _snapshot(parts, a, writes, now, u, pool, scratch)
        weighted = u[a:b] if parts.rows is None else torch.mul(u[a:b], keys[a:b], out=rest[a:b])
        matmul(keyed[a:b].mT, weighted, now.mul_(decay[a:b]), add=True)
    return output


def _end_factors(parts: Parts, sums: Tensor, depth: Tensor | None, scratch: Scratch) -> tuple[Tensor, Tensor]:
    """Factors of the state after ``depth`` tokens of the chunks (all if None): of each row, and of the state.

    Later rows get factor 0, as if the sequence had ended there.
    """
    width, kind = sums.shape[2], parts.v.dtype
    end = sums[:, :, -1:]
    if depth is not None:
        end = sums[torch.arange(len(depth)), :, depth - 1][:, :, None]
    left = scratch("left" if depth is None else "cut left", sums.shape, torch.float64)
    torch.sub(end, sums, out=left)
    if depth is not None:
        left.masked_fill_(torch.arange(width)[:, None] >= depth.view(-1, 1, 1, 1), -torch.inf)
    if sums.shape[3] == 1:
        factors = exp2_few(left, kind)
    else:
        factors = exp2(left, scratch("keys" if depth is None else "cut keys", sums.shape, kind))
    return factors, end.exp2().to(kind).mT


def _snapshot(
    parts: Parts, first: int, writes: IntArray, state: Tensor, u: Tensor, pool: Tensor, scratch: Scratch
) -> None:
    """Write the wanted states of one wave: rows of (position, tokens into the chunk, slot)."""
    for at in range(0, len(writes), AT_ONCE):
        place, depth, slots = (torch.from_numpy(np.ascontiguousarray(x)) for x in writes[at : at + AT_ONCE].T)
        chunks = place + first
        keys, decay = _end_factors(parts, parts.sums[chunks], depth, scratch)
        k, rows, then = parts.plain_k[chunks], u[chunks], state[place].mul_(decay)
        if parts.rows is None:
            matmul((k * keys).mT, rows, then, add=True)
        else:
            matmul(k.mT, rows * keys, then, add=True)
        store(pool, slots.numpy(), then)
