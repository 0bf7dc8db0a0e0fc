"""The causal convolution as a few shifted products over the whole packed batch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import silu

from depthchart_kernels.batch import Batch

__all__ = ["conv"]


def conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, batch: Batch, pool: Tensor | None
) -> Tensor:
    """Convolution over a packed batch. See `depthchart_kernels.causal_conv1d`.

    Every sequence is laid out behind its window: its token t becomes row t + (W − 1)·(s + 1) of a padded batch.
    """
    kind = torch.float64 if x.dtype == torch.float64 else torch.float32
    width, channels = weight.shape[1], weight.shape[0]
    reach = width - 1
    starts = torch.from_numpy(batch.cu_seqlens[:-1] + reach * np.arange(batch.sequences)).to(x.device)
    owner = torch.from_numpy(np.repeat(np.arange(batch.sequences), batch.lengths)).to(x.device)
    rows = torch.arange(batch.tokens, device=x.device) + reach * (owner + 1)
    padded = x.new_zeros([batch.tokens + reach * batch.sequences, channels], dtype=kind)
    padded[rows] = x.to(kind)
    offsets = torch.arange(reach, device=x.device)
    held = np.flatnonzero(batch.initial_slots >= 0)
    if pool is not None and len(held):
        windows = pool[torch.from_numpy(batch.initial_slots[held]).to(x.device)]
        where = starts[torch.from_numpy(held).to(x.device)][:, None] + offsets
        padded[where] = windows.transpose(1, 2).to(kind)
    total = torch.zeros_like(x, dtype=kind) if bias is None else bias.to(kind).expand(x.shape).clone()
    for j in range(width):
        total.addcmul_(padded[rows - (reach - j)], weight[:, j].to(kind))
    _write(padded, starts, offsets, batch, pool)
    return (silu(total) if activation == "silu" else total).to(x.dtype)


def _write(padded: Tensor, starts: Tensor, offsets: Tensor, batch: Batch, pool: Tensor | None) -> None:
    """The window after depth d of a sequence is the W − 1 padded rows from its start + d."""
    sequences, depths, slots = (torch.from_numpy(part).to(padded.device) for part in batch.writes)
    if pool is not None and len(slots):
        windows = padded[(starts[sequences] + depths)[:, None] + offsets]
        pool[slots] = windows.transpose(1, 2).to(pool.dtype)
