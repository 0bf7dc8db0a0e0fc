"""What the walk over chunks needs where decay differs from channel to channel (kda).

<x_i, exp(G_i − G_j) k_j> has to be split into a factor of row i and one of column j. No sums of log decay are made:
factors are products of the tokens' decays, all of them ≤ 1, so that nothing cancels and float32 is enough. Products
over the tokens of a block of 8 come from a tree whose stages double their reach.

Between blocks the split is at a border between i and j: the row's factor reaches back to the border, the column's
forward to it, and neither can overflow, whatever the gate. Inside a block it is at the block's start, and the column
is divided by its factor. Row i may use that while no channel has decayed below FLOOR from the block's start to i; the
other rows are split at a border, too: the tree's stages hold those factors for every pair of tokens (`_ladder`). The
choice for row i never looks at later tokens, so that a state does not depend, not even in its last bit, on what
follows it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import threshold

from depthchart_kernels.chunked.parts import Parts
from depthchart_kernels.chunked.walk import LOG2E, TINY, Rows, Scratch, exp2_few, inverse

__all__ = ["channel_parts"]

BLOCK = 8
FLOOR = (
    2.0**-58
)  # a decay that may still be divided by: above TINY, and its inverse leaves float32 room for any key
SMALL = (
    2.0**-40
)  # a decay over whole blocks that counts as 0, so that its products with others stay normal numbers
STEPS = 2.0**-15  # 8 decays above it have a product that is a normal number


def channel_parts(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor, scale: float, scratch: Scratch
) -> Parts:
    """Everything that does not need the state: q, k [n, H, C, K], v [n, H, C, V], beta [n, H, C], g [n, C, H, K]."""
    n, heads, width, dim = k.shape
    kind, blocks = k.dtype, width // BLOCK
    split = (n, heads, blocks, BLOCK, dim)
    decays = _decays(g.transpose(1, 2), scratch("decays", k.shape, kind)).view(split)
    k, q = k.unflatten(2, split[2:4]), q.unflatten(2, split[2:4])
    rise, ends, hard = _rise(decays, scratch("rise", split, kind))
    rows = scratch("rows", [n, heads, blocks, 2, BLOCK, dim], kind)
    torch.mul(k, rise, out=rows[:, :, :, 0])
    torch.mul(q, rise, out=rows[:, :, :, 1])
    columns = torch.div(k, rise, out=scratch("columns", split, kind))
    scores = scratch("diagonal", [n * heads * blocks, 2 * BLOCK, BLOCK], kind)
    torch.bmm(rows.view(-1, 2 * BLOCK, dim), columns.view(-1, BLOCK, dim).mT, out=scores)
    columns.mul_(ends[..., None, :])
    if len(hard[0]):
        _replace(scores.view(n, heads, blocks, 2, BLOCK, BLOCK), columns, q, k, decays, rise, hard, scratch)
    full = scratch("full", [2, n, heads, width, width], kind)
    tiles = full.view(2, n, heads, blocks, BLOCK, blocks, BLOCK).diagonal(0, 3, 5)
    tiles.copy_(scores.view(n, heads, blocks, 2, BLOCK, BLOCK).permute(3, 0, 1, 4, 5, 2))
    _between(rows, columns, ends, full)
    if blocks > 1:
        rows[:, :, 1:].mul_(_before(ends)[:, :, 1:, None, None])
    keyed, decay = _to_end(columns, ends)
    lower = full[0].mul_(beta[..., None]).tril_(-1)
    tri = inverse(lower, scratch("tri", lower.shape, kind)).mul_(beta[..., None, :])

    def cut(chunks: Rows, depth: int) -> tuple[Tensor, Tensor]:
        used = -(-depth // BLOCK)
        part = decays[chunks, :, :used].clone()
        part.view(part.shape[0], heads, -1, dim)[:, :, depth:] = 1.0
        keys = k[chunks, :, :used]
        rise, ends, hard = _rise(part, torch.empty_like(part))
        columns = torch.div(keys, rise).mul_(ends[..., None, :])
        if len(hard[0]):
            columns[hard] = keys[hard] * _falls(part[hard])
        keyed, decay = _to_end(columns, ends)
        return keyed[:, :, :depth], decay

    return Parts(rows, v, tri, full[1].tril_().mul_(scale), keyed, decay, scale, cut)


def _decays(g: Tensor, out: Tensor) -> Tensor:
    """exp of log decays; in float32 only where channels fill whole vectors, see `exp2`."""
    if g.shape[-1] % 32:
        return out.copy_(exp2_few(g.double() * LOG2E, out.dtype))
    if g.dtype == out.dtype:
        torch.mul(g, LOG2E, out=out)
    else:
        out.copy_(g).mul_(LOG2E)
    out.exp2_()
    return out if bool(out.amin() >= TINY) else threshold(out, TINY, 0.0, inplace=True)


def _rise(decays: Tensor, out: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Decay from the block's start to each row, that of whole blocks, and the places of blocks that go below FLOOR."""
    normal = bool(decays.amin() >= STEPS)
    size, half = decays.shape[-2], 1
    out.copy_(decays)
    while half < size:
        part = out.unflatten(-2, (-1, 2 * half))
        later = part[..., half:, :].mul_(part[..., half - 1 : half, :])
        if not normal:
            threshold(later, TINY, 0.0, inplace=True)
        half *= 2
    ends = out[..., -1, :]
    lowest = ends.amin(-1)
    if normal and bool((lowest < TINY).any()):
        threshold(out, TINY, 0.0, inplace=True)
    return out, ends, (lowest < FLOOR).nonzero(as_tuple=True)


def _replace(
    scores: Tensor,
    columns: Tensor,
    q: Tensor,
    k: Tensor,
    decays: Tensor,
    rise: Tensor,
    hard: tuple[Tensor, ...],
    scratch: Scratch,
) -> None:
    """Put right, in place, what a division by too small a decay has spoilt: all [n, H, blocks, ...]."""
    keep = rise.amin(-1) >= FLOOR
    if 2 * len(hard[0]) > keep.shape[:3].numel():  # gathering blocks would cost more than it saves
        found, fall = _ladder(q, k, decays, scratch)
        blocks = keep[..., -1, None, None]
        columns.copy_(fall.mul_(k)) if not blocks.any() else torch.where(
            blocks, columns, fall.mul_(k), out=columns
        )
        torch.where(keep[..., None, :, None], scores, found, out=scores)
        return
    keys = k[hard][:, None, None]
    found, fall = _ladder(q[hard][:, None, None], keys, decays[hard][:, None, None], scratch)
    columns[hard] = fall.mul_(keys)[:, 0, 0]
    scores[hard] = torch.where(keep[hard][:, None, :, None], scores[hard], found[:, 0, 0])


def _ladder(q: Tensor, k: Tensor, decays: Tensor, scratch: Scratch) -> tuple[Tensor, Tensor]:
    """Scores [..., 2, 8, 8] of k and q [..., 8, K] from splits at borders, and each row's decay to the block's end.

    Entries above the diagonal of the result hold anything.
    """
    *lead, size, dim = k.shape
    kind = k.dtype
    scores = scratch("ladder", [*lead, 2, size, size], kind)
    buffer = scratch("later", [*lead, size, dim], kind)
    scores[..., 1, :, :].diagonal(0, -2, -1).copy_(torch.mul(q, k, out=buffer).sum(-1))
    rise = scratch("ladder rise", decays.shape, kind).copy_(decays)
    fall = scratch("ladder fall", decays.shape, kind)
    half = 1
    while half < size:
        count = size // (2 * half)
        up, down, x, y = (z.unflatten(-2, (count, 2, half)) for z in (rise, fall, k, q))
        later = buffer.view(*lead, count, 2, half, dim)
        for which, rows in enumerate((x, y)):
            torch.mul(rows[..., 1, :, :], up[..., 1, :, :], out=later[..., which, :, :])
        if half == 1:
            found = later.mul_(x[..., :1, :, :]).sum(-1, keepdim=True)
        else:
            earlier = scratch("earlier", [*lead, count, half, dim], kind)
            torch.mul(x[..., 0, :, :], down[..., 0, :, :], out=earlier)
            found = torch.bmm(later.view(-1, 2 * half, dim), earlier.view(-1, half, dim).mT)
        tiles = scores.view(*lead, 2, count, 2, half, count, 2, half)[..., 1, :, :, 0, :].diagonal(0, -4, -2)
        tiles.copy_(found.view(*lead, count, 2, half, half).movedim(-4, -1))
        _stage(up, down)
        half *= 2
    return scores, fall


def _falls(decays: Tensor) -> Tensor:
    """Decay from each row [..., 8, K] to the block's end, by the same tree as in `_ladder`."""
    rise, fall = decays.clone(), torch.empty_like(decays)
    half = 1
    while half < decays.shape[-2]:
        _stage(*(z.unflatten(-2, (-1, 2, half)) for z in (rise, fall)))
        half *= 2
    return fall


def _stage(rise: Tensor, fall: Tensor) -> None:
    """Join neighbouring groups [..., count, 2, half, K]: later rows reach back through the earlier group, and so on.

    With groups of one row ``fall`` is not read: it is 1 there. The last ``rise`` is never read, and not made.
    """
    if fall.shape[-2] == 1:
        fall[..., 0, :, :] = rise[..., 1, :, :]
        fall[..., 1, :, :] = 1.0
    else:
        threshold(fall[..., 0, :, :].mul_(rise[..., 1, -1:, :]), TINY, 0.0, inplace=True)
    if rise.shape[-4] > 1:
        threshold(rise[..., 1, :, :].mul_(rise[..., 0, -1:, :]), TINY, 0.0, inplace=True)


def _between(rows: Tensor, columns: Tensor, ends: Tensor, full: Tensor) -> None:
    """Scores of later halves against earlier halves, at every level from two blocks up to the whole chunk."""
    n, heads, blocks, _, _, dim = rows.shape
    half = 1
    while half < blocks:
        pairs, size = blocks // (2 * half), half * BLOCK
        later = rows.view(n, heads, pairs, 2, half, 2, BLOCK, dim)[:, :, :, 1]
        earlier = columns.view(n, heads, pairs, 2, half, BLOCK, dim)[:, :, :, 0]
        if half > 1:
            halves = ends.view(n, heads, pairs, 2, half, dim)
            later = later * _before(halves[:, :, :, 1])[..., None, None, :]
            earlier = earlier * _after(halves[:, :, :, 0])[..., None, :]
        found = torch.bmm(
            later.reshape(-1, 2 * size, dim) if half > 1 else later.flatten(0, 2).view(-1, 2 * size, dim),
            earlier.flatten(0, 2).flatten(1, 2).mT,
        )
        tiles = full.view(2, n, heads, pairs, 2, half, BLOCK, pairs, 2, size)
        tiles = tiles[:, :, :, :, 1, :, :, :, 0].diagonal(0, 3, 6)  # [2, n, heads, half, BLOCK, size, pairs]
        tiles.copy_(found.view(n, heads, pairs, half, 2, BLOCK, size).permute(4, 0, 1, 3, 5, 6, 2))
        half *= 2


def _before(ends: Tensor) -> Tensor:
    """Decay over all earlier blocks [..., blocks, K]."""
    result = torch.ones_like(ends)
    for b in range(1, ends.shape[-2]):
        torch.mul(result[..., b - 1, :], ends[..., b - 1, :], out=result[..., b, :])
    return threshold(result, SMALL, 0.0, inplace=True)


def _after(ends: Tensor) -> Tensor:
    """Decay over all later blocks [..., blocks, K]."""
    return _before(ends.flip(-2)).flip(-2)


def _to_end(columns: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """Keys [n, H, C, K] with the decay to the chunk's end (``columns`` in place), and the decay of the state."""
    decay = threshold(ends.double().prod(2), TINY, 0.0).to(ends.dtype)[..., None]
    if ends.shape[2] > 1:
        columns[:, :, :-1].mul_(_after(ends)[:, :, :-1, None])
    return columns.flatten(2, 3), decay
