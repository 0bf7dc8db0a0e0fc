"""Kernels of the delta rules that carry the state: the loop over chunks, and what a split sequence needs besides.

Letters: C chunk width, B = min(C, 64) rows of a block, K key size in blocks of BK = K rounded up, V value size in blocks
of BV.
"""

from __future__ import annotations

import triton
import triton.language as tl

from depthchart_kernels.triton.common import dot, either, exp, load, store
from depthchart_kernels.triton.delta_wide import wide_advance, wide_finish, wide_rests, wide_solve


@triton.jit
def scan_kernel(
    q, k, v, g, write_k, decay, plain_k, tri, scores, output, pool, starts, sequences, chunks, snapshots,
    scale, H, HV, slot_stride,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, B: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    KIND: tl.constexpr, CHANNEL: tl.constexpr, MOST: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """One piece of a sequence, value head and block of value columns: the loop over chunks, the state in registers.

    With one decay a channel q and k are those that `channel_scores_kernel` weighted, else the plain ones of the
    query/key head; ``plain_k`` is always that. With SPLIT a piece starts from ``starts`` [pieces, HV, K, V].
    """
    piece, head, vb = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    length = tl.load(sequences + piece * 5 + 1)
    if length == 0:
        return
    begin, first_chunk = tl.load(sequences + piece * 5), tl.load(sequences + piece * 5 + 2)
    initial, final = tl.load(sequences + piece * 5 + 3), tl.load(sequences + piece * 5 + 4)
    i, kk, vv = tl.arange(0, B), tl.arange(0, BK), vb * BV + tl.arange(0, BV)
    inside = kk < K
    keys, columns = either(inside[None, :], K == BK), either((vv < V)[None, :], V % BV == 0)
    # tensors of offsets stay in 32 bits and the 64-bit part in scalars: wide offsets alone would fill the registers
    tile, tile_mask = kk[:, None] * V + vv[None, :], either(inside[:, None], K == BK) & columns
    head_pool = pool + head.to(tl.int64) * K * V
    qk_head = head // (HV // H)
    k_rows, g_rows = i[:, None] * (H * K) + kk[None, :], i[:, None] * (HV * K) + kk[None, :]
    v_rows, square = i[:, None] * (HV * V) + vv[None, :], i[:, None] * C + i[None, :]
    qk_rows, qk_step = (g_rows, HV * K) if CHANNEL else (k_rows, H * K)
    everywhere = tl.full([1, 1], True, tl.int1)
    state = tl.zeros([BK, BV], tl.float32)
    if SPLIT:
        state = load(starts + (piece * HV + head) * K * V + tile, tile_mask)
    else:
        if initial >= 0:
            state = load(head_pool + initial * slot_stride + tile, tile_mask).to(tl.float32)
    for n in range(0, (length + C - 1) // C):
        # not from the table: loads must not wait for it
        chunk, start, rows = first_chunk + n, begin + n * C, tl.minimum(length - n * C, C)
        k_base, g_base, v_base = (start * H + qk_head) * K, (start * HV + head) * K, (start * HV + head) * V
        qk_base = g_base if CHANNEL else k_base
        square_base, gates = (chunk * HV + head) * C * C, g + start * HV + head
        whole = decay + (chunk * HV + head) * K + kk
        if C == B:
            mask, vmask = (i < rows)[:, None] & keys, (i < rows)[:, None] & columns
            kc, qc = load(k + qk_base + qk_rows, mask), load(q + qk_base + qk_rows, mask)
            vc = load(v + v_base + v_rows, vmask).to(tl.float32)
            t, a = (
                load(tri + square_base + square, everywhere),
                load(scores + square_base + square, everywhere),
            )
            if CHANNEL:
                sums = tl.zeros([B], tl.float64)
                rest = vc - dot(kc, state, KIND)
                read = dot(qc, state, KIND)
            else:
                sums = tl.cumsum(tl.load(gates + i * HV, mask=i < rows, other=0.0).to(tl.float64), axis=0)
                grow = exp(sums.to(tl.float32))[:, None]
                rest = vc - grow * dot(kc, state, KIND)
                read = grow * dot(qc, state, KIND)
            u = dot(t, rest, KIND)
            store(output + v_base + v_rows, scale * read + dot(a, u, KIND), vmask)
            if MOST != 0:
                low, high = tl.load(chunks + chunk * 4 + 2), tl.load(chunks + chunk * 4 + 3)
                k_at, g_at = (plain_k + k_base, k_rows), (g + g_base, g_rows, HV * K)
                pool_at = (head_pool, slot_stride, tile, tile_mask)
                if MOST == 1:
                    if low < high:
                        write_snapshot(
                            low, snapshots, pool_at, state, kc, k_at, u, sums, g_at, i, keys, KIND, CHANNEL
                        )
                else:
                    for j in range(low, high):
                        write_snapshot(
                            j, snapshots, pool_at, state, kc, k_at, u, sums, g_at, i, keys, KIND, CHANNEL
                        )
            state = finish(
                state, kc, write_k + g_base + g_rows, whole, inside, u, sums, i, rows, keys, KIND, CHANNEL
            )
        else:
            k_whole, v_at = (k + qk_base, qk_rows, qk_step), (v + v_base, v_rows, HV * V)
            q_at, output_at = (q + qk_base, qk_rows, qk_step), (output + v_base, v_rows, HV * V)
            rests = wide_rests(k_whole, v_at, gates, HV, state, i, rows, keys, columns, C, B, BV, KIND, CHANNEL)
            us = wide_solve(
                q_at, output_at, gates, HV, tri + square_base + square, scores + square_base + square, state, rests,
                scale, i, rows, keys, columns, C, B, BV, KIND, CHANNEL, True,
            )  # fmt: skip
            if MOST != 0:
                low, high = tl.load(chunks + chunk * 4 + 2), tl.load(chunks + chunk * 4 + 3)
                for j in range(low, high):
                    depth, slot = tl.load(snapshots + j * 2), tl.load(snapshots + j * 2 + 1)
                    then = wide_advance(
                        state, (plain_k + k_base, k_rows, H * K), (g + g_base, g_rows, HV * K), gates, HV,
                        us, i, depth, kk, keys, C, B, KIND, CHANNEL,
                    )  # fmt: skip
                    store(head_pool + slot * slot_stride + tile, then, tile_mask)
            write_at = (write_k + g_base, g_rows, HV * K) if CHANNEL else (k + k_base, k_rows, H * K)
            state = wide_finish(
                state, write_at, whole, inside, gates, HV, us, i, rows, keys, C, B, KIND, CHANNEL
            )
    if final >= 0:
        store(head_pool + final * slot_stride + tile, state, tile_mask)


@triton.jit
def transition_kernel(
    k, v, g, write_k, decay, tri, matrices, additions, sequences, followed, H, HV,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, B: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    KIND: tl.constexpr, CHANNEL: tl.constexpr,
):  # fmt: skip
    """How a piece maps the state before it to the state after it: S' = M S + N, a block of columns of N or M.

    N is what the loop makes of zeros, M what it makes of the identity with v = 0; both float32, [pieces, HV, K, ·].
    Only pieces that are followed by another are asked, and these are whole chunks.
    """
    place, head, vb = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    piece = tl.load(followed + place)
    begin, length = tl.load(sequences + piece * 5), tl.load(sequences + piece * 5 + 1)
    first_chunk = tl.load(sequences + piece * 5 + 2)
    i, kk = tl.arange(0, B), tl.arange(0, BK)
    value_blocks: tl.constexpr = (V + BV - 1) // BV
    unit = vb >= value_blocks
    vv = (vb - tl.where(unit, value_blocks, 0)) * BV + tl.arange(0, BV)
    inside, columns = kk < K, ((vv < V) & (vb < value_blocks))[None, :]
    keys = either(inside[None, :], K == BK)
    qk_head = head // (HV // H)
    k_rows, g_rows = i[:, None] * (H * K) + kk[None, :], i[:, None] * (HV * K) + kk[None, :]
    v_rows, square = i[:, None] * (HV * V) + vv[None, :], i[:, None] * C + i[None, :]
    qk_rows, qk_step = (g_rows, HV * K) if CHANNEL else (k_rows, H * K)
    state = tl.where((kk[:, None] == vv[None, :]) & unit, 1.0, 0.0)
    for n in range(0, length // C):
        chunk, start = first_chunk + n, begin + n * C
        k_base, g_base, v_base = (start * H + qk_head) * K, (start * HV + head) * K, (start * HV + head) * V
        qk_base = g_base if CHANNEL else k_base
        square_base, gates = (chunk * HV + head) * C * C, g + start * HV + head
        whole = decay + (chunk * HV + head) * K + kk
        if C == B:
            kc = load(k + qk_base + qk_rows, keys)
            vc = load(v + v_base + v_rows, columns).to(tl.float32)
            t = load(tri + square_base + square, tl.full([1, 1], True, tl.int1))
            if CHANNEL:
                sums = tl.zeros([B], tl.float64)
                u = dot(t, vc - dot(kc, state, KIND), KIND)
            else:
                sums = tl.cumsum(tl.load(gates + i * HV).to(tl.float64), axis=0)
                u = dot(t, vc - exp(sums.to(tl.float32))[:, None] * dot(kc, state, KIND), KIND)
            state = finish(
                state, kc, write_k + g_base + g_rows, whole, inside, u, sums, i, C, keys, KIND, CHANNEL
            )
        else:
            k_at, v_at = (k + qk_base, qk_rows, qk_step), (v + v_base, v_rows, HV * V)
            rests = wide_rests(k_at, v_at, gates, HV, state, i, C, keys, columns, C, B, BV, KIND, CHANNEL)
            squares = tri + square_base + square
            us = wide_solve(
                k_at, v_at, gates, HV, squares, squares, state, rests, 1.0, i, C, keys, columns,
                C, B, BV, KIND, CHANNEL, False,
            )  # fmt: skip
            write_at = (write_k + g_base, g_rows, HV * K) if CHANNEL else (k + k_base, k_rows, H * K)
            state = wide_finish(
                state, write_at, whole, inside, gates, HV, us, i, C, keys, C, B, KIND, CHANNEL
            )
    width = tl.where(unit, K, V)
    target = tl.where(unit, matrices, additions) + (place * HV + head) * K * width
    store(target + kk[:, None] * width + vv[None, :], state, inside[:, None] & (vv < width)[None, :])


@triton.jit
def combine_kernel(
    matrices, additions, pool, starts, runs, HV, slot_stride,
    K: tl.constexpr, V: tl.constexpr, T: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """One sequence, value head and block of value columns: the state at the start of each of its pieces, in float32.

    A piece's state is read back in tiles [T, BV] from where this program wrote it.
    """
    s, head, vb = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    first, count = tl.load(runs + s * 4), tl.load(runs + s * 4 + 1)
    local, initial = tl.load(runs + s * 4 + 2), tl.load(runs + s * 4 + 3)
    i, vv = tl.arange(0, T), vb * BV + tl.arange(0, BV)
    columns = (vv < V)[None, :]
    tile = i[:, None] * V + vv[None, :]
    here = starts + (first * HV + head) * K * V
    for r in range(0, K, T):
        state = tl.zeros([T, BV], tl.float32)
        mask = (r + i < K)[:, None] & columns
        if initial >= 0:
            held = pool + initial * slot_stride + head.to(tl.int64) * K * V + r * V
            state = load(held + tile, mask).to(tl.float32)
        store(here + r * V + tile, state, mask)
    for p in range(0, count - 1):
        tl.debug_barrier()  # other threads of this program wrote the state that is read here
        here = starts + ((first + p) * HV + head) * K * V
        matrix = matrices + ((local + p) * HV + head) * K * K
        addition = additions + ((local + p) * HV + head) * K * V
        for r in range(0, K, T):
            mask = (r + i < K)[:, None]
            state = load(addition + r * V + tile, mask & columns)
            for c in range(0, K, T):
                held = c + i < K
                m = load(matrix + (r + i)[:, None] * K + (c + i)[None, :], mask & held[None, :])
                state += dot(m, load(here + c * V + tile, held[:, None] & columns), tl.float32)
            store(here + HV.to(tl.int64) * K * V + r * V + tile, state, mask & columns)


@triton.jit
def finish(
    state, kc, write_k, decay, inside, u, sums, i, rows, keys, KIND: tl.constexpr, CHANNEL: tl.constexpr
):
    """The state after the chunk."""
    if CHANNEL:
        written = load(write_k, (i < rows)[:, None] & keys)
        return load(decay, inside)[:, None] * state + dot(tl.trans(written), u, KIND)
    else:
        return head_advance(state, kc, u, sums, i, rows, KIND)


@triton.jit
def write_snapshot(
    j, snapshots, pool_at, state, kc, k_at, u, sums, g_at, i, keys, KIND: tl.constexpr, CHANNEL: tl.constexpr
):
    """Snapshot ``j`` of the list: the state after so many tokens of the chunk, to its slot."""
    pool, slot_stride, tile, tile_mask = pool_at
    depth, slot = tl.load(snapshots + j * 2), tl.load(snapshots + j * 2 + 1)
    if CHANNEL:
        then = channel_advance(state, k_at, u, g_at, i, depth, keys, KIND)
    else:
        then = head_advance(state, kc, u, sums, i, depth, KIND)
    store(pool + slot * slot_stride + tile, then, tile_mask)


@triton.jit
def head_advance(state, kc, u, sums, i, depth, KIND: tl.constexpr):
    """The state after ``depth`` tokens of the chunk, one decay a head."""
    end = tl.sum(tl.where(i == depth - 1, sums, 0.0), axis=0)
    left = tl.minimum((end - sums).to(tl.float32), 0.0)
    weighted = tl.where((i < depth)[:, None], u * exp(left)[:, None], 0.0)
    return exp(end.to(tl.float32)) * state + dot(tl.trans(kc), weighted, KIND)


@triton.jit
def channel_advance(state, k_at, u, g_at, i, depth, keys, KIND: tl.constexpr):
    """The state after ``depth`` tokens of the chunk, one decay a channel; each row sums the gates that follow it."""
    k, k_rows = k_at
    g, g_rows, g_step = g_at
    mine = (i < depth)[:, None] & keys
    following = load(g + g_step + g_rows, (i + 1 < depth)[:, None] & keys).to(tl.float32)
    rest = exp(tl.cumsum(following, axis=0, reverse=True))
    total = tl.sum(load(g + g_rows, mine).to(tl.float32), axis=0)
    weighted = load(k + k_rows, mine).to(tl.float32) * rest
    return exp(total)[:, None] * state + dot(tl.trans(weighted), u, KIND)
