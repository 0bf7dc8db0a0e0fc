"""Scores of a chunk whose decay differs from channel to channel: <x_i, exp(G_i − G_j) k_j> as matrix products.

exp(G_i − G_j) has to be split into a factor of row i and one of column j. Between blocks of 16 tokens the split is at
a border between i and j, where both exponents are ≤ 0 and nothing can overflow, whatever the gate (the halving
ladder). Inside a block it is at the block's start, and column factors are exp of something positive. Row i may use
that while the decay from the block's start to i stays below LIMIT in every channel; the other rows are split at the
block's middle and so on, down to single tokens. The choice for row i never looks at later tokens, so that a state does
not depend, not even in its last bit, on what follows it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import hardshrink, threshold

from depthchart_kernels.chunked.walk import Scratch, exp2, exp2_few

__all__ = ["channel_scores"]

BLOCK = 16
LIMIT = 58.0  # bits (40 nats): above TINY; a float32 exponent below 64 is exact to 2e-6
SMALL = 2.0**-40  # a weight between blocks, or a decay up to a block, that counts as 0


def channel_scores(
    q: Tensor, k: Tensor, sums: Tensor, scratch: Scratch
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores of k and of q against k, then k ∘ exp G and q ∘ exp G.

    q, k [n, H, C, K]; sums G [n, H, C, K] in float64 and in bits, from the chunk's start.
    Scores are [n, H, C, C], not yet masked: entries above the diagonal hold anything, NaN too.
    """
    n, heads, width, dim = k.shape
    blocks, kind = width // BLOCK, k.dtype
    split = (n, heads, blocks, BLOCK, dim)
    ends = sums[:, :, BLOCK - 1 :: BLOCK]  # [n, H, blocks, K]
    begins = torch.cat([torch.zeros_like(ends[:, :, :1]), ends[:, :, :-1]], dim=2)
    local = scratch("local", split, torch.float64)
    torch.sub(sums.unflatten(2, (blocks, BLOCK)), begins[:, :, :, None], out=local)
    both = scratch("both", [2, n, heads, width, dim], kind)  # k and q, contiguous from here on
    both[0], both[1] = k, q
    flat = both.view(2, -1, BLOCK, dim)
    scores, rows = _diagonal(flat, flat[0], local.view(-1, BLOCK, dim), scratch)
    if blocks == 1:
        return *scores.view(2, n, heads, width, width), *rows.view(2, *k.shape)
    full = scratch("full", [2, n, heads, width, width], kind).zero_()
    tiles = full.view(2, n, heads, blocks, BLOCK, blocks, BLOCK)
    for i in range(blocks):
        tiles[:, :, :, i, :, i] = scores.view(2, *split[:4], BLOCK)[:, :, :, i]
    left = scratch("left", split, torch.float64)
    torch.sub(local[:, :, :, -1:], local, out=left)
    fall = exp2(left, scratch("fall", split, kind))  # from the row to the block's end, ≤ 1
    columns = threshold(fall, SMALL, 0.0, inplace=True).mul_(both[0].view(split))
    rows = rows.view(2, *split)
    _between(rows, columns, begins, ends, full)
    rows.mul_(threshold(exp2_few(begins, kind), SMALL, 0.0)[:, :, :, None])
    return *full, *rows.view(2, *k.shape)


def _between(rows: Tensor, columns: Tensor, begins: Tensor, ends: Tensor, full: Tensor) -> None:
    """Scores of later halves against earlier halves, at every level from two blocks up to the whole chunk."""
    _, n, heads, blocks, _, dim = rows.shape
    kind = rows.dtype
    half = 1
    while half < blocks:
        pairs, size = blocks // (2 * half), half * BLOCK
        later = rows.view(2, n, heads, pairs, 2, half, BLOCK, dim)[:, :, :, :, 1]
        earlier = columns.view(n, heads, pairs, 2, half, BLOCK, dim)[:, :, :, 0]
        if half > 1:
            halves = (n, heads, pairs, 2, half, dim)
            border = ends.unflatten(2, halves[2:5])[:, :, :, 0, -1:]
            reach = exp2_few(begins.unflatten(2, halves[2:5])[:, :, :, 1] - border, kind)
            left = exp2_few(border - ends.unflatten(2, halves[2:5])[:, :, :, 0], kind)
            later = hardshrink(later * reach[..., None, :], SMALL)
            earlier = hardshrink(earlier * left[..., None, :], SMALL)
        x = later.flatten(4, 5).flatten(1, 3)
        y = earlier.flatten(3, 4).flatten(0, 2).mT
        tiles = full.view(2, n, heads, pairs, 2, size, pairs, 2, size)
        for which in range(2):
            product = torch.bmm(x[which], y).view(n, heads, pairs, size, size)
            for p in range(pairs):
                tiles[which, :, :, p, 1, :, p, 0] = product[:, :, p]
        half *= 2


def _diagonal(x: Tensor, k: Tensor, local: Tensor, scratch: Scratch) -> tuple[Tensor, Tensor]:
    """Scores [2, blocks, size, size] inside blocks, and x weighted from the block's start.

    x [2, blocks, size, K] holds k and q; k and local sums are [blocks, size, K].
    """
    kind, size = k.dtype, k.shape[1]
    rise = _power(local, scratch(f"rise {size}", k.shape, kind))  # from the block's start to the row, ≤ 1
    rows = torch.mul(x, rise, out=scratch(f"rows {size}", x.shape, kind))
    columns = torch.div(k, rise, out=rise).mT
    scores = scratch(f"diagonal {size}", [*x.shape[:3], size], kind)
    for which in range(2):
        torch.bmm(rows[which], columns, out=scores[which])
    hard = (local[:, -1].amin(-1) < -LIMIT).nonzero()[:, 0]
    if len(hard):
        steep = local[hard]
        keep = (steep.amin(-1) >= -LIMIT)[..., None]
        scores[:, hard] = torch.where(keep, scores[:, hard], _halves(x[:, hard], k[hard], steep, scratch))
    return scores, rows


def _halves(x: Tensor, k: Tensor, local: Tensor, scratch: Scratch) -> Tensor:
    """What `_diagonal` gives as scores, split at the middle instead of the start, then each half by itself."""
    kind, size = k.dtype, k.shape[1]
    if size == 1:
        return (x * k).sum(-1, keepdim=True)
    half = size // 2
    result = torch.zeros([*x.shape[:3], size], dtype=kind, device=x.device)
    border = local[:, half - 1 : half]
    after = local[:, half:] - border
    factor = scratch(f"factor {size}", after.shape, kind)
    earlier = k[:, :half] * _power(border - local[:, :half], factor)
    result[:, :, half:, :half] = (x[:, :, half:] * _power(after, factor)) @ earlier.mT
    x, k = (torch.cat([z[..., :half, :], z[..., half:, :]], dim=-3) for z in (x, k))
    inner, _ = _diagonal(x, k, torch.cat([local[:, :half], after]), scratch)
    result[:, :, :half, :half], result[:, :, half:, half:] = inner.chunk(2, dim=1)
    return result


def _power(bits: Tensor, out: Tensor) -> Tensor:
    """2^bits into ``out``, by the quick way where channels fill whole vectors."""
    return exp2(bits, out) if bits.shape[-1] % 32 == 0 else out.copy_(exp2_few(bits, out.dtype))
