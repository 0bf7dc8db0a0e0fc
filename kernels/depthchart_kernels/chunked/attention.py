"""Paged attention sequence by sequence: blocks of keys are gathered and folded into a running maximum and sum.

Of a block of keys only those queries are multiplied that see any of it, and only those are masked that don't see all.
"""

from __future__ import annotations

from bisect import bisect_right

import torch
from torch import Tensor

from depthchart_kernels.batch import IntArray

__all__ = ["attend"]

KEYS, ALL_KEYS = 512, 4096  # keys that are gathered at once, in whole pages: beside many queries, beside few
ROWS = 256  # queries times heads that share a key head, at once


def attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    bounds: IntArray,
    lengths: IntArray,
    scale: float,
    rank: int,
    size: int,
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp. See `depthchart_kernels.paged_attention`."""
    kind = torch.float64 if q.dtype == torch.float64 else torch.float32
    output = q.new_zeros([*q.shape[:2], v_cache.shape[3]])
    lse = q.new_full(q.shape[:2], -torch.inf, dtype=kind)
    for s in range(len(lengths)):
        a, b = int(bounds[s]), int(bounds[s + 1])
        if a < b:
            last = int(lengths[s]) - 1
            positions = torch.arange(last - (b - a) + 1, last + 1, device=q.device)
            seen = (
                torch.div(positions - rank, size, rounding_mode="floor") + 1
            )  # [queries], local keys each may see
            _sequence(q[a:b].to(kind), k_cache, v_cache, page_table[s], seen, scale, output[a:b], lse[a:b])
    return output, lse


def _sequence(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    pages: Tensor,
    seen: Tensor,
    scale: float,
    output: Tensor,
    lse: Tensor,
) -> None:
    """One sequence: q [queries, HQ, D] into output and lse; ``seen`` [queries] never falls."""
    page_size, heads = k_cache.shape[1:3]
    queries, query_heads, dim = q.shape
    each = query_heads // heads
    # the queries of all heads that share a key head become the rows of one product
    rows = (q.view(queries, heads, each, dim).transpose(0, 1) * scale).flatten(1, 2)
    high = rows.new_full([*rows.shape[:2], 1], -torch.inf)
    total, value = torch.zeros_like(high), rows.new_zeros([*rows.shape[:2], v_cache.shape[3]])
    most = max(int(seen[-1]), 0)
    size = max(ROWS // each, 1)  # queries at once
    step = max((KEYS if queries > size else ALL_KEYS) // page_size, 1)  # pages at once
    limits = seen.tolist()
    for first in range(0, -(-most // page_size), step):
        page = pages[first : min(first + step, -(-most // page_size))].long()
        k, v = (x[page].flatten(0, 1).transpose(0, 1).to(q.dtype) for x in (k_cache, v_cache))  # [H, keys, .]
        begin, count = first * page_size, k.shape[1]
        keys = torch.arange(begin, begin + count, device=q.device)
        if begin + count > most:  # rows that were never written may hold anything
            v = v.masked_fill((keys >= most)[:, None], 0.0)
        start = bisect_right(limits, begin)  # earlier queries see none of these keys
        for at in range(start, queries, size):
            stop = min(at + size, queries)
            part = slice(at * each, stop * each)
            scores = rows[:, part] @ k.mT
            if limits[at] < begin + count:
                hidden = keys >= seen[at:stop].repeat_interleave(each)[:, None]
                scores.masked_fill_(hidden, -torch.inf)
            _fold(scores, v, high[:, part], total[:, part], value[:, part])
    value = value / total.masked_fill(total == 0, 1.0)
    order = (heads, queries, each)
    output.copy_(value.view(*order, -1).transpose(0, 1).reshape(output.shape))
    lse.copy_((high + total.log()).view(order).transpose(0, 1).reshape(lse.shape))


def _fold(scores: Tensor, v: Tensor, high: Tensor, total: Tensor, value: Tensor) -> None:
    """Add keys with scores [H, rows, keys] to the running maximum, sum and weighted values, in place.

    Every row sees at least one key.
    """
    above = torch.maximum(high, scores.amax(-1, keepdim=True))
    weights = scores.sub_(above).exp_()
    fade = (high - above).exp_()
    total.mul_(fade).add_(weights.sum(-1, keepdim=True))
    value.mul_(fade).baddbmm_(weights, v)
    high.copy_(above)
