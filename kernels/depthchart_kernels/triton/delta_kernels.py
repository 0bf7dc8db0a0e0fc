"""Kernels of the delta rules: scores and inverse chunk by chunk in parallel, then one loop over chunks a head.

Letters: C chunk width, K key size in blocks of BK = K rounded up, V value size in blocks of BV. ``tri`` and ``scores``
are [chunks, HV, C, C].
"""

from __future__ import annotations

import triton
import triton.language as tl

from depthchart_kernels.triton.common import differences, dot, exp, load, store


@triton.jit
def head_scores_kernel(
    q, k, g, beta, chunks, lower, scores, scale, H, HV, K,
    C: tl.constexpr, BK: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """One chunk and value head, one decay a head: L (float32) and A."""
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
    weights = exp(tl.minimum(differences(sums), 0.0))
    out = ((chunk * HV + head) * C + i[:, None]) * C + i[None, :]
    store(lower + out, dot(kc, tl.trans(kc), KIND) * weights * bc[:, None], i[:, None] > i[None, :])
    scored = tl.where(i[:, None] >= i[None, :], dot(qc, tl.trans(kc), KIND) * weights * scale, 0.0)
    store(scores + out, scored, i[:, None] >= 0)


@triton.jit
def channel_scores_kernel(
    q, k, g, beta, chunks, lower, scores, read_k, read_q, write_k, decay, scale, H, HV, K,
    C: tl.constexpr, BK: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """16 rows of one chunk and value head, one decay a channel: L (float32), A, and what the loop takes.

    That is k and q weighted with the decay up to their row, k with the decay after it up to the chunk's end (all
    [T, HV, K]), and the decay of the whole chunk [chunks, HV, K] in float32.

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
    rest = tl.zeros([BK], tl.float32)  # decay of the blocks after these rows
    for later in range(block + 1, C // 16):
        ltoken = start + later * 16 + i
        lmask = (later * 16 + i < rows)[:, None] & inside[None, :]
        rest += tl.sum(
            load(g + (ltoken[:, None] * HV + head) * K + kk[None, :], lmask).to(tl.float32), axis=0
        )
    fmask = ((i < 15) & (here + 1 < rows))[:, None] & inside[None, :]
    following = load(g + ((token + 1)[:, None] * HV + head) * K + kk[None, :], fmask).to(tl.float32)
    mine = (token[:, None] * HV + head) * K + kk[None, :]
    store(read_k + mine, kl * exp(after)[None, :], mask)
    store(read_q + mine, ql * exp(after)[None, :], mask)
    store(write_k + mine, kr * exp(tl.cumsum(following, axis=0, reverse=True) + rest[None, :]), mask)
    if block == C // 16 - 1:
        store(decay + (chunk * HV + head) * K + kk, exp(after + tl.sum(gr, axis=0)), inside)


@triton.jit
def invert_kernel(lower, beta, chunks, tri, HV, C: tl.constexpr):
    """One chunk and value head: Tri = (I + L)^-1 diag(beta), row by row; L is read from memory where it is needed.

    Exact to float32's rounding whatever the keys are; powers of L would not be.
    """
    chunk, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    start, rows = tl.load(chunks + chunk * 4), tl.load(chunks + chunk * 4 + 1)
    i = tl.arange(0, C)
    bc = load(beta + (start + i) * HV + head, i < rows).to(tl.float32)
    square = (chunk * HV + head) * C * C
    t = tl.where(i[:, None] == i[None, :], 1.0, 0.0)
    for r in range(1, rows.to(tl.int32)):
        row = tl.load(lower + square + r * C + i, mask=i < r, other=0.0)
        change = tl.sum(row[:, None] * t, axis=0)
        t = tl.where((i == r)[:, None], t - change[None, :], t)
    store(tri + square + i[:, None] * C + i[None, :], t * bc[None, :], i[:, None] >= 0)


@triton.jit
def scan_kernel(
    q, k, v, g, write_k, decay, plain_k, tri, scores, output, pool, sequences, chunks, snapshots,
    scale, H, HV, slot_stride,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, KIND: tl.constexpr,
    CHANNEL: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """One sequence, value head and block of value columns: the loop over chunks, the state in registers.

    With one decay a channel q and k are those that `channel_scores_kernel` weighted, else the plain ones of the
    query/key head; ``plain_k`` is always that.
    """
    s, head, vb = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    length = tl.load(sequences + s * 5 + 1)
    if length == 0:
        return
    begin, first_chunk = tl.load(sequences + s * 5), tl.load(sequences + s * 5 + 2)
    initial, final = tl.load(sequences + s * 5 + 3), tl.load(sequences + s * 5 + 4)
    i, kk, vv = tl.arange(0, C), tl.arange(0, BK), vb * BV + tl.arange(0, BV)
    inside, columns = kk < K, vv < V
    # tensors of offsets stay in 32 bits and the 64-bit part in scalars: wide offsets alone would fill the registers
    tile = kk[:, None] * V + vv[None, :]
    tile_mask = either(inside[:, None], K == BK) & either(columns[None, :], V % BV == 0)
    head_pool = pool + head.to(tl.int64) * K * V
    qk_head = head // (HV // H)
    k_rows, g_rows = i[:, None] * (H * K) + kk[None, :], i[:, None] * (HV * K) + kk[None, :]
    qk_rows = g_rows if CHANNEL else k_rows
    v_rows, square = i[:, None] * (HV * V) + vv[None, :], i[:, None] * C + i[None, :]
    everywhere = tl.full([1, 1], True, tl.int1)
    state = tl.zeros([BK, BV], tl.float32)
    if initial >= 0:
        state = load(head_pool + initial * slot_stride + tile, tile_mask).to(tl.float32)
    for n in range(0, (length + C - 1) // C):
        chunk = first_chunk + n
        start, rows = (
            begin + n * C,
            tl.minimum(length - n * C, C),
        )  # not from the table: loads must not wait for it
        valid = i < rows
        mask = valid[:, None] & either(inside[None, :], K == BK)
        vmask = valid[:, None] & either(columns[None, :], V % BV == 0)
        k_base, v_base = (start * H + qk_head) * K, (start * HV + head) * V
        g_base = (start * HV + head) * K
        qk_base = g_base if CHANNEL else k_base
        kc, qc = load(k + qk_base + qk_rows, mask), load(q + qk_base + qk_rows, mask)
        vc = load(v + v_base + v_rows, vmask).to(tl.float32)
        square_base = (chunk * HV + head) * C * C
        t, a = load(tri + square_base + square, everywhere), load(scores + square_base + square, everywhere)
        if CHANNEL:
            rest = vc - dot(kc, state, KIND)
            read = dot(qc, state, KIND)
        else:
            gates = tl.load(g + start * HV + head + i * HV, mask=valid, other=0.0)
            sums = tl.cumsum(gates.to(tl.float64), axis=0)
            grow = exp(sums.to(tl.float32))[:, None]
            rest = vc - grow * dot(kc, state, KIND)
            read = grow * dot(qc, state, KIND)
        u = dot(t, rest, KIND)
        store(output + v_base + v_rows, scale * read + dot(a, u, KIND), vmask)
        if MOST > 0:
            low, high = tl.load(chunks + chunk * 4 + 2), tl.load(chunks + chunk * 4 + 3)
            for j in tl.static_range(MOST):
                if low + j < high:
                    depth, slot = tl.load(snapshots + (low + j) * 2), tl.load(snapshots + (low + j) * 2 + 1)
                    if CHANNEL:
                        then = channel_advance(
                            state,
                            plain_k + k_base,
                            k_rows,
                            u,
                            g + g_base,
                            g_rows,
                            i,
                            depth,
                            either(inside[None, :], K == BK),
                            HV * K,
                            KIND,
                        )
                    else:
                        then = head_advance(state, kc, u, sums, i, depth, KIND)
                    store(head_pool + slot * slot_stride + tile, then, tile_mask)
        if CHANNEL:
            whole = load(decay + (chunk * HV + head) * K + kk, inside)
            kw = load(write_k + g_base + g_rows, mask)
            state = whole[:, None] * state + dot(tl.trans(kw), u, KIND)
        else:
            state = head_advance(state, kc, u, sums, i, rows, KIND)
    if final >= 0:
        store(head_pool + final * slot_stride + tile, state, tile_mask)


@triton.jit
def either(mask, ALWAYS: tl.constexpr):
    """The mask, or one that costs no registers where it would be true everywhere."""
    if ALWAYS:
        return tl.full([1, 1], True, tl.int1)
    else:
        return mask


@triton.jit
def head_advance(state, kc, u, sums, i, depth, KIND: tl.constexpr):
    """The state after ``depth`` tokens of the chunk, one decay a head."""
    end = tl.sum(tl.where(i == depth - 1, sums, 0.0), axis=0)
    left = tl.minimum((end - sums).to(tl.float32), 0.0)
    weighted = tl.where((i < depth)[:, None], u * exp(left)[:, None], 0.0)
    return exp(end.to(tl.float32)) * state + dot(tl.trans(kc), weighted, KIND)


@triton.jit
def channel_advance(state, k_at, k_rows, u, g_at, g_rows, i, depth, inside, step, KIND: tl.constexpr):
    """The state after ``depth`` tokens of the chunk, one decay a channel; each row sums the gates that follow it."""
    mine = (i < depth)[:, None] & inside
    following = load(g_at + step + g_rows, (i + 1 < depth)[:, None] & inside).to(tl.float32)
    rest = exp(tl.cumsum(following, axis=0, reverse=True))
    total = tl.sum(load(g_at + g_rows, mine).to(tl.float32), axis=0)
    weighted = load(k_at + k_rows, mine).to(tl.float32) * rest
    return exp(total)[:, None] * state + dot(tl.trans(weighted), u, KIND)
