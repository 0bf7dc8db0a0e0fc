"""Decode steps: one program a row, head and block of the state; the new state goes to one slot or two."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from depthchart_kernels.steps import StepSlots
from depthchart_kernels.triton.common import (
    apply_silu,
    check_device,
    check_size,
    contiguous,
    exp,
    load,
    number,
    power_of_two,
    slots_of,
    store,
)

__all__ = ["CHANNELS", "STATES", "conv_step", "delta_step", "ssd_step"]

STATES, CHANNELS = 32, 128  # columns of a state, channels of a window that a program holds


@triton.jit
def keep(at, value, mask, slot, track, slot_stride):
    """Write what belongs to ``slot`` there, and to the tracked slot where there is one."""
    store(at, value, mask)
    if track >= 0:
        store(at + (track - slot) * slot_stride, value, mask)


@triton.jit
def row_of(slots):
    """The program's row, its slot (−1: padding, whose output is zeros) and the slot of the tracked copy (−1: none)."""
    row = tl.program_id(0).to(tl.int64)
    return row, tl.load(slots + row * 2), tl.load(slots + row * 2 + 1)


@triton.jit
def delta_step_kernel(
    q, k, v, g, beta, output, pool, slots, scale, H, HV, K, V, slot_stride,
    BK: tl.constexpr, BV: tl.constexpr, CHANNEL: tl.constexpr,
):  # fmt: skip
    """One row, value head and block of value columns."""
    row, slot, track = row_of(slots)
    head, vb = tl.program_id(1), tl.program_id(2)
    kk, vv = tl.arange(0, BK), vb * BV + tl.arange(0, BV)
    inside, columns = kk < K, vv < V
    where = (row * HV + head) * V + vv
    if slot < 0:
        store(output + where, tl.zeros([BV], tl.float32), columns)
        return
    tile = slot * slot_stride + (head * K + kk[:, None]) * V + vv[None, :]
    mask = inside[:, None] & columns[None, :]
    qk = (row * H + head // (HV // H)) * K + kk
    qr, kr = load(q + qk, inside).to(tl.float32), load(k + qk, inside).to(tl.float32)
    vr = load(v + where, columns).to(tl.float32)
    state = load(pool + tile, mask).to(tl.float32)
    if CHANNEL:
        state = exp(load(g + (row * HV + head) * K + kk, inside).to(tl.float32))[:, None] * state
    else:
        state = exp(number(g + row * HV + head)) * state
    change = number(beta + row * HV + head) * (vr - tl.sum(kr[:, None] * state, axis=0))
    state = state + kr[:, None] * change[None, :]
    store(output + where, scale * tl.sum(qr[:, None] * state, axis=0), columns)
    keep(pool + tile, state, mask, slot, track, slot_stride)


@triton.jit
def ssd_step_kernel(
    x, dt, a, b, c, d, output, pool, slots, H, G, P, N, slot_stride,
    BP: tl.constexpr, BN: tl.constexpr, SKIP: tl.constexpr,
):  # fmt: skip
    """One row, head and block of head rows."""
    row, slot, track = row_of(slots)
    head, pb = tl.program_id(1), tl.program_id(2)
    nn, pp = tl.arange(0, BN), pb * BP + tl.arange(0, BP)
    inside, rows = nn < N, pp < P
    where = (row * H + head) * P + pp
    if slot < 0:
        store(output + where, tl.zeros([BP], tl.float32), rows)
        return
    tile = slot * slot_stride + (head * P + pp[:, None]) * N + nn[None, :]
    mask = rows[:, None] & inside[None, :]
    group = (row * G + head // (H // G)) * N + nn
    br, cr = load(b + group, inside).to(tl.float32), load(c + group, inside).to(tl.float32)
    xr = load(x + where, rows).to(tl.float32)
    step = number(dt + row * H + head)
    state = exp(step * number(a + head))[:, None] * load(pool + tile, mask).to(tl.float32)
    state = state + (step * xr)[:, None] * br[None, :]
    y = tl.sum(state * cr[None, :], axis=1)
    if SKIP:
        y += number(d + head) * xr
    store(output + where, y, rows)
    keep(pool + tile, state, mask, slot, track, slot_stride)


@triton.jit
def conv_step_kernel(
    x, weight, bias, output, pool, slots, D, slot_stride,
    W: tl.constexpr, BD: tl.constexpr, BIAS: tl.constexpr, SILU: tl.constexpr,
):  # fmt: skip
    """One row and block of channels; the window is shifted by one."""
    row, slot, track = row_of(slots)
    channel = tl.program_id(1) * BD + tl.arange(0, BD)
    mask = channel < D
    if slot < 0:
        store(output + row * D + channel, tl.zeros([BD], tl.float32), mask)
        return
    total = tl.zeros([BD], tl.float32)
    if BIAS:
        total += load(bias + channel, mask).to(tl.float32)
    held = pool + slot * slot_stride + channel * (W - 1)
    for j in tl.static_range(W):
        value = load(x + row * D + channel, mask) if j == W - 1 else load(held + j, mask)
        value = value.to(tl.float32)
        total += value * load(weight + channel * W + j, mask).to(tl.float32)
        if j > 0:
            keep(held + j - 1, value, mask, slot, track, slot_stride)
    store(output + row * D + channel, apply_silu(total, SILU), mask)


def delta_step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, pool: Tensor, plan: StepSlots, scale: float
) -> Tensor:
    """See `depthchart_kernels.gated_delta_step`."""
    check_device(q, k, v, g, beta, pool)
    check_size("key size", q.shape[2], 256)
    q, k, v, g, beta = contiguous(q, k, v, g, beta)
    output, pool = torch.empty_like(v), slots_of(pool, v)
    (rows, heads, key_dim), (value_heads, value_dim) = q.shape, v.shape[1:]
    if rows:
        delta_step_kernel[(rows, value_heads, -(-value_dim // STATES))](
            q, k, v, g, beta, output, pool, _slots(plan, q), scale, heads, value_heads, key_dim, value_dim,
            pool.stride(0), BK=power_of_two(key_dim), BV=STATES, CHANNEL=g.ndim == 3,
        )  # fmt: skip
    return output


def ssd_step(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor | None, pool: Tensor, plan: StepSlots
) -> Tensor:
    """See `depthchart_kernels.ssd_step`."""
    check_device(x, dt, a, b, c, d, pool)
    check_size("state size", b.shape[2], 256)
    x, dt, a, b, c = contiguous(x, dt, a, b, c)
    output, pool = torch.empty_like(x), slots_of(pool, x)
    (rows, heads, size), (groups, states) = x.shape, b.shape[1:]
    if rows:
        ssd_step_kernel[(rows, heads, -(-size // STATES))](
            x, dt, a, b, c, a if d is None else d, output, pool, _slots(plan, x), heads, groups, size, states,
            pool.stride(0), BP=STATES, BN=power_of_two(states), SKIP=d is not None,
        )  # fmt: skip
    return output


def conv_step(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, pool: Tensor, plan: StepSlots
) -> Tensor:
    """See `depthchart_kernels.causal_conv1d_step`."""
    check_device(x, weight, bias, pool)
    x, weight = contiguous(x, weight)
    output, pool = torch.empty_like(x), slots_of(pool, x)
    rows, channels = x.shape
    if rows:
        conv_step_kernel[(rows, -(-channels // CHANNELS))](
            x, weight, weight if bias is None else bias, output, pool, _slots(plan, x), channels, pool.stride(0),
            W=weight.shape[1], BD=CHANNELS, BIAS=bias is not None, SILU=activation == "silu",
        )  # fmt: skip
    return output


def _slots(plan: StepSlots, like: Tensor) -> Tensor:
    return torch.stack([torch.from_numpy(plan.slots), torch.from_numpy(plan.track_slots)], dim=1).to(
        like.device
    )
