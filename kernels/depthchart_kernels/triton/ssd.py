"""Launch of Mamba-2's kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from depthchart_kernels.batch import Batch
from depthchart_kernels.chunked.walk import copy_depth_zero
from depthchart_kernels.triton.common import (
    check_device,
    check_size,
    check_width,
    kind_of,
    power_of_two,
    tables,
)
from depthchart_kernels.triton.delta import slots_of
from depthchart_kernels.triton.ssd_kernels import ssd_kernel
from depthchart_kernels.triton.tuning import scan_config

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
) -> Tensor:
    """Scan of Mamba-2. See `depthchart_kernels.ssd`."""
    check_device(x, dt, a, b, c, d, pool)
    check_width(width)
    check_size("state size", b.shape[2], 256)
    config = scan_config("ssd", width, x.dtype)
    x, dt, a, b, c = (z.contiguous() for z in (x, dt, a, b, c))
    output = torch.empty_like(x)
    table = tables(batch, width, x.device)
    pool = slots_of(pool, x)
    copy_depth_zero(batch, pool)
    if not table.chunk_count:
        return output
    (_, heads, size), (groups, states) = x.shape, b.shape[1:]
    block = min(config.value_block, power_of_two(size))
    ssd_kernel[(batch.sequences, heads, -(-size // block))](
        x, dt, a, b, c, a if d is None else d, output, pool, table.sequences, table.chunks, table.snapshots,
        heads, groups, pool.stride(0), P=size, N=states, C=width, BN=power_of_two(states), BP=block, KIND=kind_of(x),
        SKIP=d is not None, MOST=table.most, num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    return output
