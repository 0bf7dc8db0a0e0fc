"""Paged attention and merge: one program a block of queries and key head, keys page by page."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from depthchart_kernels.batch import IntArray
from depthchart_kernels.triton.common import (
    check_device,
    check_size,
    contiguous,
    dot,
    exp,
    kind_of,
    load,
    power_of_two,
    store,
)

__all__ = ["KEYS", "ROWS", "attend", "launch", "merge"]

LN2 = tl.constexpr(0.6931471805599453)
ROWS, KEYS = 16, 32  # rows (query × head of the group) and keys of one step


def launch(size: int) -> tuple[int, int]:
    """Warps and stages for a head of ``size``."""
    return (4, 2) if size <= 256 else (8, 1)


@triton.jit
def attend_kernel(
    q, k, v, pages, blocks, output, lse, scale, H, R, D, DV, page_size, columns, rank, size,
    k_page, k_row, k_head, v_page, v_row, v_head,
    M: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Row r of a block is query r // R of it and head r % R of the key head's group."""
    block, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    s, first = tl.load(blocks + block * 4), tl.load(blocks + block * 4 + 1)
    count, position = tl.load(blocks + block * 4 + 2), tl.load(blocks + block * 4 + 3)
    r, dd, dv, nn = tl.arange(0, M), tl.arange(0, BD), tl.arange(0, BDV), tl.arange(0, BN)
    valid = r // R < count
    row = (first + r // R) * (H * R) + head * R + r % R
    query = load(q + row[:, None] * D + dd[None, :], valid[:, None] & (dd < D)[None, :])
    seen = (position + r // R - rank + size) // size  # local keys that the row may see; never negative
    most = (position + count - 1 - rank + size) // size
    high = tl.zeros([M], tl.float32) - float("inf")
    total = tl.zeros([M], tl.float32)
    value = tl.zeros([M, BDV], tl.float32)
    for start in range(0, most, BN):
        key = start + nn
        held = key < most
        page = tl.load(pages + s * columns + key // page_size, mask=held, other=0).to(tl.int64)
        k_at = page * k_page + (key % page_size) * k_row + head * k_head
        v_at = page * v_page + (key % page_size) * v_row + head * v_head
        kt = load(k + k_at[None, :] + dd[:, None], held[None, :] & (dd < D)[:, None])
        scores = dot(query, kt, KIND) * scale
        scores = tl.where(key[None, :] < seen[:, None], scores, -float("inf"))
        above = tl.maximum(high, tl.max(scores, axis=1))
        base = tl.where(above == -float("inf"), 0.0, above)
        weights, fade = exp(scores - base[:, None]), exp(high - base)
        vt = load(v + v_at[:, None] + dv[None, :], held[:, None] & (dv < DV)[None, :])
        total = total * fade + tl.sum(weights, axis=1)
        value = value * fade[:, None] + dot(weights, vt, KIND)
        high = above
    empty = total == 0.0
    value = value / tl.where(empty, 1.0, total)[:, None]
    store(output + row[:, None] * DV + dv[None, :], value, valid[:, None] & (dv < DV)[None, :])
    logs = tl.where(empty, -float("inf"), high + tl.log2(tl.where(empty, 1.0, total)) * LN2)
    store(lse + row, logs, valid)


@triton.jit
def merge_kernel(outputs, lse, output, total, rows, DV, PARTS, BDV: tl.constexpr):
    """One row of query and head."""
    row, dv = tl.program_id(0).to(tl.int64), tl.arange(0, BDV)
    high = -float("inf")
    for p in range(0, PARTS):
        high = tl.maximum(high, tl.load(lse + p * rows + row).to(tl.float32))
    base = tl.where(high == -float("inf"), 0.0, high)
    weight_sum = tl.zeros([1], tl.float32)
    value = tl.zeros([BDV], tl.float32)
    for p in range(0, PARTS):
        part = tl.load(lse + p * rows + row).to(tl.float32)
        weight = exp(part - base)
        got = load(outputs + (p * rows + row) * DV + dv, dv < DV).to(tl.float32)
        value += tl.where(part > -float("inf"), weight * got, 0.0)  # an empty part may hold anything
        weight_sum += weight
    empty = weight_sum == 0.0
    safe = tl.where(empty, 1.0, weight_sum)
    store(output + row * DV + dv, value / safe, dv < DV)
    store(
        total + row + tl.arange(0, 1),
        tl.where(empty, -float("inf"), base + tl.log2(safe) * LN2),
        tl.arange(0, 1) == 0,
    )


def attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    bounds: IntArray,
    lengths: IntArray,
    scale: float,
    rank: int,
    size: int,
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp. See `depthchart_kernels.paged_attention`."""
    check_device(q, k_cache, v_cache)
    check_size("head size", q.shape[2], 576)
    check_size("value size", v_cache.shape[3], 512)
    if k_cache.stride(3) != 1 or v_cache.stride(3) != 1:
        raise ValueError("impl='triton' supports caches whose last dimension is contiguous; use 'chunked'")
    repeat, heads = q.shape[1] // k_cache.shape[2], k_cache.shape[2]
    rows = max(ROWS, triton.next_power_of_2(repeat))
    per_block = rows // repeat
    output = q.new_zeros([*q.shape[:2], v_cache.shape[3]])
    lse = q.new_full(q.shape[:2], -torch.inf, dtype=torch.float32)
    counts = np.diff(bounds)
    blocks = -(-counts // per_block)
    owner = np.repeat(np.arange(len(counts)), blocks)
    skip = (np.arange(len(owner)) - np.repeat(np.cumsum(blocks) - blocks, blocks)) * per_block
    first = bounds[owner] + skip
    listed = [
        owner,
        first,
        np.minimum(counts[owner] - skip, per_block),
        lengths[owner] - counts[owner] + skip,
    ]
    if len(owner):
        warps, stages = launch(q.shape[2])
        table = torch.from_numpy(np.column_stack(listed).astype(np.int64)).to(q.device)
        attend_kernel[(len(owner), heads)](
            q.contiguous(), k_cache, v_cache, page_table.contiguous(), table, output, lse, scale, heads, repeat,
            q.shape[2], v_cache.shape[3], k_cache.shape[1], page_table.shape[1], rank, size,
            *k_cache.stride()[:3], *v_cache.stride()[:3], M=rows, BN=KEYS, BD=power_of_two(q.shape[2]),
            BDV=power_of_two(v_cache.shape[3]), KIND=kind_of(q), num_warps=warps, num_stages=stages,
        )  # fmt: skip
    return output, lse


def merge(outputs: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Combine partial results. See `depthchart_kernels.merge_attention`."""
    check_device(outputs, lse)
    parts, tokens, heads, size = outputs.shape
    output = outputs.new_empty(outputs.shape[1:])
    total = lse.new_empty(lse.shape[1:], dtype=torch.float32)
    if tokens * heads:
        merge_kernel[(tokens * heads,)](
            *contiguous(outputs, lse),
            output,
            total,
            tokens * heads,
            size,
            parts,
            BDV=power_of_two(size),
        )
    return output, total
