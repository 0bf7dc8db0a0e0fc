"""Root-mean-square norm and rotary positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["RMSNorm", "rotate"]


class RMSNorm(nn.Module):
    """x / sqrt(mean x² + eps) over the last dimension, times a learned weight."""

    def __init__(self, channels: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(channels)), eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float() if x.dtype not in (torch.float32, torch.float64) else x
        # The norm needs no array of squares, which costs more than the arithmetic.
        mean = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().div_(wide.shape[-1])
        return (wide * mean.add_(self.eps).rsqrt_()).to(x.dtype).mul_(self.weight)


def rotate(x: Tensor, positions: Tensor, channels: int, base: float = 10_000.0) -> Tensor:
    """Rotate the first ``channels`` of x [T, heads, head_dim] by the positions [T] (RoPE, halves paired)."""
    if not channels:
        return x
    half = channels // 2
    rate = base ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half)
    angle = (positions.double()[:, None] * rate)[:, None]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:channels]
    return torch.cat([a * cos - b * sin, a * sin + b * cos, x[..., channels:]], dim=-1)
