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
from depthchart_kernels.triton.tuning import CHANNEL_WARPS, scan_config, square_warps

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
    channel = g.ndim == 3
    config = scan_config("kda" if channel else "gated_delta", width, q.dtype)
    q, k, v, g, beta = (x.contiguous() for x in (q, k, v, g, beta))
    output = torch.empty_like(v)
    table = tables(batch, width, q.device)
    pool = slots_of(pool, v)
    copy_depth_zero(batch, pool)
    if not table.chunk_count:
        return output
    heads, key_dim, value_heads, value_dim = q.shape[1], q.shape[2], v.shape[1], v.shape[2]
    square = [table.chunk_count, value_heads, width, width]
    tri, scores = (torch.empty(square, dtype=q.dtype, device=q.device) for _ in range(2))
    sizes = (heads, value_heads, key_dim)
    blocks: dict[str, Any] = {"C": width, "BK": power_of_two(key_dim), "KIND": kind_of(q)}
    grid = (table.chunk_count, value_heads)
    lower = torch.empty(square, dtype=torch.float32, device=q.device)
    loop_k, loop_q, write_k, decay = k, q, k, lower  # the last two are not read with one decay a head
    if channel:
        scores.zero_()  # blocks above the diagonal are not written
        loop_k, loop_q, write_k = (q.new_empty([q.shape[0], value_heads, key_dim]) for _ in range(3))
        decay = lower.new_empty([table.chunk_count, value_heads, key_dim])
        kernels.channel_scores_kernel[(*grid, width // 16)](
            q, k, g, beta, table.chunks, lower, scores, loop_k, loop_q, write_k, decay, scale, *sizes, **blocks,
            num_warps=CHANNEL_WARPS,
        )  # fmt: skip
    else:
        kernels.head_scores_kernel[grid](
            q, k, g, beta, table.chunks, lower, scores, scale, *sizes, **blocks, num_warps=square_warps(width)
        )
    kernels.invert_kernel[grid](
        lower, beta, table.chunks, tri, value_heads, C=width, num_warps=square_warps(width)
    )
    value_block = min(config.value_block, power_of_two(value_dim))
    kernels.scan_kernel[(batch.sequences, value_heads, -(-value_dim // value_block))](
        loop_q, loop_k, v, g, write_k, decay, k, tri, scores, output, pool,
        table.sequences, table.chunks, table.snapshots, scale, heads, value_heads,
        pool.stride(0), **blocks, K=key_dim, V=value_dim, BV=value_block, CHANNEL=channel, MOST=table.most,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    return output


def slots_of(pool: Tensor | None, like: Tensor) -> Tensor:
    """The pool, or something that can be passed in its place where no slot is touched."""
    if pool is None:
        return like.new_zeros([1, 1], dtype=torch.float32)
    if not pool[:1].is_contiguous():
        raise ValueError(
            f"pool's slots must be contiguous, got strides {pool.stride()}; any stride between slots is fine"
        )
    return pool
