"""Attention on paged KV for each DCP rank of this process; the kernels do it, here is what they are told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from depthchart.device import RowTable
from depthchart_kernels import paged_attention
from depthchart_kernels.checks import Backend

__all__ = ["AttentionPlan", "attend", "plan_attention"]


@dataclass(frozen=True)
class AttentionPlan:
    """Rows of one step: ``pages`` [rows, most pages], the same on every rank, since each holds its share of every
    tree page; ``cu_seqlens`` [rows + 1], packed queries of each row; ``lengths`` [rows], tokens of each context, these
    queries included. ``ranks``: D; ``local``: the ranks of this process."""

    pages: Tensor
    cu_seqlens: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    ranks: int
    local: tuple[int, ...]


def plan_attention(
    table: RowTable,
    rows: Sequence[int],
    spans: Sequence[tuple[int, int]],
    ranks: int,
    local: Sequence[int],
    device: str | torch.device = "cpu",
) -> AttentionPlan:
    """``spans``: token positions [start, end) that each of the ``rows`` runs now; ``table`` lies on the host."""
    longest = max(end for _, end in spans)
    pages = table.pages[torch.tensor(list(rows)), : -(-longest // table.page)]
    lengths = np.array([end for _, end in spans], dtype=np.int64)
    counts = np.array([end - start for start, end in spans], dtype=np.int64)
    return AttentionPlan(
        pages=pages.to(device),
        cu_seqlens=np.concatenate([[0], np.cumsum(counts)]),
        lengths=lengths,
        ranks=ranks,
        local=tuple(local),
    )


def attend(
    plan: AttentionPlan, queries: Tensor, pool: Tensor, value_dim: int, scale: float, impl: Backend = "auto"
) -> tuple[Tensor, Tensor]:
    """Partial attention of each local rank: (output [D, T, H, value_dim], lse [D, T, H] in natural log).

    ``queries`` [T, H, K]; ``pool`` [D, pages, page, G, K + value_dim], or [D, pages, page, G, K] where the first
    ``value_dim`` channels of a key are its value (a latent). A rank that holds nothing for a query has lse -inf.
    """
    k = queries.shape[2]
    parts = [
        paged_attention(
            queries,
            share[..., :k],
            share[..., :value_dim] if share.shape[-1] == k else share[..., k:],
            plan.pages,
            plan.cu_seqlens,
            plan.lengths,
            scale=scale,
            dcp_rank=rank,
            dcp_size=plan.ranks,
            impl=impl,
        )
        for rank, share in zip(plan.local, pool, strict=True)
    ]
    return torch.stack([part.output for part in parts]), torch.stack([part.lse for part in parts])
