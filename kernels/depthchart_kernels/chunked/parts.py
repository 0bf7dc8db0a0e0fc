"""The loop over waves that both delta rules share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from depthchart_kernels.batch import IntArray
from depthchart_kernels.chunked.walk import Rows, Scratch, Segment, batches, store_advanced

__all__ = ["Parts", "walk"]


@dataclass(frozen=True, eq=False)
class Parts:
    """What the loop needs of a segment of n chunks of C tokens. A chunk's rows are B blocks of w: B · w = C.

    ``cut`` (chunks, depth) gives ``keyed`` and ``decay`` of these chunks as if they ended after ``depth`` tokens; keyed
    has so many rows.
    """

    rows: Tensor  # [n, H, B, 2, w, K], exp G times k and q
    v: Tensor  # [n, H, C, V]
    tri: Tensor  # [n, H, C, C]
    scores: Tensor  # [n, H, C, C], A
    keyed: Tensor  # [n, H, C, K], exp(G_C − G) k
    decay: Tensor  # [n, H, 1 or K, 1], exp G_C
    scale: float
    cut: Callable[[Rows, int], tuple[Tensor, Tensor]]


def walk(
    parts: Parts, segment: Segment, state: Tensor, pool: Tensor | None, scratch: Scratch, out: Tensor
) -> None:
    """Outputs into ``out`` [n, H, C, V]; ``state`` [sequences, H, K, V] is advanced in place."""
    (n, heads, width, size), kind = parts.v.shape, parts.tri.dtype
    blocks, _, rows, dim = parts.rows.shape[2:]
    sizes = [b - a for a, b in segment.waves]
    flat = [m * heads for m in sizes]
    read = scratch("read", [n, heads, blocks, 2, rows, size], kind)
    rest, u = (scratch(name, [n, heads, width, size], kind) for name in ("rest", "u"))
    split = (blocks, rows)
    waves = zip(
        parts.rows.view(n * heads, 2 * width, dim).split(flat),
        read.view(n * heads, 2 * width, size).split(flat),
        read[:, :, :, 0].split(sizes),
        parts.v.unflatten(2, split).split(sizes),
        rest.unflatten(2, split).split(sizes),
        rest.view(n * heads, width, size).split(flat),
        parts.tri.flatten(0, 1).split(flat),
        u.view(n * heads, width, size).split(flat),
        parts.decay.split(sizes),
        parts.keyed.flatten(0, 1).mT.split(flat),
        segment.writes,
        strict=True,
    )
    first = 0
    for m, (x, sees, keys_see, v, rest_of, wave_rest, tri, wave_u, decay, keyed, writes) in zip(
        sizes, waves, strict=True
    ):
        now = state[:m]
        flat_now = now.flatten(0, 1)
        torch.bmm(x, flat_now, out=sees)
        torch.sub(v, keys_see, out=rest_of)
        torch.bmm(tri, wave_rest, out=wave_u)
        if pool is not None and len(writes):
            _snapshot(parts, first, writes, now, u, pool)
        now.mul_(decay)
        flat_now.baddbmm_(keyed, wave_u)
        first += m
    inner = torch.bmm(parts.scores.flatten(0, 1), u.flatten(0, 1), out=rest.flatten(0, 1))
    inner, sees, out = inner.view(n, heads, *split, size), read[:, :, :, 1], out.unflatten(2, split)
    torch.add(inner, sees, alpha=parts.scale, out=out)


def _snapshot(parts: Parts, first: int, writes: IntArray, state: Tensor, u: Tensor, pool: Tensor) -> None:
    """Write the wanted states of one wave: rows of (position, tokens into the chunk, slot)."""
    for place, depth, slots in batches(writes):
        chunks = slice(place.start + first, place.stop + first) if isinstance(place, slice) else place + first
        keyed, decay = parts.cut(chunks, depth)
        rows = u[chunks, :, :depth].flatten(0, 1)
        store_advanced(pool, slots, state[place], decay, keyed.mT.flatten(0, 1), rows)
