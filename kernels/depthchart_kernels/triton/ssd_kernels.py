"""Mamba-2's kernel: one loop over chunks a sequence, head and block of rows, the state in registers."""

from __future__ import annotations

import triton
import triton.language as tl

from depthchart_kernels.triton.common import differences, dot, exp, load, store
from depthchart_kernels.triton.delta_kernels import either


@triton.jit
def ssd_kernel(
    x, dt, a, b, c, d, output, pool, sequences, chunks, snapshots, H, G, slot_stride,
    P: tl.constexpr, N: tl.constexpr, C: tl.constexpr, BN: tl.constexpr, BP: tl.constexpr,
    KIND: tl.constexpr, SKIP: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """The state is held transposed, [BN, BP], so that all products read it as it lies."""
    s, head, pb = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    length = tl.load(sequences + s * 5 + 1)
    if length == 0:
        return
    begin, first_chunk = tl.load(sequences + s * 5), tl.load(sequences + s * 5 + 2)
    initial, final = tl.load(sequences + s * 5 + 3), tl.load(sequences + s * 5 + 4)
    i, nn, pp = tl.arange(0, C), tl.arange(0, BN), pb * BP + tl.arange(0, BP)
    inside, columns = nn < N, pp < P
    # tensors of offsets stay in 32 bits and the 64-bit part in scalars: wide offsets alone would fill the registers
    tile = pp[None, :] * N + nn[:, None]
    head_pool = pool + head.to(tl.int64) * P * N
    n_rows, p_rows = i[:, None] * (G * N) + nn[None, :], i[:, None] * (H * P) + pp[None, :]
    tile_mask = either(inside[:, None], N == BN) & either(columns[None, :], P % BP == 0)
    group = head // (H // G)
    rate = tl.load(a + head).to(tl.float64)
    state = tl.zeros([BN, BP], tl.float32)
    if initial >= 0:
        state = load(head_pool + initial * slot_stride + tile, tile_mask).to(tl.float32)
    for n in range(0, (length + C - 1) // C):
        chunk = first_chunk + n
        start, rows = (
            begin + n * C,
            tl.minimum(length - n * C, C),
        )  # not from the table: loads must not wait for it
        valid = i < rows
        mask = valid[:, None] & either(inside[None, :], N == BN)
        xmask = valid[:, None] & either(columns[None, :], P % BP == 0)
        n_base, p_base = (start * G + group) * N, (start * H + head) * P
        bc, cc = load(b + n_base + n_rows, mask), load(c + n_base + n_rows, mask)
        xc = load(x + p_base + p_rows, xmask).to(tl.float32)
        step = load(dt + start * H + head + i * H, valid).to(tl.float32)
        sums = tl.cumsum(step.to(tl.float64) * rate, axis=0)
        left = tl.minimum(differences(sums), 0.0)
        scores = tl.where(i[:, None] >= i[None, :], dot(cc, tl.trans(bc), KIND) * exp(left), 0.0)
        written = xc * step[:, None]
        y = exp(sums.to(tl.float32))[:, None] * dot(cc, state, KIND) + dot(scores, written, KIND)
        if SKIP:
            y += tl.load(d + head).to(tl.float32) * xc
        store(output + p_base + p_rows, y, xmask)
        if MOST > 0:
            low, high = tl.load(chunks + chunk * 4 + 2), tl.load(chunks + chunk * 4 + 3)
            for j in tl.static_range(MOST):
                if low + j < high:
                    depth, slot = tl.load(snapshots + (low + j) * 2), tl.load(snapshots + (low + j) * 2 + 1)
                    then = ssd_advance(state, bc, written, sums, i, depth, KIND)
                    store(head_pool + slot * slot_stride + tile, then, tile_mask)
        state = ssd_advance(state, bc, written, sums, i, rows, KIND)
    if final >= 0:
        store(head_pool + final * slot_stride + tile, state, tile_mask)


@triton.jit
def ssd_advance(state, bc, written, sums, i, depth, KIND: tl.constexpr):
    """The state after ``depth`` tokens of the chunk."""
    end = tl.sum(tl.where(i == depth - 1, sums, 0.0), axis=0)
    left = tl.minimum((end - sums).to(tl.float32), 0.0)
    weighted = tl.where((i < depth)[:, None], written * exp(left)[:, None], 0.0)
    return exp(end.to(tl.float32)) * state + dot(tl.trans(bc), weighted, KIND)
