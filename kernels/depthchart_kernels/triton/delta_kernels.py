"""Kernels of the delta rules: scores and inverse chunk by chunk in parallel, then one loop over chunks a head.

Letters: C chunk width, K key size in blocks of BK = K rounded up, V value size in blocks of BV. ``tri`` and ``scores``
are [chunks, HV, C, C].
"""

from __future__ import annotations

import triton
import triton.language as tl

from depthchart_kernels.triton.common import dot, exp, inverse, load, store


@triton.jit
def head_prepare_kernel(
    q, k, g, beta, chunks, tri, scores, scale, H, HV, K,
    C: tl.constexpr, BK: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """One chunk and value head, one decay a head: Tri and A."""
    chunk, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    start, rows = tl.load(chunks + chunk * 4), tl.load(chunks + chunk * 4 + 1)
    i, kk = tl.arange(0, C), tl.arange(0, BK)
    valid = i < rows
    token = start + i
    qk_head = head // (HV // H)
    where = (token[:, None] * H + qk_head) * K + kk[None, :]
    mask = valid[:, None] & (kk < K)[None, :]
    kc, qc = load(k + where, mask), load(q + where, mask)
    gc = tl.load(g + token * HV + head, mask=valid, other=0.0).to(tl.float64)
    bc = load(beta + token * HV + head, valid).to(tl.float32)
    sums = tl.cumsum(gc, axis=0)
    left = (sums[:, None] - sums[None, :]).to(tl.float32)
    weights = exp(tl.minimum(left, 0.0))
    lower = tl.where(i[:, None] > i[None, :], dot(kc, tl.trans(kc), KIND) * weights * bc[:, None], 0.0)
    a = tl.where(i[:, None] >= i[None, :], dot(qc, tl.trans(kc), KIND) * weights * scale, 0.0)
    t = inverse(lower, C) * bc[None, :]
    out = ((chunk * HV + head) * C + i[:, None]) * C + i[None, :]
    store(tri + out, t, i[:, None] >= 0)
    store(scores + out, a, i[:, None] >= 0)


@triton.jit
def channel_scores_kernel(
    q, k, g, beta, chunks, lower, scores, scale, H, HV, K,
    C: tl.constexpr, BK: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """16 rows of one chunk and value head, one decay a channel: L (float32) and A.

    Sums of g always start at a border next to the rows or columns, so nothing cancels and no exponent is positive.
    """
    chunk, head, block = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    start, rows = tl.load(chunks + chunk * 4), tl.load(chunks + chunk * 4 + 1)
    i, kk = tl.arange(0, 16), tl.arange(0, BK)
    here = block * 16 + i
    qk_head = head // (HV // H)
    inside = kk < K
    mask = (here < rows)[:, None] & inside[None, :]
    token = start + here
    where = (token[:, None] * H + qk_head) * K + kk[None, :]
    kr, qr = load(k + where, mask).to(tl.float32), load(q + where, mask).to(tl.float32)
    gr = load(g + (token[:, None] * HV + head) * K + kk[None, :], mask).to(tl.float32)
    br = load(beta + token * HV + head, here < rows).to(tl.float32)
    out = ((chunk * HV + head) * C + here[:, None]) * C
    local = exp(tl.cumsum(gr, axis=0))
    kl, ql = kr * local, qr * local
    after = tl.zeros([BK], tl.float32)  # decay of the blocks between the columns and these rows
    for back in range(1, block + 1):
        first = (block - back) * 16
        there = first + i
        cmask = (there < rows)[:, None] & inside[None, :]
        ctoken = start + there
        kc = load(k + (ctoken[:, None] * H + qk_head) * K + kk[None, :], cmask).to(tl.float32)
        # decay after column j up to the block's end: the sum of the next rows' gates, backwards
        nmask = ((i < 15) & (there + 1 < rows))[:, None] & inside[None, :]
        gn = load(g + ((ctoken + 1)[:, None] * HV + head) * K + kk[None, :], nmask).to(tl.float32)
        rest = tl.cumsum(gn, axis=0, reverse=True) + after[None, :]
        kc = tl.trans(kc * exp(rest))
        column = out + there[None, :]
        store(lower + column, dot(kl, kc, KIND) * br[:, None], here[:, None] >= 0)
        store(scores + column, dot(ql, kc, KIND) * scale, here[:, None] >= 0)
        gb = load(g + (ctoken[:, None] * HV + head) * K + kk[None, :], cmask).to(tl.float32)
        after += tl.sum(gb, axis=0)
    left = tl.zeros([16, BK], tl.float32)  # decay from column j to each later row
    low = tl.zeros([16, 16], tl.float32)
    a = tl.zeros([16, 16], tl.float32)
    for step in range(16):
        j = 15 - step
        pick = (i == j)[:, None]
        weights = tl.where((i >= j)[:, None], exp(left), 0.0)
        row = tl.sum(tl.where(pick, kr, 0.0), axis=0)[None, :]
        column = tl.sum(weights * row * kr, axis=1)
        low = tl.where((i == j)[None, :] & (i > j)[:, None], column[:, None], low)
        column = tl.sum(weights * row * qr, axis=1)
        a = tl.where((i == j)[None, :], column[:, None], a)
        left = tl.where((i >= j)[:, None], left + tl.sum(tl.where(pick, gr, 0.0), axis=0)[None, :], 0.0)
    column = out + (block * 16 + i)[None, :]
    store(lower + column, low * br[:, None], here[:, None] >= 0)
    store(scores + column, a * scale, here[:, None] >= 0)


@triton.jit
def invert_kernel(lower, beta, chunks, tri, HV, C: tl.constexpr):
    """One chunk and value head: Tri of a stored L, whose upper part holds anything."""
    chunk, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    start, rows = tl.load(chunks + chunk * 4), tl.load(chunks + chunk * 4 + 1)
    i = tl.arange(0, C)
    bc = load(beta + (start + i) * HV + head, i < rows).to(tl.float32)
    out = ((chunk * HV + head) * C + i[:, None]) * C + i[None, :]
    low = tl.load(lower + out, mask=i[:, None] > i[None, :], other=0.0)
    store(tri + out, inverse(low, C) * bc[None, :], i[:, None] >= 0)


@triton.jit
def scan_kernel(
    q, k, v, g, tri, scores, output, pool, sequences, chunks, snapshots, scale, H, HV, K, V, slot_stride,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, KIND: tl.constexpr, CHANNEL: tl.constexpr,
    MOST: tl.constexpr,
):  # fmt: skip
    """One sequence, value head and block of value columns: the loop over chunks, the state in registers."""
    s, head, vb = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    length = tl.load(sequences + s * 5 + 1)
    if length == 0:
        return
    first_chunk = tl.load(sequences + s * 5 + 2)
    initial, final = tl.load(sequences + s * 5 + 3), tl.load(sequences + s * 5 + 4)
    i, kk, vv = tl.arange(0, C), tl.arange(0, BK), vb * BV + tl.arange(0, BV)
    inside, columns = kk < K, vv < V
    tile = (head * K + kk[:, None]) * V + vv[None, :]
    tile_mask = inside[:, None] & columns[None, :]
    qk_head = head // (HV // H)
    state = tl.zeros([BK, BV], tl.float32)
    if initial >= 0:
        state = load(pool + initial * slot_stride + tile, tile_mask).to(tl.float32)
    for n in range(0, (length + C - 1) // C):
        chunk = first_chunk + n
        start, rows = tl.load(chunks + chunk * 4), tl.load(chunks + chunk * 4 + 1)
        valid, token = i < rows, start + i
        mask = valid[:, None] & inside[None, :]
        where = (token[:, None] * H + qk_head) * K + kk[None, :]
        kc, qc = load(k + where, mask), load(q + where, mask)
        vmask = valid[:, None] & columns[None, :]
        vwhere = (token[:, None] * HV + head) * V + vv[None, :]
        vc = load(v + vwhere, vmask).to(tl.float32)
        square = ((chunk * HV + head) * C + i[:, None]) * C + i[None, :]
        seen = i[:, None] >= i[None, :]  # what lies above the diagonal was never written
        t, a = load(tri + square, seen), load(scores + square, seen)
        if CHANNEL:
            gwhere = (token[:, None] * HV + head) * K + kk[None, :]
            grow = exp(tl.cumsum(load(g + gwhere, mask).to(tl.float32), axis=0))
            rest = vc - dot(kc.to(tl.float32) * grow, state, KIND)
            read = dot(qc.to(tl.float32) * grow, state, KIND)
        else:
            sums = tl.cumsum(tl.load(g + token * HV + head, mask=valid, other=0.0).to(tl.float64), axis=0)
            grow = exp(sums.to(tl.float32))[:, None]
            rest = vc - grow * dot(kc, state, KIND)
            read = grow * dot(qc, state, KIND)
        u = dot(t, rest, KIND)
        store(output + vwhere, scale * read + dot(a, u, KIND), vmask)
        if MOST > 0:
            low, high = tl.load(chunks + chunk * 4 + 2), tl.load(chunks + chunk * 4 + 3)
            for j in tl.static_range(MOST):
                if low + j < high:
                    depth, slot = tl.load(snapshots + (low + j) * 2), tl.load(snapshots + (low + j) * 2 + 1)
                    if CHANNEL:
                        then = channel_advance(state, kc, u, g, token, i, kk, depth, inside, HV, head, K, KIND)
                    else:
                        then = head_advance(state, kc, u, sums, i, depth, KIND)
                    store(pool + slot * slot_stride + tile, then, tile_mask)
        if CHANNEL:
            state = channel_advance(state, kc, u, g, token, i, kk, rows, inside, HV, head, K, KIND)
        else:
            state = head_advance(state, kc, u, sums, i, rows, KIND)
    if final >= 0:
        store(pool + final * slot_stride + tile, state, tile_mask)


@triton.jit
def head_advance(state, kc, u, sums, i, depth, KIND: tl.constexpr):
    """The state after ``depth`` tokens of the chunk, one decay a head."""
    end = tl.sum(tl.where(i == depth - 1, sums, 0.0), axis=0)
    left = tl.minimum((end - sums).to(tl.float32), 0.0)
    weighted = tl.where((i < depth)[:, None], u * exp(left)[:, None], 0.0)
    return exp(end.to(tl.float32)) * state + dot(tl.trans(kc), weighted, KIND)


@triton.jit
def channel_advance(state, kc, u, g, token, i, kk, depth, inside, HV, head, K, KIND: tl.constexpr):
    """The state after ``depth`` tokens of the chunk, one decay a channel; each row sums the gates that follow it."""
    next_mask = (i + 1 < depth)[:, None] & inside[None, :]
    following = load(g + ((token + 1)[:, None] * HV + head) * K + kk[None, :], next_mask).to(tl.float32)
    rest = tl.cumsum(following, axis=0, reverse=True)
    mine = (i < depth)[:, None] & inside[None, :]
    total = tl.sum(load(g + (token[:, None] * HV + head) * K + kk[None, :], mine).to(tl.float32), axis=0)
    weighted = tl.where((i < depth)[:, None], kc.to(tl.float32) * exp(rest), 0.0)
    return exp(total)[:, None] * state + dot(tl.trans(weighted), u, KIND)
