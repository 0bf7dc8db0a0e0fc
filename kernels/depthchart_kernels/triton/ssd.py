"""Launch of Mamba-2's kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from depthchart_kernels.batch import Batch
from depthchart_kernels.chunked.walk import copy_depth_zero
from depthchart_kernels.triton import ssd_kernels as kernels
from depthchart_kernels.triton.common import (
    check_device,
    check_size,
    contiguous,
    kind_of,
    power_of_two,
    slots_of,
)
from depthchart_kernels.triton.plan import Tables, tables
from depthchart_kernels.triton.tuning import SQUARE_STAGES, scan_config, square_warps

__all__ = ["ssd"]


def ssd(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor | None,
    batch: Batch,
    pool: Tensor | None,
    width: int,
    split: int | None = None,
) -> Tensor:
    """Scan of Mamba-2. See `depthchart_kernels.ssd`.

    ``split``: pieces of the longest sequence, see `plan.tables`; chosen by how full the machine would be if absent.
    """
    check_device(x, dt, a, b, c, d, pool)
    check_size("state size", b.shape[2], 256)
    config = scan_config("ssd", width, x.dtype, b.shape[2])
    x, dt, a, b, c = contiguous(x, dt, a, b, c)
    (_, heads, size), (groups, states) = x.shape, b.shape[1:]
    block = min(config.value_block, power_of_two(size))
    output = torch.empty_like(x)
    table = tables(batch, width, x.device, heads * -(-size // block), split)
    pool = slots_of(pool, x)
    copy_depth_zero(batch, pool)
    if not table.chunk_count:
        return output
    square: dict[str, Any] = {
        "C": width, "B": min(width, config.block), "BN": power_of_two(states), "KIND": kind_of(x)
    }  # fmt: skip
    options = {"num_warps": square_warps(width), "num_stages": SQUARE_STAGES}
    scores = x.new_empty([table.chunk_count, groups, width, width])
    kernels.scores_kernel[(table.chunk_count, groups, (width // square["B"]) ** 2)](
        b, c, table.chunks, scores, groups, states, **square, **options
    )
    launch: dict[str, Any] = square | {
        "P": size, "N": states, "BP": block, "num_warps": config.warps, "num_stages": config.stages
    }  # fmt: skip
    starts = scores
    if table.split:
        columns = min(config.transition_block, power_of_two(size))
        starts = _starts(x, dt, a, b, pool, table, launch | {"BP": columns})
    kernels.ssd_kernel[(table.piece_count, heads, -(-size // block))](
        x, dt, a, b, c, a if d is None else d, scores, output, pool, starts,
        table.sequences, table.chunks, table.snapshots, heads, groups, pool.stride(0),
        **launch, SKIP=d is not None, MOST=table.most, SPLIT=table.split,
    )  # fmt: skip
    return output


def _starts(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, pool: Tensor, table: Tables, launch: dict[str, Any]
) -> Tensor:
    """The state at the start of every piece [pieces, H, P, N], float32."""
    (_, heads, size), (groups, states), count = x.shape, b.shape[1:], len(table.followed)
    additions = x.new_empty([count, heads, size, states], dtype=torch.float32)
    decays = x.new_empty([count, heads], dtype=torch.float32)
    starts = x.new_empty([table.piece_count, heads, size, states], dtype=torch.float32)
    kernels.addition_kernel[(count, heads, -(-size // launch["BP"]))](
        x, dt, a, b, additions, decays, table.sequences, table.followed, heads, groups, **launch
    )
    kernels.combine_kernel[(len(table.runs), heads, -(-size * states // kernels.ELEMENTS))](
        additions,
        decays,
        pool,
        starts,
        table.runs,
        heads,
        pool.stride(0),
        SIZE=size * states,
        E=kernels.ELEMENTS,
    )
    return starts
