"""Gates as the models compute them: from a layer's raw activations to log decay, write strength and step size.

Everything is computed in float32 (float64 stays float64) and in natural log.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

__all__ = ["beta_gate", "gated_delta_gate", "kda_gate", "l2norm", "ssd_gate"]


def gated_delta_gate(raw: Tensor, a_log: Tensor, bias: Tensor) -> Tensor:
    """Log decay of the gated delta net, −exp(a_log)·softplus(raw + bias): raw [T, HV], a_log and bias [HV]."""
    raw, a_log, bias = _wide(raw), _wide(a_log), _wide(bias)
    return -a_log.exp() * softplus(raw + bias)


def kda_gate(raw: Tensor, a_log: Tensor, bias: Tensor, lower_bound: float | None = None) -> Tensor:
    """Per-channel log decay of Kimi delta attention: raw [T, HV, K], a_log [HV], bias [HV, K].

    Without ``lower_bound`` −exp(a_log)·softplus(raw + bias), unbounded below; with one (a negative number, nats a
    token) lower_bound·sigmoid(exp(a_log)·(raw + bias)).
    """
    raw, rate, bias = _wide(raw), _wide(a_log).exp()[:, None], _wide(bias)
    if lower_bound is None:
        return -rate * softplus(raw + bias)
    if not lower_bound < 0:
        raise ValueError(f"lower_bound is {lower_bound}; a log decay's bound is negative, models use −5")
    return lower_bound * torch.sigmoid(rate * (raw + bias))


def ssd_gate(raw: Tensor, bias: Tensor, low: float = 0.0, high: float = float("inf")) -> Tensor:
    """Step size dt of Mamba-2, softplus(raw + bias) clamped to [low, high]: raw [T, H], bias [H]."""
    if low > high:
        raise ValueError(f"low is {low}, above high = {high}")
    return softplus(_wide(raw) + _wide(bias)).clamp(low, high)


def beta_gate(raw: Tensor) -> Tensor:
    """Write strength of the delta rules, sigmoid(raw), in [0, 1]."""
    return torch.sigmoid(_wide(raw))


def l2norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """``x`` / sqrt(sum x² + eps) over the last dimension, in x's dtype; a row of zeros stays zeros."""
    wide = _wide(x)
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)).to(x.dtype)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
