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
    for group in groups(batch, width, tuple(like.shape)):
        state = load(batch, group.sequences, pool, like)
        for segment in group.segments:
            inputs = [segment.take(x).transpose(1, 2).to(kind) for x in (q, k, v, beta)]
            parts = _prepare(*inputs, segment.take(g if g.ndim == 3 else g[..., None]), scale)
            segment.put(output, _walk(parts, segment, state, pool).transpose(1, 2))
    return output


def _prepare(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor, scale: float) -> Parts:
    """Everything that does not need the state. g [n, C, HV, 1 or K]; the rest [n, heads, C, ...]."""
    kind, (n, heads, width, _), value_heads = k.dtype, k.shape, v.shape[1]
    repeat = value_heads // heads
    triangle = torch.ones(width, width, dtype=torch.float64, device=g.device).tril_().mul_(LOG2E)
    sums = torch.matmul(triangle, g.double().flatten(2)).view(g.shape).transpose(1, 2)  # [n, HV, C, 1 or K]
    per_head = g.shape[3] == 1
    if per_head:
        products = torch.empty([2, n, heads, width, width], dtype=kind, device=k.device)
        matmul(k, k.mT, products[0])
        matmul(q, k.mT, products[1])
        below = (sums - sums.mT).clamp_(max=0.0)  # above the diagonal it is positive: exp could overflow
        weights = exp2(below, kind)
        lower, scores = (weights * _spread(x, repeat) for x in products)
        k, q = _spread(k, repeat), _spread(q, repeat)
        decay = exp2_few(sums, kind)
        scaled_k, scaled_q, rows = k, q * (scale * decay), decay.neg_()
    else:
        k, q = _spread(k, repeat), _spread(q, repeat)
        lower, scores, scaled_k, scaled_q = channel_scores(q, k, sums)
        scaled_q, rows = scaled_q.mul_(scale), None
    lower = lower.mul_(beta[..., None]).tril_(-1)
    tri = inverse(lower) * beta[..., None, :]
    return Parts(scaled_k, scaled_q, v, tri, scores.mul_(scale).tril_(), rows, k, sums)


def _spread(x: Tensor, repeat: int) -> Tensor:
    """Query/key heads [n, H, ...] to value heads [n, HV, ...]; a view where there is nothing to repeat."""
    return x if repeat == 1 else x.repeat_interleave(repeat, dim=1)


def _walk(parts: Parts, segment: Segment, state: Tensor, pool: Tensor | None) -> Tensor:
    """The loop over waves: outputs [n, HV, C, V]; ``state`` [sequences, HV, K, V] is advanced in place."""
    u, output = (torch.empty(parts.v.shape, dtype=parts.v.dtype, device=parts.v.device) for _ in range(2))
    rest = torch.empty_like(u)
    last = torch.full([1], segment.width)
    keys, decay = _end_factors(parts, slice(None), last)
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
            _snapshot(parts, a, writes, now, u, pool)
        _advance(now, parts, slice(a, b), keys[a:b], decay[a:b], u[a:b])
    return output


def _end_factors(parts: Parts, chunks: slice | Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
    """Factors of the state after ``depth`` tokens of the chunks: of each row, and of the state at the start.

    Later rows get the sums of row ``depth`` and factor 0, as if the sequence had ended there.
    """
    sums = parts.sums[chunks]
    width, kind = sums.shape[2], parts.v.dtype
    place = (depth - 1).view(-1, 1, 1, 1).expand(sums.shape[0], sums.shape[1], 1, sums.shape[3])
    end = sums.gather(2, place)
    power = exp2_few if sums.shape[3] == 1 else exp2
    factors = power((end - sums).clamp_(max=0.0), kind)
    if bool((depth < width).any()):
        factors = factors * (torch.arange(width) < depth[:, None]).view(len(depth), 1, width, 1).to(kind)
    return factors, exp2_few(end, kind).mT


def _advance(
    state: Tensor, parts: Parts, chunks: slice | Tensor, keys: Tensor, decay: Tensor, u: Tensor
) -> None:
    """``state`` [m, HV, K, V] from the chunks' start to the depth that the factors were made for, in place."""
    state.mul_(decay)
    if parts.rows is None:
        matmul((parts.plain_k[chunks] * keys).mT, u, state, add=True)
    else:
        matmul(parts.plain_k[chunks].mT, u * keys, state, add=True)


def _snapshot(parts: Parts, first: int, writes: IntArray, state: Tensor, u: Tensor, pool: Tensor) -> None:
    """Write the wanted states of one wave: rows of (position, tokens into the chunk, slot)."""
    for at in range(0, len(writes), AT_ONCE):
        place, depth, slots = writes[at : at + AT_ONCE].T
        where = torch.from_numpy(np.ascontiguousarray(place))
        keys, decay = _end_factors(parts, where + first, torch.from_numpy(np.ascontiguousarray(depth)))
        then = state[where]
        _advance(then, parts, where + first, keys, decay, u[where + first])
        store(pool, slots, then)
