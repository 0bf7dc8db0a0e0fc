"""Paged attention, one query at a time in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from depthchart_kernels.batch import IntArray

__all__ = ["attend"]


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
    page_size, repeat = k_cache.shape[1], q.shape[1] // k_cache.shape[2]
    output = q.new_zeros([*q.shape[:2], v_cache.shape[3]])
    lse = q.new_full(q.shape[:2], -torch.inf, dtype=torch.float64)
    for s in range(len(lengths)):
        for t in range(int(bounds[s]), int(bounds[s + 1])):
            position = int(lengths[s] - bounds[s + 1]) + t
            seen = len(range(rank, position + 1, size))  # local keys at or before this position
            if not seen:
                continue
            local = torch.arange(seen, device=q.device)
            page = page_table[s, local // page_size].long()
            k = k_cache[page, local % page_size].double().repeat_interleave(repeat, dim=1)
            v = v_cache[page, local % page_size].double().repeat_interleave(repeat, dim=1)
            scores = scale * (q[t].double() * k).sum(-1)  # [keys, HQ]
            lse[t] = torch.logsumexp(scores, dim=0)
            output[t] = ((scores - lse[t]).exp()[..., None] * v).sum(0).to(output.dtype)
    return output, lse
