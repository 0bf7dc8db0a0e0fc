"""Attention on paged KV, a share for each DCP rank: plain torch, clear rather than fast.

Letters: D local ranks, T tokens, H query heads, G key/value heads (H a multiple of G; query head h reads key head
h // (H / G)), M places of one rank's share of a context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from depthchart.device import RowTable

__all__ = ["AttentionPlan", "Context", "attend", "plan_attention"]

BLOCK = 256  # queries of a long prefill row whose scores are held at once


@dataclass(frozen=True)
class Context:
    """Rows that attend together: one prefill row, or all decode rows.

    ``first``: their first token in the packed batch; ``length``: tokens of each row; ``end``: tokens of the longest
    context, these included; ``ranks``: of the whole group. ``positions`` [rows, length]: of the queries; ``places``
    [D, rows, M]: of the context's tokens in each rank's pool; ``depths`` [D, M]: their positions in the text.
    """

    first: int
    length: int
    end: int
    ranks: int
    positions: Tensor
    places: Tensor
    depths: Tensor


AttentionPlan = tuple[Context, ...]


def plan_attention(
    table: RowTable,
    rows: Sequence[int],
    spans: Sequence[tuple[int, int]],
    prefills: int,
    ranks: int,
    local: Sequence[int],
    device: str | torch.device = "cpu",
) -> AttentionPlan:
    """One context for each of the first ``prefills`` rows, and one for all decode rows together.

    ``spans``: token positions [start, end) that each row runs now; ``table`` lies on the host.
    """
    found = []
    at = 0
    for row, span in zip(rows[:prefills], spans[:prefills], strict=True):
        found.append(_context(table, [row], [span], at, ranks, local, device))
        at += span[1] - span[0]
    if prefills < len(rows):
        found.append(_context(table, rows[prefills:], spans[prefills:], at, ranks, local, device))
    return tuple(found)


def attend(
    plan: AttentionPlan, queries: Tensor, pool: Tensor, value_dim: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Partial attention of each local rank: (output [D, T, H, value_dim], lse [D, T, H] in natural log).

    ``queries`` [T, H, K]; ``pool`` [D, places, G, K + value_dim], or [D, places, G, K] where the first ``value_dim``
    channels of a key are its value (a latent). A rank that holds nothing for a query has lse -inf and zeros.
    """
    d, (t, h, k) = pool.shape[0], queries.shape
    output = queries.new_empty([d, t, h, value_dim])
    lse = queries.new_empty([d, t, h])
    for context in plan:
        rows = context.positions.shape[0]
        for first in range(0, context.length, BLOCK):
            length = min(BLOCK, context.length - first)
            part = slice(context.first + first, context.first + first + rows * length)
            seen = -(-(context.end - (context.length - first - length)) // context.ranks)
            kv = _gather(pool, context.places[:, :, :seen])
            values = kv[..., :value_dim] if kv.shape[-1] == k else kv[..., k:]
            positions = context.positions[:, first : first + length]
            q = queries[part].unflatten(0, (rows, length))
            o, z = _softmax(q, kv[..., :k], values, positions, context.depths[:, :seen], scale)
            output[:, part], lse[:, part] = o.flatten(1, 2), z.flatten(1, 2)
    return output, lse


def _context(
    table: RowTable,
    rows: Sequence[int],
    spans: Sequence[tuple[int, int]],
    first: int,
    ranks: int,
    local: Sequence[int],
    device: str | torch.device,
) -> Context:
    length = spans[0][1] - spans[0][0]
    most = -(-max(end for _, end in spans) // ranks)
    position = torch.arange(most * ranks)
    width = table.pages.shape[1]
    pages = table.pages[torch.tensor(list(rows))].long()
    page = pages[:, (position // table.page).clamp(max=width - 1)].clamp(min=0)  # beyond a row's end: masked
    slots = page * table.page + position % table.page
    places = (slots // ranks).unflatten(1, (most, ranks)).permute(2, 0, 1)[list(local)]
    depths = position.view(most, ranks).T[list(local)]
    starts = torch.tensor([start for start, _ in spans])
    queries = starts[:, None] + torch.arange(length)
    return Context(
        first,
        length,
        max(end for _, end in spans),
        ranks,
        queries.to(device),
        places.contiguous().to(device),
        depths.contiguous().to(device),
    )


def _gather(pool: Tensor, places: Tensor) -> Tensor:
    """[D, rows, M, G, channels] out of the pools of all local ranks."""
    rank = torch.arange(pool.shape[0], device=pool.device)[:, None, None]
    return pool[rank, places]


def _softmax(
    q: Tensor, keys: Tensor, values: Tensor, positions: Tensor, depths: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """q [rows, L, H, K], keys [D, rows, M, G, K], values [D, rows, M, G, V], positions [rows, L], depths [D, M]."""
    d, rows, m, g, k = keys.shape
    length, heads = q.shape[1:3]
    kind = torch.float64 if q.dtype == torch.float64 else torch.float32
    visible = depths[:, None, None, :] <= positions[None, :, :, None]  # [D, rows, L, M]
    keys, values = (x.to(kind).permute(0, 1, 3, 2, 4) for x in (keys, values))  # [D, rows, G, M, .]
    grouped = (q.to(kind) * scale).view(rows, length, g, heads // g, k).permute(0, 2, 3, 1, 4)
    scores = grouped.reshape(1, rows, g, -1, k) @ keys.mT  # [D, rows, G, R·L, M]
    scores = scores.unflatten(3, (-1, length)).masked_fill_(~visible[:, :, None, None], -torch.inf)
    highest = scores.amax(-1)
    shift = highest.masked_fill(highest == -torch.inf, 0.0)
    weights = scores.sub_(shift[..., None]).exp_()
    total = weights.sum(-1)
    # Places beyond a row's end are never written: their NaN must not meet a weight of 0.
    held = (depths[:, None] <= positions.amax(1)[None, :, None])[:, :, None, :, None]
    summed = weights.flatten(3, 4) @ values.masked_fill(~held, 0.0)
    summed = summed.unflatten(3, (-1, length)) / total.masked_fill(total == 0, 1.0)[..., None]
    lse = torch.where(total > 0, shift + total.log(), -torch.inf)
    order = (0, 1, 4, 2, 3)  # [D, rows, L, G, R]
    return summed.permute(*order, 5).flatten(3, 4).to(q.dtype), lse.permute(*order).flatten(3, 4).to(q.dtype)
