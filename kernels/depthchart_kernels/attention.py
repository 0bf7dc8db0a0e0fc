"""Attention over pages of KV, for extend and decode, and the merge of partial results.

    s_ij = scale · <q_i, k_j>                  over the keys j that position i may see
    lse_i = log Σ_j exp(s_ij)
    o_i = Σ_j exp(s_ij − lse_i) v_j

With decode-context parallelism rank r of D holds the tokens whose position is r modulo D; each rank attends to its
own and `merge_attention` combines what they found, exactly.

Letters: T query tokens, HQ query heads, H key/value heads (HQ a multiple of H), D head size, DV value size.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from depthchart_kernels.batch import IntArray, Integers, as_integers
from depthchart_kernels.checks import Backend, check_groups, check_shape, choose

__all__ = ["Attended", "merge_attention", "paged_attention"]


class Attended(NamedTuple):
    """``output`` [T, HQ, DV] in q's dtype; ``lse`` [T, HQ], float32, natural log, −inf where nothing was seen."""

    output: Tensor
    lse: Tensor


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    cu_seqlens: Integers,
    kv_lengths: Integers,
    *,
    scale: float | None = None,
    dcp_rank: int = 0,
    dcp_size: int = 1,
    impl: Backend = "auto",
) -> Attended:
    """Causal attention of the last tokens of some sequences to all that these sequences hold.

    Parameters
    ----------
    q:
        [T, HQ, D], packed; one query a sequence is decode, more is extend.
    k_cache, v_cache:
        [pages, page_size, H, D] and [pages, page_size, H, DV]; a latent cache gives one tensor and a slice of it.
    page_table:
        [sequences, most pages], whole numbers; only the pages that hold keys are read.
    cu_seqlens:
        [sequences + 1], the packed queries of each sequence.
    kv_lengths:
        [sequences], tokens of each sequence, its queries included, on all ranks together.
    scale:
        D^−0.5 if absent.
    dcp_rank, dcp_size:
        this cache holds positions dcp_rank, dcp_rank + dcp_size, … of every sequence, packed without gaps.
    impl:
        "reference" (float64), "chunked" (plain torch), "triton" (CUDA), "auto" (by device).

    Raises ``ValueError`` for wrong shapes, lengths, ranks, or a page table that is too narrow.
    """
    check_shape("q", q, ["tokens", "query_heads", "head_dim"])
    check_shape("k_cache", k_cache, ["pages", "page_size", "heads", q.shape[2]], q)
    check_shape("v_cache", v_cache, [*k_cache.shape[:3], "value_dim"], q)
    check_groups("q", q.shape[1], "key/value heads", k_cache.shape[2])
    bounds = as_integers("cu_seqlens", cu_seqlens)
    lengths = as_integers("kv_lengths", kv_lengths, len(bounds) - 1)
    _check_lengths(q, k_cache, page_table, bounds, lengths, dcp_rank, dcp_size)
    factor = float(q.shape[2]) ** -0.5 if scale is None else float(scale)
    backend = choose(impl, q)
    if backend == "triton":
        from depthchart_kernels.triton.attention import attend as triton_attend

        return Attended(
            *triton_attend(q, k_cache, v_cache, page_table, bounds, lengths, factor, dcp_rank, dcp_size)
        )
    if backend == "reference":
        from depthchart_kernels.reference.attention import attend
    else:
        from depthchart_kernels.chunked.attention import attend
    return Attended(*attend(q, k_cache, v_cache, page_table, bounds, lengths, factor, dcp_rank, dcp_size))


def _check_lengths(
    q: Tensor, k_cache: Tensor, page_table: Tensor, bounds: IntArray, lengths: IntArray, rank: int, size: int
) -> None:
    if len(bounds) < 1 or bounds[0] != 0 or bounds[-1] != q.shape[0] or (bounds[1:] < bounds[:-1]).any():
        raise ValueError(f"cu_seqlens must rise from 0 to the {q.shape[0]} tokens of q")
    if not 0 <= rank < size:
        raise ValueError(
            f"dcp_rank is {rank} of dcp_size {size}; legal are 0 to {max(size, 1) - 1}, dcp_size 1 and more"
        )
    if page_table.ndim != 2 or page_table.shape[0] != len(lengths) or page_table.is_floating_point():
        raise ValueError(
            f"page_table must be whole numbers of shape [{len(lengths)}, pages], got {list(page_table.shape)} "
            f"of {page_table.dtype}"
        )
    for s in range(len(lengths)):
        queries = bounds[s + 1] - bounds[s]
        if lengths[s] < queries:
            raise ValueError(
                f"kv_lengths[{s}] is {lengths[s]}, less than the {queries} queries of that sequence"
            )
    room = page_table.shape[1] * k_cache.shape[1] * size
    if len(lengths) and lengths.max() > room:
        raise ValueError(
            f"a sequence of {lengths.max()} tokens does not fit page_table, which has room for {room}"
        )


def merge_attention(outputs: Tensor, lse: Tensor, *, impl: Backend = "auto") -> Attended:
    """Combine partial results over disjoint keys: outputs [parts, T, HQ, DV] and lse [parts, T, HQ] to one of each.

    A part that saw nothing (lse −inf) counts for nothing, whatever its output holds; if no part saw anything the
    output is zeros and lse −inf.
    """
    check_shape("outputs", outputs, ["parts", "tokens", "query_heads", "value_dim"])
    check_shape("lse", lse, list(outputs.shape[:3]), outputs)
    backend = choose(impl, outputs)
    if backend == "triton":
        from depthchart_kernels.triton.attention import merge

        return Attended(*merge(outputs, lse))
    kind = torch.float64 if backend == "reference" or outputs.dtype == torch.float64 else torch.float32
    parts = lse.to(kind)
    total = torch.logsumexp(parts, dim=0)
    weights = torch.exp(parts - total.masked_fill(total == -torch.inf, 0.0))
    values = outputs.to(kind).masked_fill((parts == -torch.inf)[..., None], 0.0)
    merged = (weights[..., None] * values).sum(0)
    return Attended(merged.to(outputs.dtype), total if kind == torch.float64 else total.float())
