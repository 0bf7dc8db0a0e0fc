"""Scores of a chunk whose decay differs from channel to channel: <x_i, exp(G_i − G_j) k_j> as matrix products.

exp(G_i − G_j) has to be split into a factor of row i and one of column j. Between blocks of 16 tokens the split is at
a border between i and j, where both exponents are ≤ 0 and nothing can overflow, whatever the gate (the halving
ladder). Inside a block it is at the block's start, and column factors are exp of something positive. Row i may use
that while the decay from the block's start to i stays below LIMIT in every channel; the other rows climb the ladder
down to 4 tokens and take those pair by pair. The choice for row i never looks at later tokens, so that a state does
not depend, not even in its last bit, on what follows it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from depthchart_kernels.chunked.walk import exp2, exp2_few

__all__ = ["channel_scores"]

BLOCK = 16
LIMIT = 60.0  # bits (41 nats): a float32 exponent below 64 is exact to 2e-6, and 2^60 is far from overflow


def channel_scores(q: Tensor, k: Tensor, sums: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores of k and of q against k, then k ∘ exp G and q ∘ exp G.

    q, k [n, H, C, K]; sums G [n, H, C, K] in float64 and in bits, from the chunk's start. Scores are [n, H, C, C], not yet masked:
    entries above the diagonal hold anything, NaN too.
    """
    n, heads, width, dim = k.shape
    blocks = width // BLOCK
    kind = k.dtype
    split = (n, heads, blocks, BLOCK, dim)
    ends = sums[:, :, BLOCK - 1 :: BLOCK]  # [n, H, blocks, K]
    begins = torch.cat([torch.zeros_like(ends[:, :, :1]), ends[:, :, :-1]], dim=2)
    local = sums.unflatten(2, (blocks, BLOCK)) - begins[:, :, :, None]
    rise = exp2(local, kind)  # from the block's start to the row, ≤ 1
    # [2, n, H, blocks, 16, K]: k and q weighted from the block's start
    rows = torch.empty([2, *split], dtype=kind, device=k.device)
    torch.mul(k.unflatten(2, (blocks, BLOCK)), rise, out=rows[0])
    torch.mul(q.unflatten(2, (blocks, BLOCK)), rise, out=rows[1])
    scores = _diagonal(q, k, local, rise, rows)
    if blocks == 1:
        return scores[0][:, :, 0], scores[1][:, :, 0], rows[0].view(k.shape), rows[1].view(k.shape)
    full = torch.zeros([2, n, heads, width, width], dtype=kind, device=k.device)
    tiles = full.view(2, n, heads, blocks, BLOCK, blocks, BLOCK)
    for i in range(blocks):
        tiles[:, :, :, i, :, i] = scores[:, :, :, i]
    fall = exp2(local[:, :, :, -1:] - local, kind)  # from the row to the block's end, ≤ 1
    columns = torch.empty(split, dtype=kind, device=k.device)
    torch.mul(k.unflatten(2, (blocks, BLOCK)), fall, out=columns)
    _between(rows, columns, begins, ends, full)
    start = exp2_few(begins, kind)[:, :, :, None]
    return full[0], full[1], (rows[0] * start).view(k.shape), (rows[1] * start).view(k.shape)


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
            border = ends.view(n, heads, pairs, 2, half, dim)[:, :, :, 0, -1:]
            reach = exp2_few(begins.view(n, heads, pairs, 2, half, dim)[:, :, :, 1] - border, kind)
            left = exp2_few(border - ends.view(n, heads, pairs, 2, half, dim)[:, :, :, 0], kind)
            later, earlier = later * reach[..., None, :], earlier * left[..., None, :]
        x = later.reshape(2, n * heads * pairs, size, dim)
        y = earlier.reshape(n * heads * pairs, size, dim).mT
        tiles = full.view(2, n, heads, pairs, 2, size, pairs, 2, size)
        for which in range(2):
            product = torch.bmm(x[which], y).view(n, heads, pairs, size, size)
            for p in range(pairs):
                tiles[which, :, :, p, 1, :, p, 0] = product[:, :, p]
        half *= 2


def _diagonal(q: Tensor, k: Tensor, local: Tensor, rise: Tensor, rows: Tensor) -> Tensor:
    """Scores inside blocks [2, n, H, blocks, 16, 16]: at the block's start where the range allows, else the ladder."""
    shape = local.shape
    columns = torch.empty(shape, dtype=k.dtype, device=k.device)
    torch.div(k.unflatten(2, (-1, BLOCK)), rise, out=columns)
    columns = columns.view(-1, BLOCK, shape[-1]).mT
    scores = torch.empty([2, *shape[:4], BLOCK], dtype=k.dtype, device=k.device)
    for which in range(2):
        torch.bmm(rows[which].view(-1, BLOCK, shape[-1]), columns, out=scores[which].view(-1, BLOCK, BLOCK))
    hard = (local[:, :, :, -1].amin(-1) < -LIMIT).nonzero(as_tuple=True)
    if len(hard[0]):
        steep = local[hard]
        keep = (steep.amin(-1) >= -LIMIT)[..., None]
        for which, x in enumerate((k, q)):
            ladder = _ladder(x.unflatten(2, (-1, BLOCK))[hard], k.unflatten(2, (-1, BLOCK))[hard], steep)
            scores[which][hard] = torch.where(keep, scores[which][hard], ladder)
    return scores


def _ladder(x: Tensor, k: Tensor, sums: Tensor) -> Tensor:
    """Scores of some blocks [blocks, size, K], any gate: halves against each other, then each half by itself."""
    size = x.shape[1]
    if size <= 4:
        weights = exp2((sums[:, :, None] - sums[:, None]).clamp_(max=0.0), x.dtype)
        return torch.einsum("bik,bjk,bijk->bij", x, k, weights)
    half = size // 2
    result = torch.zeros([len(x), size, size], dtype=x.dtype, device=x.device)
    border = sums[:, half - 1 : half]
    later = x[:, half:] * exp2(sums[:, half:] - border, x.dtype)
    earlier = k[:, :half] * exp2(border - sums[:, :half], x.dtype)
    result[:, half:, :half] = later @ earlier.mT
    for part in (slice(0, half), slice(half, size)):
        result[:, part, part] = _ladder(x[:, part], k[:, part], sums[:, part])
    return result
