"""Kernels of the delta rules that work chunk by chunk in parallel: scores and the triangular inverse.

Letters: C chunk width, B = min(C, 64) rows of a block, BK = K rounded up. ``lower`` (L, float32), ``tri`` and
``scores`` are [chunks, HV, C, C]; of the latter two only blocks [B, B] on and below the diagonal are written.
"""

from __future__ import annotations

import triton
import triton.language as tl

from depthchart_kernels.triton.common import differences, dot, exp, load, store


@triton.jit
def head_scores_kernel(
    q, k, g, beta, chunks, lower, scores, scale, H, HV, K,
    C: tl.constexpr, B: tl.constexpr, BK: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """B rows of one chunk and value head, one decay a head: L and A, block by block up to the diagonal."""
    chunk, head, block = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    start, rows = tl.load(chunks + chunk * 4), tl.load(chunks + chunk * 4 + 1)
    i, kk = tl.arange(0, B), tl.arange(0, BK)
    here = block * B + i
    qk_head = head // (HV // H)
    inside = (kk < K)[None, :]
    token = start + here
    where, valid = (token[:, None] * H + qk_head) * K + kk[None, :], here < rows
    kr, qr = load(k + where, valid[:, None] & inside), load(q + where, valid[:, None] & inside)
    gates = tl.load(g + token * HV + head, mask=valid, other=0.0).to(tl.float64)
    strength = load(beta + token * HV + head, valid).to(tl.float32)[:, None]
    sums = tl.cumsum(gates, axis=0)  # from the start of these rows' block
    out = ((chunk * HV + head) * C + here[:, None]) * C
    if C == B:
        kc, columns, there = kr, sums, here
        weights = exp(tl.minimum(differences(sums, columns), 0.0))
        low = dot(kr, tl.trans(kc), KIND) * weights * strength
        store(lower + out + there[None, :], low, here[:, None] > there[None, :])
        scored = tl.where(here[:, None] >= there[None, :], dot(qr, tl.trans(kc), KIND) * weights * scale, 0.0)
        store(scores + out + there[None, :], scored, here[:, None] >= 0)
    else:
        between = tl.zeros([1], tl.float64)  # log decay of the blocks between the columns' and the rows'
        for back in range(0, block + 1):
            there = (block - back) * B + i
            ctoken, cvalid = start + there, there < rows
            kc = load(k + (ctoken[:, None] * H + qk_head) * K + kk[None, :], cvalid[:, None] & inside)
            cgates = tl.load(g + ctoken * HV + head, mask=cvalid, other=0.0).to(tl.float64)
            whole = tl.sum(cgates, axis=0)
            # from the start of the rows' block, too: what lies before it is negative
            columns = tl.cumsum(cgates, axis=0) - tl.where(back > 0, whole + between, 0.0)
            between += tl.where(back > 0, whole, 0.0)
            weights = exp(tl.minimum(differences(sums, columns), 0.0))
            low = dot(kr, tl.trans(kc), KIND) * weights * strength
            store(lower + out + there[None, :], low, here[:, None] > there[None, :])
            scored = dot(qr, tl.trans(kc), KIND) * weights * scale
            store(scores + out + there[None, :], tl.where(here[:, None] >= there[None, :], scored, 0.0),
                  here[:, None] >= 0)  # fmt: skip


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
        # the scan reads blocks of 64, of which those above the diagonal are nobody else's
        store(scores + out + (later * 16 + i)[None, :], tl.zeros([16, 16], tl.float32), here[:, None] >= 0)
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
def invert_kernel(lower, beta, chunks, tri, HV, C: tl.constexpr, B: tl.constexpr):
    """A diagonal block [B, B] of one chunk and value head: (I + L)^-1 in place of L, and times diag(beta) as ``tri``.

    Blocks of 16 by substitution, row by row, all at once; then merges −T22 · L21 · T11. Exact to float32's rounding
    whatever the keys are; powers of L would not be.
    """
    chunk, head, block = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    start, rows = tl.load(chunks + chunk * 4), tl.load(chunks + chunk * 4 + 1)
    square = (chunk * HV + head) * C * C + block * B * (C + 1)
    base = lower + square
    i, few = tl.arange(0, 16), tl.arange(0, B // 16)
    corner = few[:, None] * (16 * (C + 1))
    t = tl.zeros([B // 16, 16, 16], tl.float32) + tl.where(i[:, None] == i[None, :], 1.0, 0.0)[None, :, :]
    for r in tl.static_range(1, 16):
        row = tl.load(
            base + corner + (r * C + i)[None, :], mask=(i < r)[None, :] & (few >= 0)[:, None], other=0.0
        )
        change = tl.sum(row[:, :, None] * t, axis=1)
        t = tl.where((i == r)[None, :, None], t - change[:, None, :], t)
    tl.store(base + corner[:, :, None] + i[None, :, None] * C + i[None, None, :], t)
    if B >= 32:
        merge_blocks(base, C, B, 16)
    if B >= 64:
        merge_blocks(base, C, B, 32)
    tl.debug_barrier()
    j = tl.arange(0, B)
    here = block * B + j
    strength = load(beta + (start + here) * HV + head, here < rows).to(tl.float32)
    square_rows = j[:, None] * C + j[None, :]
    inverse = tl.load(base + square_rows, mask=j[:, None] >= j[None, :], other=0.0)
    store(tri + square + square_rows, inverse * strength[None, :], j[:, None] >= 0)


@triton.jit
def merge_blocks(base, C: tl.constexpr, B: tl.constexpr, HALF: tl.constexpr):
    """Inverses of [HALF, HALF] at ``base`` to inverses of twice the size, all pairs of a block [B, B] at once."""
    tl.debug_barrier()  # other threads of this program wrote what is read here
    i, pair = tl.arange(0, HALF), tl.arange(0, B // (2 * HALF))
    first = base + pair[:, None, None] * (2 * HALF * (C + 1)) + i[None, :, None] * C + i[None, None, :]
    triangle = (i[:, None] >= i[None, :])[None, :, :] & (pair >= 0)[:, None, None]
    t11 = tl.load(first, mask=triangle, other=0.0)
    t22 = tl.load(first + HALF * (C + 1), mask=triangle, other=0.0)
    l21 = tl.load(first + HALF * C)
    tl.store(first + HALF * C, -dot(t22, dot(l21, t11, tl.float32), tl.float32))


@triton.jit
def merge_kernel(lower, beta, chunks, tri, HV, C: tl.constexpr, HALF: tl.constexpr, LAST: tl.constexpr):
    """A tile [64, 64] of −T22 · L21 · T11 of one pair of [HALF, HALF] inverses; in place of L21, too, unless LAST.

    With one tile a pair (HALF = 64) nobody else reads L21; the level above that is the last.
    """
    chunk, head, rest = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    start, rows = tl.load(chunks + chunk * 4), tl.load(chunks + chunk * 4 + 1)
    tiles: tl.constexpr = HALF // 64
    pair, row, column = rest // (tiles * tiles), (rest // tiles) % tiles, rest % tiles
    square = (chunk * HV + head) * C * C
    i = tl.arange(0, 64)
    tile, triangle = i[:, None] * C + i[None, :], i[:, None] >= i[None, :]
    first = lower + square + pair * (2 * HALF * (C + 1)) + tile
    result = tl.zeros([64, 64], tl.float32)
    for m in range(0, row + 1):
        inner = tl.zeros([64, 64], tl.float32)
        for n in range(column, tiles):
            left = tl.load(first + HALF * C + m * 64 * C + n * 64)
            right = tl.load(first + (n * C + column) * 64, mask=triangle | (n > column), other=0.0)
            inner += dot(left, right, tl.float32)
        left = tl.load(first + HALF * (C + 1) + (row * C + m) * 64, mask=triangle | (m < row), other=0.0)
        result -= dot(left, inner, tl.float32)
    there = pair * 2 * HALF + column * 64 + i
    strength = load(beta + (start + there) * HV + head, there < rows).to(tl.float32)
    place = (pair * 2 * HALF + HALF + row * 64) * C + pair * 2 * HALF + column * 64
    if not LAST:
        tl.debug_barrier()
        tl.store(lower + square + place + tile, result)
    store(tri + square + place + tile, result * strength[None, :], i[:, None] >= 0)
