"""Random inputs of the scans, as a layer of a model would hand them over."""

from __future__ import annotations

import torch
from torch import Tensor

from depthchart_kernels.gates import l2norm

__all__ = ["random_inputs"]


def random_inputs(
    op: str,
    tokens: int,
    heads: int,
    *,
    key_dim: int = 128,
    value_dim: int = 128,
    decay: float = 0.2,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Float32 tensors on the CPU in the operator's order of arguments.

    ``op``: gated_delta, kda or ssd (then P = ``value_dim``, N = ``key_dim``, one group). ``decay``: the largest
    log decay of a token is about −``decay``, the mean half of it (ssd: a quarter).
    """
    r = torch.Generator().manual_seed(seed)
    if op == "ssd":
        return {
            "x": torch.randn(tokens, heads, value_dim, generator=r),
            "dt": 0.1 * torch.rand(tokens, heads, generator=r),
            "a": -10 * decay * torch.rand(heads, generator=r) - 0.1,
            "b": torch.randn(tokens, 1, key_dim, generator=r),
            "c": torch.randn(tokens, 1, key_dim, generator=r),
        }
    if op not in ("gated_delta", "kda"):
        raise ValueError(f"op is {op!r}; legal are gated_delta, kda, ssd")
    size = (tokens, heads, key_dim) if op == "kda" else (tokens, heads)
    return {
        "q": l2norm(torch.randn(tokens, heads, key_dim, generator=r)),
        "k": l2norm(torch.randn(tokens, heads, key_dim, generator=r)),
        "v": torch.randn(tokens, heads, value_dim, generator=r),
        "g": -decay * torch.rand(*size, generator=r),
        "beta": torch.rand(tokens, heads, generator=r),
    }
