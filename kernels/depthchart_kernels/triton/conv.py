"""The causal convolution over a packed batch, and the windows that it leaves."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from depthchart_kernels.batch import Batch
from depthchart_kernels.triton.common import apply_silu, check_device, contiguous, load, slots_of, store
from depthchart_kernels.triton.plan import tables

__all__ = ["CHANNELS", "TOKENS", "conv"]

TOKENS, CHANNELS = 64, 64  # of one program


@triton.jit
def conv_kernel(
    x, weight, bias, output, pool, chunks, sequences, owners, D, slot_stride,
    W: tl.constexpr, C: tl.constexpr, BD: tl.constexpr, BIAS: tl.constexpr, SILU: tl.constexpr,
):  # fmt: skip
    """One chunk of tokens and block of channels."""
    chunk, channel = tl.program_id(0).to(tl.int64), tl.program_id(1) * BD + tl.arange(0, BD)
    start, rows = tl.load(chunks + chunk * 4), tl.load(chunks + chunk * 4 + 1)
    s = tl.load(owners + chunk)
    begin, slot = tl.load(sequences + s * 5), tl.load(sequences + s * 5 + 3)
    i = tl.arange(0, C)
    inside, valid = channel < D, i < rows
    token = start + i
    total = tl.zeros([C, BD], tl.float32)
    if BIAS:
        total += load(bias + channel, inside).to(tl.float32)[None, :]
    for j in tl.static_range(W):
        place = token - (W - 1) + j
        old = place < begin
        value = load(x + place[:, None] * D + channel[None, :], (valid & ~old)[:, None] & inside[None, :]).to(
            tl.float32
        )
        if slot >= 0:
            held = place - begin + (W - 1)  # column of the window
            where = slot * slot_stride + channel[None, :] * (W - 1) + held[:, None]
            value += load(pool + where, (valid & old)[:, None] & inside[None, :]).to(tl.float32)
        total += value * load(weight + channel * W + j, inside).to(tl.float32)[None, :]
    total = apply_silu(total, SILU)
    store(output + token[:, None] * D + channel[None, :], total, valid[:, None] & inside[None, :])


@triton.jit
def window_kernel(x, pool, writes, D, slot_stride, W: tl.constexpr, BD: tl.constexpr):
    """One wanted window and block of channels; everything is read before anything is written."""
    i, channel = tl.program_id(0).to(tl.int64), tl.program_id(1) * BD + tl.arange(0, BD)
    begin, depth = tl.load(writes + i * 4), tl.load(writes + i * 4 + 1)
    source, slot = tl.load(writes + i * 4 + 2), tl.load(writes + i * 4 + 3)
    column = tl.arange(0, triton.next_power_of_2(W))
    mask = (channel < D)[:, None] & (column < W - 1)[None, :]
    place = (
        depth - (W - 1) + column
    )  # counted from the sequence's first token; negative lies in the old window
    new = mask & (place >= 0)[None, :]
    value = load(x + (begin + place)[None, :] * D + channel[:, None], new).to(tl.float32)
    if source >= 0:
        held = source * slot_stride + channel[:, None] * (W - 1) + (place + W - 1)[None, :]
        value += load(pool + held, mask & (place < 0)[None, :]).to(tl.float32)
    store(pool + slot * slot_stride + channel[:, None] * (W - 1) + column[None, :], value, mask)


def conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, batch: Batch, pool: Tensor | None
) -> Tensor:
    """Convolution over a packed batch. See `depthchart_kernels.causal_conv1d`."""
    check_device(x, weight, bias, pool)
    x, weight = contiguous(x, weight)
    output, pool = torch.empty_like(x), slots_of(pool, x)
    table = tables(batch, TOKENS, x.device)
    width, channels = weight.shape[1], x.shape[1]
    blocks = -(-channels // CHANNELS)
    if table.chunk_count:
        owners = torch.from_numpy(np.repeat(np.arange(batch.sequences), -(-batch.lengths // TOKENS))).to(
            x.device
        )
        conv_kernel[(table.chunk_count, blocks)](
            x, weight, weight if bias is None else bias, output, pool, table.chunks, table.sequences, owners,
            channels, pool.stride(0), W=width, C=TOKENS, BD=CHANNELS, BIAS=bias is not None, SILU=activation == "silu",
        )  # fmt: skip
    sequences, depths, slots = batch.writes
    initial = batch.initial_slots[sequences]
    # a sequence's own initial slot is overwritten last: other writes of that sequence may still read it
    order = np.argsort(initial == slots, kind="stable")
    listed = np.column_stack([batch.cu_seqlens[sequences], depths, initial, slots])[order]
    last = int((initial == slots).sum())
    for part in (listed[: len(listed) - last], listed[len(listed) - last :]):
        if len(part):
            writes = torch.from_numpy(np.ascontiguousarray(part)).to(x.device)
            window_kernel[(len(part), blocks)](
                x, pool, writes, channels, pool.stride(0), W=width, BD=CHANNELS
            )
    return output
