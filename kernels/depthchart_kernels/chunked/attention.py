"""Paged attention sequence by sequence: blocks of keys are gathered and folded into a running maximum and sum."""

from __future__ import annotations

import torch
from torch import Tensor

from depthchart_kernels.batch import IntArray

__all__ = ["attend"]

KEYS = 4096  # keys that are gathered at once, in whole pages


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
    page_size, heads = k_cache.shape[1:3]
    queries, query_heads, dim = q.shape
    # the queries of all heads that share a key head become the rows of one product
    rows = q.view(queries, heads, -1, dim).permute(1, 2, 0, 3).reshape(heads, -1, dim) * scale
    high = rows.new_full([*rows.shape[:2], 1], -torch.inf)
    total, value = torch.zeros_like(high), rows.new_zeros([*rows.shape[:2], v_cache.shape[3]])
    most, step = max(int(seen.max()), 0), max(KEYS // page_size, 1)
    for first in range(0, -(-most // page_size), step):
        page = pages[first : min(first + step, -(-most // page_size))].long()
        k, v = (x[page].flatten(0, 1).transpose(0, 1).to(q.dtype) for x in (k_cache, v_cache))  # [H, keys, .]
        keys = torch.arange(first * page_size, first * page_size + k.shape[1], device=q.device)
        hidden = keys >= seen[:, None]  # [queries, keys]
        v = v.masked_fill((keys >= most)[:, None], 0.0)  # rows that were never written may hold anything
        scores = (
            (rows @ k.mT).view(heads, -1, queries, k.shape[1]).masked_fill_(hidden, -torch.inf).flatten(1, 2)
        )
        above = torch.maximum(high, scores.amax(-1, keepdim=True))
        base = above.masked_fill(above == -torch.inf, 0.0)
        weights = (scores - base).exp_()
        fade = (high - base).exp()
        total, value = total * fade + weights.sum(-1, keepdim=True), value * fade + weights @ v
        high = above
    value = value / total.masked_fill(total == 0, 1.0)
    order = (heads, query_heads // heads, queries)
    output.copy_(value.view(*order, -1).permute(2, 0, 1, 3).reshape(output.shape))
    lse.copy_((high + total.log()).view(order).permute(2, 0, 1).reshape(lse.shape))
