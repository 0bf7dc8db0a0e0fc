"""Decode context parallelism: who holds which share of the KV, and how partial attention results meet.

Each of D ranks attends to the tokens that it holds and gets a partial output with the logarithm of its softmax
denominator; the whole is their average, weighted by those denominators::

    output = Σ_r exp(lse_r - m) output_r / Σ_r exp(lse_r - m),    m = max_r lse_r

The ranks are processes of ``torch.distributed`` (``ProcessRanks``), or emulated in one process (``EmulatedRanks``).
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from depthchart_kernels import merge_attention

__all__ = ["EmulatedRanks", "ProcessRanks", "Ranks"]


class Ranks(Protocol):
    """``size``: D; ``local``: the ranks whose KV lies in this process; ``sent_bytes``: what each rank has sent to
    others so far."""

    size: int
    local: tuple[int, ...]
    sent_bytes: int

    def merge(self, output: Tensor, lse: Tensor) -> Tensor:
        """The whole result [tokens, heads, channels] of the local partial ones, ``output`` [local, tokens, heads,
        channels] and ``lse`` [local, tokens, heads] in natural log, -inf where a rank holds nothing to attend to."""
        ...


class EmulatedRanks:
    """All D ranks in one process; counts the bytes that real ones would send."""

    def __init__(self, size: int = 1) -> None:
        self.size = _check_size(size)
        self.local = tuple(range(size))
        self.sent_bytes = 0

    def merge(self, output: Tensor, lse: Tensor) -> Tensor:
        if self.size == 1:
            return output[0]
        self.sent_bytes += _partial_bytes(output[0], lse[0]) * (self.size - 1)
        return merge_attention(output, lse).output


class ProcessRanks:
    """One rank of a ``torch.distributed`` group that runs already (torchrun, gloo on CPU, nccl on GPUs).

    Every rank gathers all partial results and merges them in the order of the ranks, so that all have the same bits
    and take the same decisions.
    """

    def __init__(self, group: Any = None) -> None:
        import torch.distributed as dist

        if not dist.is_initialized():
            raise RuntimeError(
                "torch.distributed is not initialised: start the script with torchrun and call init_process_group"
            )
        self._dist, self._group = dist, group
        self.size, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self.local: tuple[int, ...] = (self.rank,)
        self.sent_bytes = 0

    def merge(self, output: Tensor, lse: Tensor) -> Tensor:
        if self.size == 1:
            return output[0]
        # One message: the denominator travels as one more channel.
        mine = torch.cat([output[0].to(lse.dtype), lse[0][..., None]], dim=-1).contiguous()
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        self._dist.all_gather(parts, mine, group=self._group)
        self.sent_bytes += _partial_bytes(output[0], lse[0]) * (self.size - 1)
        whole = torch.stack(parts)
        return merge_attention(whole[..., :-1], whole[..., -1]).output


def _partial_bytes(output: Tensor, lse: Tensor) -> int:
    return (output.numel() + lse.numel()) * lse.element_size()


def _check_size(size: int) -> int:
    if size < 1:
        raise ValueError(f"size={size}: must be at least one rank; nearest legal: 1")
    return size
