"""The recurrences, one token at a time in float64.

Letters: T tokens, H query/key heads, HV value heads (HV a multiple of H), K key size, V value size; for SSD H heads
of size P, N state size, G groups.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from depthchart_kernels.batch import Batch

__all__ = ["delta", "delta_token", "ssd", "ssd_token"]

Token = Callable[[Tensor, int], tuple[Tensor, Tensor]]


def delta_token(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """One token of the (gated or Kimi) delta rule: the new state and the output.

    Shapes, with any leading dimensions: state [HV, K, V]; q, k [HV, K]; v [HV, V]; g [HV, 1] or [HV, K]; beta [HV].
    """
    state = g.exp()[..., None] * state
    change = beta[..., None] * (v - (k[..., None] * state).sum(-2))
    state = state + k[..., None] * change[..., None, :]
    return state, scale * (q[..., None] * state).sum(-2)


def ssd_token(
    state: Tensor, x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor | None
) -> tuple[Tensor, Tensor]:
    """One token of Mamba-2: the new state and the output.

    Shapes, with any leading dimensions: state [H, P, N]; x [H, P]; dt [H]; a, d [H]; b, c [H, N].
    """
    state = (dt * a).exp()[..., None, None] * state + (dt[..., None] * x)[..., None] * b[..., None, :]
    y = (state * c[..., None, :]).sum(-1)
    return state, y if d is None else y + d[..., None] * x


def delta(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, batch: Batch, pool: Tensor | None, scale: float
) -> Tensor:
    """Scan of the delta rule; g is [T, HV] or [T, HV, K]. See `depthchart_kernels.gated_delta`."""
    repeat = v.shape[1] // q.shape[1]
    q64, k64 = (x.double().repeat_interleave(repeat, dim=1) for x in (q, k))
    v64, g64, beta64 = v.double(), g.double(), beta.double()
    if g64.ndim == 2:
        g64 = g64[..., None]

    def token(state: Tensor, t: int) -> tuple[Tensor, Tensor]:
        return delta_token(state, q64[t], k64[t], v64[t], g64[t], beta64[t], scale)

    return _scan(token, v, [v.shape[1], k.shape[2], v.shape[2]], batch, pool)


def ssd(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor | None,
    batch: Batch,
    pool: Tensor | None,
) -> Tensor:
    """Scan of Mamba-2. See `depthchart_kernels.ssd`."""
    repeat = x.shape[1] // b.shape[1]
    b64, c64 = (z.double().repeat_interleave(repeat, dim=1) for z in (b, c))
    x64, dt64, a64 = x.double(), dt.double(), a.double()
    d64 = None if d is None else d.double()

    def token(state: Tensor, t: int) -> tuple[Tensor, Tensor]:
        return ssd_token(state, x64[t], dt64[t], a64, b64[t], c64[t], d64)

    return _scan(token, x, [x.shape[1], x.shape[2], b.shape[2]], batch, pool)


def _scan(token: Token, like: Tensor, shape: list[int], batch: Batch, pool: Tensor | None) -> Tensor:
    """Run ``token`` over every sequence; the pool is read completely before anything is written to it."""
    output = torch.empty_like(like)
    written: list[tuple[int, Tensor]] = []
    for s in range(batch.sequences):
        slot = int(batch.initial_slots[s])
        state = like.new_zeros(shape, dtype=torch.float64)
        if slot >= 0 and pool is not None:
            state = pool[slot].double()
        wanted = _wanted(batch, s)
        start, stop = int(batch.cu_seqlens[s]), int(batch.cu_seqlens[s + 1])
        written += [(slot, state) for slot in wanted.get(0, [])]
        for depth, t in enumerate(range(start, stop), start=1):
            state, row = token(state, t)
            output[t] = row.to(output.dtype)
            written += [(slot, state) for slot in wanted.get(depth, [])]
    if pool is not None:
        for slot, state in written:
            pool[slot] = state.to(pool.dtype)
    return output


def _wanted(batch: Batch, s: int) -> dict[int, list[int]]:
    """Depth -> slots that want the state of sequence ``s`` there, its final slot included."""
    wanted: dict[int, list[int]] = {}
    for i in range(int(batch.snapshot_starts[s]), int(batch.snapshot_starts[s + 1])):
        wanted.setdefault(int(batch.snapshot_depths[i]), []).append(int(batch.snapshot_slots[i]))
    if batch.final_slots[s] >= 0:
        wanted.setdefault(int(batch.lengths[s]), []).append(int(batch.final_slots[s]))
    return wanted
