"""Mamba-2's kernel: one loop over chunks a sequence, head and block of rows, the state in registers."""

from __future__ import annotations

import triton
import triton.language as tl

from depthchart_kernels.triton.common import dot, exp, load, store


@triton.jit
def ssd_kernel(
    x, dt, a, b, c, d, output, pool, sequences, chunks, snapshots, H, G, P, N, slot_stride,
    C: tl.constexpr, BN: tl.constexpr, BP: tl.constexpr, KIND: tl.constexpr, SKIP: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """The state is held transposed, [BN, BP], so that all products read it as it lies."""
    s, head, pb = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    length = tl.load(sequences + s * 5 + 1)
    if length == 0:
        return
    first_chunk = tl.load(sequences + s * 5 + 2)
    initial, final = tl.load(sequences + s * 5 + 3), tl.load(sequences + s * 5 + 4)
    i, nn, pp = tl.arange(0, C), tl.arange(0, BN), pb * BP + tl.arange(0, BP)
    inside, columns = nn < N, pp < P
    tile = (head * P + pp[None, :]) * N + nn[:, None]
    tile_mask = inside[:, None] & columns[None, :]
    group = head // (H // G)
    rate = tl.load(a + head).to(tl.float64)
    state = tl.zeros([BN, BP], tl.float32)
    if initial >= 0:
        state = load(pool + initial * slot_stride + tile, tile_mask).to(tl.float32)
    for n in range(0, (length + C - 1) // C):
        chunk = first_chunk + n
        start, rows = tl.load(chunks + chunk * 4), tl.load(chunks + chunk * 4 + 1)
        valid, token = i < rows, start + i
        mask = valid[:, None] & inside[None, :]
        where = (token[:, None] * G + group) * N + nn[None, :]
        bc, cc = load(b + where, mask), load(c + where, mask)
        xmask = valid[:, None] & columns[None, :]
        xwhere = (token[:, None] * H + head) * P + pp[None, :]
        xc = load(x + xwhere, xmask).to(tl.float32)
        step = load(dt + token * H + head, valid).to(tl.float32)
        sums = tl.cumsum(step.to(tl.float64) * rate, axis=0)
        left = tl.minimum((sums[:, None] - sums[None, :]).to(tl.float32), 0.0)
        scores = tl.where(i[:, None] >= i[None, :], dot(cc, tl.trans(bc), KIND) * exp(left), 0.0)
        written = xc * step[:, None]
        y = exp(sums.to(tl.float32))[:, None] * dot(cc, state, KIND) + dot(scores, written, KIND)
        if SKIP:
            y += tl.load(d + head).to(tl.float32) * xc
        store(output + xwhere, y, xmask)
        if MOST > 0:
            low, high = tl.load(chunks + chunk * 4 + 2), tl.load(chunks + chunk * 4 + 3)
            for j in tl.static_range(MOST):
                if low + j < high:
                    depth, slot = tl.load(snapshots + (low + j) * 2), tl.load(snapshots + (low + j) * 2 + 1)
                    then = ssd_advance(state, bc, written, sums, i, depth, KIND)
                    store(pool + slot * slot_stride + tile, then, tile_mask)
        state = ssd_advance(state, bc, written, sums, i, rows, KIND)
    if final >= 0:
        store(pool + final * slot_stride + tile, state, tile_mask)


@triton.jit
def ssd_advance(state, bc, written, sums, i, depth, KIND: tl.constexpr):
    """The state after ``depth`` tokens of the chunk."""
    end = tl.sum(tl.where(i == depth - 1, sums, 0.0), axis=0)
    left = tl.minimum((end - sums).to(tl.float32), 0.0)
    weighted = tl.where((i < depth)[:, None], written * exp(left)[:, None], 0.0)
    return exp(end.to(tl.float32)) * state + dot(tl.trans(bc), weighted, KIND)
