"""Pages of KV and slots of state: what a step allocates, writes, gathers and copies.

A KV cache is [pages, page_size, heads, dim]; token slot t of it is row t % page_size of page t // page_size. A page
table is [rows, most pages] of page numbers, one row a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from depthchart_kernels.batch import IntArray, Integers, as_integers
from depthchart_kernels.checks import Backend, check_shape, choose

__all__ = ["Extended", "alloc_extend", "copy_states", "gather_kv", "scatter_kv", "write_page_table"]


class Extended(NamedTuple):
    """``token_slots`` [new tokens] in batch order, and how many of the free pages were taken, from the front."""

    token_slots: IntArray
    pages_used: int


def alloc_extend(
    prefix_lengths: Integers, lengths: Integers, last_pages: Integers, free_pages: Integers, page_size: int
) -> Extended:
    """Token slots for the tokens that each request of a step adds.

    A request first fills the page that its prefix ends in, then takes free pages in their order.

    Parameters
    ----------
    prefix_lengths, lengths:
        [requests], tokens held already and tokens held after the step.
    last_pages:
        [requests], the page that the prefix ends in; only read where the prefix is no multiple of page_size.
    free_pages:
        [any], pages that may be taken.
    page_size:
        tokens a page.

    Raises ``ValueError`` for lengths that fall, a missing last page, a page listed twice, or too few free pages.
    """
    prefix = as_integers("prefix_lengths", prefix_lengths)
    total = as_integers("lengths", lengths, len(prefix))
    last = as_integers("last_pages", last_pages, len(prefix))
    free = as_integers("free_pages", free_pages)
    if page_size < 1:
        raise ValueError(f"page_size is {page_size}; legal are 1 and more")
    _check_extend(prefix, total, last, free, page_size)
    first = -(-prefix // page_size)  # the first page, counted within the request, that is new
    need = np.maximum(-(-total // page_size) - first, 0)
    if need.sum() > len(free):
        raise ValueError(f"{need.sum()} pages are needed, but free_pages has {len(free)}")
    offset = np.concatenate([[0], np.cumsum(need)])
    counts = total - prefix
    owner = np.repeat(np.arange(len(prefix)), counts)
    position = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + prefix[owner]
    fresh = position // page_size - first[owner]
    pages = np.where(fresh < 0, last[owner], np.append(free, 0)[np.maximum(fresh + offset[owner], 0)])
    return Extended(pages * page_size + position % page_size, int(need.sum()))


def _check_extend(prefix: IntArray, total: IntArray, last: IntArray, free: IntArray, page_size: int) -> None:
    for row in np.flatnonzero((prefix < 0) | (total < prefix))[:1]:
        raise ValueError(
            f"lengths[{row}] is {total[row]} with a prefix of {prefix[row]} tokens; it must be {prefix[row]} or more"
        )
    for row in np.flatnonzero((prefix % page_size != 0) & (total > prefix) & (last < 0))[:1]:
        raise ValueError(
            f"last_pages[{row}] is {last[row]}, but a prefix of {prefix[row]} tokens ends inside a page"
        )
    values, counts = np.unique(free, return_counts=True)
    for value in values[counts > 1][:1]:
        raise ValueError(f"free_pages lists page {value} twice")
    for value in values[values < 0][:1]:
        raise ValueError(f"free_pages lists page {value}; a page is 0 or more")


def write_page_table(
    page_table: Tensor,
    rows: Integers,
    prefix_lengths: Integers,
    lengths: Integers,
    token_slots: Integers,
    page_size: int,
) -> None:
    """Enter the pages of new tokens (as `alloc_extend` gave them) into ``page_table`` [rows, most pages], in place.

    Raises ``ValueError`` if a row is not there, if a request has more pages than the table has columns, or if the
    number of token slots is not the number of new tokens.
    """
    row = as_integers("rows", rows)
    prefix = as_integers("prefix_lengths", prefix_lengths, len(row))
    total = as_integers("lengths", lengths, len(row))
    counts = total - prefix
    slots = as_integers("token_slots", token_slots)
    if len(slots) != counts.sum():
        raise ValueError(f"token_slots has {len(slots)} entries, but the requests add {counts.sum()} tokens")
    for i in np.flatnonzero((row < 0) | (row >= page_table.shape[0]))[:1]:
        raise ValueError(f"rows[{i}] is {row[i]}; page_table has rows 0 to {page_table.shape[0] - 1}")
    for i in np.flatnonzero(total > page_table.shape[1] * page_size)[:1]:
        raise ValueError(
            f"lengths[{i}] is {total[i]}, but {page_table.shape[1]} columns hold {page_table.shape[1] * page_size} tokens"
        )
    owner = np.repeat(np.arange(len(row)), counts)
    position = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + prefix[owner]
    where = (torch.from_numpy(row[owner]), torch.from_numpy(position // page_size))
    pages = torch.from_numpy(slots // page_size)
    device = page_table.device
    page_table[where[0].to(device), where[1].to(device)] = pages.to(device, page_table.dtype)


def scatter_kv(
    values: Tensor, cache: Tensor, token_slots: Integers | Tensor, *, impl: Backend = "auto"
) -> None:
    """Write ``values`` [tokens, heads, dim] to token slots of ``cache`` [pages, page_size, heads, dim], in place.

    A slot of −1 is padding and writes nothing. Slots must differ.
    """
    slots = _token_slots(values, cache, token_slots)
    if choose(impl, values) == "triton":
        from depthchart_kernels.triton.paging import scatter

        scatter(values, cache, slots)
        return
    keep = slots >= 0
    slots = slots[keep]
    cache[slots // cache.shape[1], slots % cache.shape[1]] = values[keep].to(cache.dtype)


def gather_kv(cache: Tensor, token_slots: Integers | Tensor, *, impl: Backend = "auto") -> Tensor:
    """Read token slots of ``cache`` [pages, page_size, heads, dim]: [tokens, heads, dim]; zeros for a slot of −1."""
    slots = _token_slots(None, cache, token_slots)
    if choose(impl, cache) == "triton":
        from depthchart_kernels.triton.paging import gather

        return gather(cache, slots)
    held = slots.clamp(min=0)
    return cache[held // cache.shape[1], held % cache.shape[1]].masked_fill_((slots < 0)[:, None, None], 0.0)


def _token_slots(values: Tensor | None, cache: Tensor, token_slots: Integers | Tensor) -> Tensor:
    """Slots as int64 on the cache's device; a tensor that lies there already is taken as it is, unchecked."""
    check_shape("cache", cache, ["pages", "page_size", "heads", "dim"])
    if isinstance(token_slots, Tensor) and token_slots.is_cuda:
        slots = token_slots.long()
    else:
        slots = torch.from_numpy(as_integers("token_slots", token_slots))
        most = cache.shape[0] * cache.shape[1]
        for i in ((slots < -1) | (slots >= most)).nonzero()[:1, 0].tolist():
            raise ValueError(
                f"token_slots[{i}] is {int(slots[i])}; cache has slots 0 to {most - 1}, −1 is padding"
            )
        slots = slots.to(cache.device)
    if values is not None:
        check_shape("values", values, [len(slots), cache.shape[2], cache.shape[3]], cache)
        used = slots[slots >= 0]
        if not slots.is_cuda and len(used.unique()) != len(used):
            raise ValueError("token_slots names a slot twice; every written slot must be its own")
    return slots


def copy_states(
    pools: Tensor | Sequence[Tensor], src_slots: Integers, dst_slots: Integers, *, impl: Backend = "auto"
) -> None:
    """Copy slots of one pool or of several (state and window of every layer) to other slots, in place.

    A source of −1 writes zeros. All sources are read before anything is written, so a permutation is legal.

    Raises ``ValueError`` if a slot is not there or a destination is named twice.
    """
    listed = [pools] if isinstance(pools, Tensor) else list(pools)
    src = as_integers("src_slots", src_slots)
    dst = as_integers("dst_slots", dst_slots, len(src))
    fewest = min((pool.shape[0] for pool in listed), default=0)
    for name, slots, low in (("src_slots", src, -1), ("dst_slots", dst, 0)):
        for i in np.flatnonzero((slots < low) | (slots >= fewest))[:1]:
            raise ValueError(f"{name}[{i}] is {slots[i]}; legal are {low} to {fewest - 1}")
    values, counts = np.unique(dst, return_counts=True)
    for value in values[counts > 1][:1]:
        raise ValueError(f"dst_slots names slot {value} twice")
    overlap = bool(np.isin(src, dst).any())
    for pool in listed:
        where, source = (torch.from_numpy(x).to(pool.device) for x in (dst, src))
        if choose(impl, pool) == "triton" and not overlap:
            from depthchart_kernels.triton.paging import copy

            copy(pool, source, where)
            continue
        taken = pool[source.clamp(min=0)]
        pool[where] = taken.masked_fill_((source < 0).view(-1, *[1] * (pool.ndim - 1)), 0.0)
