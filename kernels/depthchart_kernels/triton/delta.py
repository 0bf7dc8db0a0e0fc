"""Launch of the delta rules' kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from depthchart_kernels.batch import Batch
from depthchart_kernels.chunked.walk import copy_depth_zero
from depthchart_kernels.triton import delta_kernels as kernels
from depthchart_kernels.triton import delta_prepare as prepare
from depthchart_kernels.triton.common import (
    BLOCK,
    MANY,
    check_device,
    check_size,
    contiguous,
    kind_of,
    power_of_two,
    slots_of,
)
from depthchart_kernels.triton.plan import Tables, tables
from depthchart_kernels.triton.tuning import (
    COMBINE_COLUMNS,
    COMBINE_WARPS,
    SQUARE_STAGES,
    channel_warps,
    scan_config,
    square_warps,
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
    split: int | None = None,
) -> Tensor:
    """Scan of the delta rule; g is [T, HV] or [T, HV, K]. See `depthchart_kernels.gated_delta`.

    ``split``: pieces of the longest sequence, see `plan.tables`; chosen by how full the machine would be if absent.
    """
    check_device(q, k, v, g, beta, pool)
    check_size("key size", q.shape[2], 256)
    channel = g.ndim == 3
    config = scan_config("kda" if channel else "gated_delta", width, q.dtype, q.shape[2])
    q, k, v, g, beta = contiguous(q, k, v, g, beta)
    value_heads, value_dim = v.shape[1:]
    value_block = min(config.value_block, power_of_two(value_dim))
    value_blocks = -(-value_dim // value_block)
    output = torch.empty_like(v)
    table = tables(batch, width, q.device, value_heads * value_blocks, split)
    pool = slots_of(pool, v)
    copy_depth_zero(batch, pool)
    if not table.chunk_count:
        return output
    blocks: dict[str, Any] = {"C": width, "BK": power_of_two(q.shape[2]), "KIND": kind_of(q)}
    loop_q, loop_k, write_k, decay, tri, scores = _prepare(q, k, g, beta, table, scale, blocks)
    launch: dict[str, Any] = blocks | {
        "K": q.shape[2], "V": value_dim, "B": min(width, config.block), "BV": value_block, "CHANNEL": channel,
        "num_warps": config.warps, "num_stages": config.stages,
    }  # fmt: skip
    heads = (q.shape[1], value_heads)
    starts = decay
    if table.split:
        columns = min(config.transition_block, power_of_two(max(value_dim, q.shape[2])))
        starts = _starts((loop_k, v, g, write_k, decay, tri), pool, table, heads, launch | {"BV": columns})
    kernels.scan_kernel[(table.piece_count, value_heads, value_blocks)](
        loop_q, loop_k, v, g, write_k, decay, k, tri, scores, output, pool, starts,
        table.sequences, table.chunks, table.snapshots, scale, *heads, pool.stride(0),
        **launch | {"B": min(width, config.many if table.most == MANY else config.block)}, MOST=table.most,
        SPLIT=table.split,
    )  # fmt: skip
    return output


def _prepare(
    q: Tensor, k: Tensor, g: Tensor, beta: Tensor, table: Tables, scale: float, blocks: dict[str, Any]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """What the loop takes: q and k, k as it is written, a chunk's decay, the inverse and the scores."""
    (tokens, heads, key_dim), value_heads, width = q.shape, g.shape[1], blocks["C"]
    rows = min(width, BLOCK)
    options = {"num_warps": square_warps(width), "num_stages": SQUARE_STAGES}
    square = [table.chunk_count, value_heads, width, width]
    tri, scores = (torch.empty(square, dtype=q.dtype, device=q.device) for _ in range(2))
    lower = torch.empty(square, dtype=torch.float32, device=q.device)
    grid = (table.chunk_count, value_heads)
    loop_q, loop_k, write_k, decay = q, k, k, lower  # the last two are not read with one decay a head
    if g.ndim == 3:
        loop_q, loop_k, write_k = (q.new_empty([tokens, value_heads, key_dim]) for _ in range(3))
        decay = lower.new_empty([table.chunk_count, value_heads, key_dim])
        prepare.channel_scores_kernel[(*grid, width // 16)](
            q, k, g, beta, table.chunks, lower, scores, loop_k, loop_q, write_k, decay, scale,
            heads, value_heads, key_dim, **blocks, num_warps=channel_warps(key_dim),
        )  # fmt: skip
    else:
        prepare.head_scores_kernel[(*grid, width // rows)](
            q, k, g, beta, table.chunks, lower, scores, scale, heads, value_heads, key_dim, **blocks, B=rows, **options,
        )  # fmt: skip
    squares = (lower, beta, table.chunks, tri, value_heads)
    prepare.invert_kernel[(*grid, width // rows)](*squares, C=width, B=rows, **options)
    half = rows
    while half < width:
        tiles = width // (2 * half) * (half // BLOCK) ** 2
        prepare.merge_kernel[(*grid, tiles)](
            *squares, C=width, HALF=half, LAST=2 * half == width, num_warps=square_warps(width), num_stages=1
        )
        half *= 2
    return loop_q, loop_k, write_k, decay, tri, scores


def _starts(
    inputs: tuple[Tensor, ...], pool: Tensor, table: Tables, heads: tuple[int, int], launch: dict[str, Any]
) -> Tensor:
    """The state at the start of every piece [pieces, HV, K, V], float32."""
    key_dim, value_dim, block, value_heads = launch["K"], launch["V"], launch["BV"], heads[1]
    like = inputs[0].new_empty(0, dtype=torch.float32)
    count = len(table.followed)
    matrices = like.new_empty([count, value_heads, key_dim, key_dim])
    additions = like.new_empty([count, value_heads, key_dim, value_dim])
    starts = like.new_empty([table.piece_count, value_heads, key_dim, value_dim])
    blocks = -(-value_dim // block)
    kernels.transition_kernel[(count, value_heads, blocks - (-key_dim // block))](
        *inputs, matrices, additions, table.sequences, table.followed, *heads, **launch
    )
    kernels.combine_kernel[(len(table.runs), value_heads, -(-value_dim // COMBINE_COLUMNS))](
        matrices, additions, pool, starts, table.runs, value_heads, pool.stride(0),
        K=key_dim, V=value_dim, T=min(launch["BK"], BLOCK), BV=COMBINE_COLUMNS, num_warps=COMBINE_WARPS, num_stages=1,
    )  # fmt: skip
    return starts
