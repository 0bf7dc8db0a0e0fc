"""A chunk of the delta rules that is wider than a block of 64 tokens.

The whole chunk is read against the state at its start; its blocks meet in the triangles ``tri`` and ``scores`` only. So
a wide chunk makes the serial loop shorter, it is not a loop over narrow ones. Blocks of intermediate results are
layers of one tensor [C / B, B, BV] in registers, which loops may index.

An ``at`` is (pointer to the chunk's first row, offsets [B, ·] within a block, elements from a token to the next).
"""

from __future__ import annotations

import triton
import triton.language as tl

from depthchart_kernels.triton.common import INTERPRET, dot, exp, load, store


@triton.jit
def wide_rests(
    k_at, v_at, gates, HV, state, i, rows, keys, columns,
    C: tl.constexpr, B: tl.constexpr, BV: tl.constexpr, KIND: tl.constexpr, CHANNEL: tl.constexpr,
):  # fmt: skip
    """v less what the state at the chunk's start holds for its keys, in layers."""
    k, k_rows, k_step = k_at
    v, v_rows, v_step = v_at
    rests = layers(C // B, B, BV, KIND)
    before = tl.zeros([1], tl.float64)
    for b in range(0, C // B):
        valid = b * B + i < rows
        kc = load(k + b * B * k_step + k_rows, valid[:, None] & keys)
        vc = load(v + b * B * v_step + v_rows, valid[:, None] & columns).to(tl.float32)
        if CHANNEL:
            rest = vc - dot(kc, state, KIND)
        else:
            sums, before = block_sums(gates, HV, b * B + i, rows, before)
            rest = vc - exp(sums.to(tl.float32))[:, None] * dot(kc, state, KIND)
        rests = put(rests, b, rest)
    return rests


@triton.jit
def wide_solve(
    q_at, output_at, gates, HV, tri, scores, state, rests, scale, i, rows, keys, columns,
    C: tl.constexpr, B: tl.constexpr, BV: tl.constexpr, KIND: tl.constexpr, CHANNEL: tl.constexpr, OUTPUT: tl.constexpr,
):  # fmt: skip
    """U in layers of float32; writes the chunk's outputs if OUTPUT."""
    q, q_rows, q_step = q_at
    output, output_rows, output_step = output_at
    everywhere = tl.full([1, 1], True, tl.int1)
    us = layers(C // B, B, BV, tl.float32)
    before = tl.zeros([1], tl.float64)
    for b in range(0, C // B):
        u = tl.zeros([B, BV], tl.float32)
        for j in range(0, b + 1):
            u += dot(load(tri + (b * C + j) * B, everywhere), take(rests, j), KIND)
        if OUTPUT:
            valid = (b * B + i < rows)[:, None]
            y = dot(load(q + b * B * q_step + q_rows, valid & keys), state, KIND) * scale
            if not CHANNEL:
                sums, before = block_sums(gates, HV, b * B + i, rows, before)
                y *= exp(sums.to(tl.float32))[:, None]
            for j in range(0, b):
                y += dot(load(scores + (b * C + j) * B, everywhere), take(us, j), KIND)
            y += dot(load(scores + b * (C + 1) * B, everywhere), u, KIND)
            store(output + b * B * output_step + output_rows, y, valid & columns)
        us = put(us, b, u)
    return us


@triton.jit
def block_sums(gates, HV, row, rows, before):
    """Sums of these rows' log decay from the chunk's start, float64 [B], and what the next block has before it."""
    steps = tl.load(gates + row * HV, mask=row < rows, other=0.0).to(tl.float64)
    return tl.cumsum(steps, axis=0) + before, before + tl.sum(steps, axis=0)


@triton.jit
def wide_finish(
    state, k_at, decay, inside, gates, HV, us, i, rows, keys,
    C: tl.constexpr, B: tl.constexpr, KIND: tl.constexpr, CHANNEL: tl.constexpr,
):  # fmt: skip
    """The state after the chunk; with one decay a channel k is what `channel_scores_kernel` weighted for it."""
    if CHANNEL:
        k, k_rows, k_step = k_at
        state = load(decay, inside)[:, None] * state
        for b in range(0, C // B):
            kc = load(k + b * B * k_step + k_rows, (b * B + i < rows)[:, None] & keys)
            state += dot(tl.trans(kc), take(us, b), KIND)
        return state
    else:
        return wide_advance(state, k_at, k_at, gates, HV, us, i, rows, keys, C, B, KIND, CHANNEL)


@triton.jit
def wide_advance(
    state, k_at, g_at, gates, HV, us, i, depth, keys,
    C: tl.constexpr, B: tl.constexpr, KIND: tl.constexpr, CHANNEL: tl.constexpr,
):  # fmt: skip
    """The state after ``depth`` tokens of the chunk; each row sums the gates that follow it, from the last block on."""
    k, k_rows, k_step = k_at
    g, g_rows, g_step = g_at
    change = tl.zeros_like(state)
    # log decay of the blocks behind the one at hand, up to the depth
    after = tl.sum(change, axis=1) if CHANNEL else tl.zeros([1], tl.float64)
    # for snapshots only with one decay a channel: buffers for loads ahead would cost every chunk registers
    for back in tl.range(0, C // B, num_stages=1 if CHANNEL else None):
        b = C // B - 1 - back
        row = b * B + i
        mine = (row < depth)[:, None] & keys
        kc = load(k + b * B * k_step + k_rows, mine)
        u = take(us, b)
        if CHANNEL:
            here = g + b * B * g_step + g_rows
            next_mask = ((i < B - 1) & (row + 1 < depth))[:, None] & keys
            rest = tl.cumsum(load(here + g_step, next_mask).to(tl.float32), axis=0, reverse=True)
            kc = kc.to(tl.float32) * exp(rest + after[None, :])
            after += tl.sum(load(here, mine).to(tl.float32), axis=0)
        else:
            steps = tl.load(gates + row * HV, mask=row < depth, other=0.0).to(tl.float64)
            whole = tl.sum(steps, axis=0)
            left = (whole - tl.cumsum(steps, axis=0) + after).to(tl.float32)
            u = tl.where((row < depth)[:, None], u * exp(tl.minimum(left, 0.0))[:, None], 0.0)
            after += whole
        change += dot(tl.trans(kc), u, KIND)
    return exp(after.to(tl.float32))[:, None] * state + change


@triton.jit
def layers(COUNT: tl.constexpr, B: tl.constexpr, BV: tl.constexpr, KIND: tl.constexpr):
    """Empty layers; of float32 under the interpreter, which cannot compute with bfloat16."""
    if INTERPRET:
        return tl.zeros([COUNT, B, BV], tl.float32)
    else:
        return tl.zeros([COUNT, B, BV], KIND)


@triton.jit
def put(stack, b, value):
    """``stack`` with layer b replaced."""
    layer = tl.arange(0, stack.shape[0])[:, None, None]
    return tl.where(layer == b, value.to(stack.dtype)[None, :, :], stack)


@triton.jit
def take(stack, b):
    """Layer b."""
    layer = tl.arange(0, stack.shape[0])[:, None, None]
    return tl.sum(tl.where(layer == b, stack, 0.0), axis=0)
