"""Launch of the delta rules' kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from depthchart_kernels.batch import Batch
from depthchart_kernels.chunked.walk import copy_depth_zero
from depthchart_kernels.triton import delta_kernels as kernels
from depthchart_kernels.triton.common import (
    check_device,
    check_size,
    check_width,
    kind_of,
    power_of_two,
    tables,
)
from depthchart_kernels.triton.tuning import scan_config

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
    check_device(q, k, v, g, beta, pool)
    check_width(width)
    check_size("key size", q.shape[2], 256)
    q, k, v, g, beta = (x.contiguous() for x in (q, k, v, g, beta))
    output = torch.empty_like(v)
    table = tables(batch, width, q.device)
    pool = slots_of(pool, v)
    copy_depth_zero(batch, pool)
    if not table.chunk_count:
        return output
    heads, key_dim, value_heads, value_dim = q.shape[1], q.shape[2], v.shape[1], v.shape[2]
    channel = g.ndim == 3
    square = [table.chunk_count, value_heads, width, width]
    tri, scores = (torch.empty(square, dtype=q.dtype, device=q.device) for _ in range(2))
    sizes = (heads, value_heads, key_dim)
    blocks: dict[str, Any] = {"C": width, "BK": power_of_two(key_dim), "KIND": kind_of(q)}
    grid = (table.chunk_count, value_heads)
    if channel:
        lower = torch.empty(square, dtype=torch.float32, device=q.device)
        kernels.channel_scores_kernel[(*grid, width // 16)](
            q, k, g, beta, table.chunks, lower, scores, scale, *sizes, **blocks, num_warps=4
        )
        kernels.invert_kernel[grid](lower, beta, table.chunks, tri, value_heads, C=width, num_warps=4)
    else:
        kernels.head_prepare_kernel[grid](
            q, k, g, beta, table.chunks, tri, scores, scale, *sizes, **blocks, num_warps=8 if width > 64 else 4
        )
    config = scan_config("kda" if channel else "gated_delta", width, q.dtype)
    value_block = min(config.value_block, power_of_two(value_dim))
    kernels.scan_kernel[(batch.sequences, value_heads, -(-value_dim // value_block))](
        q, k, v, g, tri, scores, output, pool, table.sequences, table.chunks, table.snapshots, scale,
        *sizes, value_dim, pool.stride(0), **blocks, BV=value_block, CHANNEL=channel, MOST=table.most,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    return output


def slots_of(pool: Tensor | None, like: Tensor) -> Tensor:
    """The pool, or something that can be passed in its place where no slot is touched."""
    if pool is None:
        return like.new_zeros([1, 1], dtype=torch.float32)
    if not pool[:1].is_contiguous():
        raise ValueError(f"pool's slots must be contiguous, got strides {pool.stride()}; any stride between slots is fine")
    return pool
