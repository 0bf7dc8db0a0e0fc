"""Mamba-2's kernels: scores chunk by chunk in parallel, one loop over chunks a head, and what a split needs besides.

Letters: C chunk width, B = min(C, 64) rows of a block, N state size in blocks of BN = N rounded up, P head size in blocks
of BP. ``scores`` [chunks, G, C, C] holds C Bᵀ, shared by all heads of a group, in blocks on and below the diagonal.
An ``at`` is (pointer to the chunk's first row, offsets [B, ·] within a block, elements from a token to the next).
"""

from __future__ import annotations

import triton
import triton.language as tl

from depthchart_kernels.triton.common import differences, dot, either, exp, load, number, store

ELEMENTS = 1024  # of a state that a program of `combine_kernel` passes on


@triton.jit
def scores_kernel(
    b, c, chunks, scores, G, N, C: tl.constexpr, B: tl.constexpr, BN: tl.constexpr, KIND: tl.constexpr
):
    """A block [B, B] on or below the diagonal of one chunk and group."""
    chunk, group, pair = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    start, rows = tl.load(chunks + chunk * 4), tl.load(chunks + chunk * 4 + 1)
    row, column = pair // (C // B), pair % (C // B)
    if column > row:
        return
    i, nn = tl.arange(0, B), tl.arange(0, BN)
    inside, here, there = (nn < N)[None, :], row * B + i, column * B + i
    at, other = ((start + here)[:, None] * G + group) * N, ((start + there)[:, None] * G + group) * N
    cc = load(c + at + nn[None, :], (here < rows)[:, None] & inside)
    bc = load(b + other + nn[None, :], (there < rows)[:, None] & inside)
    out = ((chunk * G + group) * C + here[:, None]) * C + there[None, :]
    store(scores + out, dot(cc, tl.trans(bc), KIND), here[:, None] >= 0)


@triton.jit
def ssd_kernel(
    x, dt, a, b, c, d, scores, output, pool, starts, sequences, chunks, snapshots, H, G, slot_stride,
    P: tl.constexpr, N: tl.constexpr, C: tl.constexpr, B: tl.constexpr, BN: tl.constexpr, BP: tl.constexpr,
    KIND: tl.constexpr, SKIP: tl.constexpr, MOST: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """One piece of a sequence, head and block of its rows; the state is held transposed, [BN, BP], as products read it.

    With SPLIT a piece starts from ``starts`` [pieces, H, P, N].
    """
    piece, head, pb = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    length = tl.load(sequences + piece * 5 + 1)
    if length == 0:
        return
    begin, first_chunk = tl.load(sequences + piece * 5), tl.load(sequences + piece * 5 + 2)
    initial, final = tl.load(sequences + piece * 5 + 3), tl.load(sequences + piece * 5 + 4)
    i, nn, pp = tl.arange(0, B), tl.arange(0, BN), pb * BP + tl.arange(0, BP)
    # tensors of offsets stay in 32 bits and the 64-bit part in scalars: wide offsets alone would fill the registers
    tile = pp[None, :] * N + nn[:, None]
    head_pool = pool + head.to(tl.int64) * P * N
    n_rows, p_rows = i[:, None] * (G * N) + nn[None, :], i[:, None] * (H * P) + pp[None, :]
    square = i[:, None] * C + i[None, :]
    inside, columns = either((nn < N)[None, :], N == BN), either((pp < P)[None, :], P % BP == 0)
    tile_mask = either((nn < N)[:, None], N == BN) & columns
    group = head // (H // G)
    rate = number(a + head).to(tl.float64)
    skip = number(d + head) if SKIP else tl.zeros([1], tl.float32)
    state = tl.zeros([BN, BP], tl.float32)
    if SPLIT:
        state = load(starts + (piece * H + head) * P * N + tile, tile_mask)
    else:
        if initial >= 0:
            state = load(head_pool + initial * slot_stride + tile, tile_mask).to(tl.float32)
    for n in range(0, (length + C - 1) // C):
        # not from the table: loads must not wait for it
        chunk, start, rows = first_chunk + n, begin + n * C, tl.minimum(length - n * C, C)
        n_base, p_base, steps_at = (start * G + group) * N, (start * H + head) * P, dt + start * H + head
        b_at, c_at, x_at = (
            (b + n_base, n_rows, G * N),
            (c + n_base, n_rows, G * N),
            (x + p_base, p_rows, H * P),
        )
        squares, output_at = scores + (chunk * G + group) * C * C + square, output + p_base
        if C == B:
            mask, xmask = (i < rows)[:, None] & inside, (i < rows)[:, None] & columns
            bc, cc = load(b + n_base + n_rows, mask), load(c + n_base + n_rows, mask)
            xc, shared = (
                load(x + p_base + p_rows, xmask).to(tl.float32),
                load(squares, tl.full([1, 1], True, tl.int1)),
            )
            steps, sums = local_sums(steps_at, H, rate, i, rows)
            written = xc * steps[:, None]
            left = exp(tl.minimum(differences(sums, sums), 0.0))
            weights = tl.where(i[:, None] >= i[None, :], shared.to(tl.float32) * left, 0.0)
            y = exp(sums.to(tl.float32))[:, None] * dot(cc, state, KIND) + dot(weights, written, KIND)
            store(output_at + p_rows, y + skip * xc, xmask)
        else:
            bc, written, sums = state, state, state  # nothing of a wide chunk is kept for the state
            wide_output(
                c_at,
                x_at,
                squares,
                output_at,
                steps_at,
                H,
                rate,
                skip,
                state,
                i,
                rows,
                inside,
                columns,
                C,
                B,
                BP,
                KIND,
            )
        if MOST != 0:
            low, high = tl.load(chunks + chunk * 4 + 2), tl.load(chunks + chunk * 4 + 3)
            if MOST == 1 and C == B:
                if low < high:
                    depth, slot = tl.load(snapshots + low * 2), tl.load(snapshots + low * 2 + 1)
                    then = ssd_advance(state, bc, written, sums, i, depth, KIND)
                    store(head_pool + slot * slot_stride + tile, then, tile_mask)
            else:
                for j in range(low, high):
                    depth, slot = tl.load(snapshots + j * 2), tl.load(snapshots + j * 2 + 1)
                    if C == B:
                        then = ssd_advance(state, bc, written, sums, i, depth, KIND)
                    else:
                        then = wide_advance(
                            state, b_at, x_at, steps_at, H, rate, i, depth, inside, columns, C, B, KIND
                        )
                    store(head_pool + slot * slot_stride + tile, then, tile_mask)
        if C == B:
            state = ssd_advance(state, bc, written, sums, i, rows, KIND)
        else:
            state = wide_advance(state, b_at, x_at, steps_at, H, rate, i, rows, inside, columns, C, B, KIND)
    if final >= 0:
        store(head_pool + final * slot_stride + tile, state, tile_mask)


@triton.jit
def addition_kernel(
    x, dt, a, b, additions, decays, sequences, followed, H, G,
    P: tl.constexpr, N: tl.constexpr, C: tl.constexpr, B: tl.constexpr, BN: tl.constexpr, BP: tl.constexpr,
    KIND: tl.constexpr,
):  # fmt: skip
    """What a piece adds to the state before it, [pieces, H, P, N], and the factor of that state, [pieces, H].

    Only pieces that are followed by another are asked, and these are whole chunks.
    """
    place, head, pb = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    piece = tl.load(followed + place)
    begin, length = tl.load(sequences + piece * 5), tl.load(sequences + piece * 5 + 1)
    i, nn, pp = tl.arange(0, B), tl.arange(0, BN), pb * BP + tl.arange(0, BP)
    n_rows, p_rows = i[:, None] * (G * N) + nn[None, :], i[:, None] * (H * P) + pp[None, :]
    inside, columns = either((nn < N)[None, :], N == BN), either((pp < P)[None, :], P % BP == 0)
    group = head // (H // G)
    rate = number(a + head).to(tl.float64)
    state = tl.zeros([BN, BP], tl.float32)
    total = tl.zeros([1], tl.float64)
    for n in range(0, length // B):
        start = begin + n * B
        steps, sums = local_sums(dt + start * H + head, H, rate, i, B)
        xc = load(x + (start * H + head) * P + p_rows, columns).to(tl.float32)
        bc = load(b + (start * G + group) * N + n_rows, inside)
        state = ssd_advance(state, bc, xc * steps[:, None], sums, i, B, KIND)
        total += last(sums, i, B)
    tile = pp[None, :] * N + nn[:, None]
    store(additions + (place * H + head) * P * N + tile, state, (nn < N)[:, None] & (pp < P)[None, :])
    one = tl.arange(0, 1)
    store(decays + place * H + head + one, exp(total.to(tl.float32)), (one == 0) & (pb == 0))


@triton.jit
def combine_kernel(
    additions, decays, pool, starts, runs, H, slot_stride, SIZE: tl.constexpr, E: tl.constexpr
):
    """One sequence, head and block of its state's elements: the state at the start of each of its pieces."""
    s, head, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    first, count = tl.load(runs + s * 4), tl.load(runs + s * 4 + 1)
    local, initial = tl.load(runs + s * 4 + 2), tl.load(runs + s * 4 + 3)
    at = part * E + tl.arange(0, E)
    state = tl.zeros([E], tl.float32)
    if initial >= 0:
        state = load(pool + initial * slot_stride + head.to(tl.int64) * SIZE + at, at < SIZE).to(tl.float32)
    store(starts + (first * H + head) * SIZE + at, state, at < SIZE)
    for p in range(0, count - 1):
        place = (local + p) * H + head
        state = tl.load(decays + place) * state + load(additions + place * SIZE + at, at < SIZE)
        store(starts + ((first + p + 1) * H + head) * SIZE + at, state, at < SIZE)


@triton.jit
def local_sums(steps_at, H, rate, row, rows):
    """Step sizes [B], float32, of these rows, and the sums of their log decay from the first of them on, float64."""
    steps = load(steps_at + row * H, row < rows).to(tl.float32)
    return steps, tl.cumsum(steps.to(tl.float64) * rate, axis=0)


@triton.jit
def last(sums, i, rows):
    """sums[rows − 1], 0 without rows."""
    return tl.sum(tl.where(i == rows - 1, sums, 0.0), axis=0)


@triton.jit
def ssd_advance(state, bc, written, sums, i, depth, KIND: tl.constexpr):
    """The state after ``depth`` tokens of the chunk."""
    end = last(sums, i, depth)
    left = tl.minimum((end - sums).to(tl.float32), 0.0)
    weighted = tl.where((i < depth)[:, None], written * exp(left)[:, None], 0.0)
    return exp(end.to(tl.float32)) * state + dot(tl.trans(bc), weighted, KIND)


@triton.jit
def wide_output(
    c_at, x_at, squares, output, steps_at, H, rate, skip, state, i, rows, inside, columns,
    C: tl.constexpr, B: tl.constexpr, BP: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Outputs of a chunk wider than a block: the state at its start, then the chunk's own blocks up to the diagonal."""
    c, n_rows, n_step = c_at
    x, p_rows, p_step = x_at
    before = tl.zeros([1], tl.float64)
    for r in range(0, C // B):
        row = r * B + i
        _steps, sums = local_sums(steps_at, H, rate, row, rows)
        cc = load(c + r * B * n_step + n_rows, (row < rows)[:, None] & inside)
        y = exp((sums + before).to(tl.float32))[:, None] * dot(cc, state, KIND)
        before += last(sums, i, B)
        between = tl.zeros([1], tl.float64)  # log decay of the blocks between the columns' and the rows'
        for back in range(0, r + 1):
            there = (r - back) * B + i
            strength, ends = local_sums(steps_at, H, rate, there, rows)
            whole = last(ends, i, B)
            # from the start of the rows' block, too: what lies before it is negative
            ends = ends - tl.where(back > 0, whole + between, 0.0)
            between += tl.where(back > 0, whole, 0.0)
            left = exp(tl.minimum(differences(sums, ends), 0.0))
            shared = load(squares + (r * C + r - back) * B, tl.full([1, 1], True, tl.int1)).to(tl.float32)
            weights = tl.where(row[:, None] >= there[None, :], shared * left, 0.0)
            xc = load(x + (r - back) * B * p_step + p_rows, (there < rows)[:, None] & columns).to(tl.float32)
            y += dot(weights, xc * strength[:, None], KIND)
        mask = (row < rows)[:, None] & columns
        xc = load(x + r * B * p_step + p_rows, mask).to(tl.float32)
        store(output + r * B * p_step + p_rows, y + skip * xc, mask)


@triton.jit
def wide_advance(
    state,
    b_at,
    x_at,
    steps_at,
    H,
    rate,
    i,
    depth,
    inside,
    columns,
    C: tl.constexpr,
    B: tl.constexpr,
    KIND: tl.constexpr,
):
    """The state after ``depth`` tokens of a chunk wider than a block, from its last block to its first."""
    b, n_rows, n_step = b_at
    x, p_rows, p_step = x_at
    change = tl.zeros_like(state)
    after = tl.zeros([1], tl.float64)  # log decay of the blocks behind the one at hand, up to the depth
    for back in range(0, C // B):
        first = (C // B - 1 - back) * B
        mine = (first + i < depth)[:, None]
        steps, sums = local_sums(steps_at, H, rate, first + i, depth)
        whole = last(sums, i, B)
        left = exp(tl.minimum((whole - sums + after).to(tl.float32), 0.0))
        xc = load(x + first * p_step + p_rows, mine & columns).to(tl.float32)
        bc = load(b + first * n_step + n_rows, mine & inside)
        change += dot(tl.trans(bc), xc * (steps * left)[:, None], KIND)
        after += whole
    return exp(after.to(tl.float32))[:, None] * state + change
