"""The causal convolution, one token at a time in float64."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from depthchart_kernels.batch import Batch
from depthchart_kernels.reference.scan import _scan

__all__ = ["conv", "conv_token"]


def conv_token(
    window: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None
) -> tuple[Tensor, Tensor]:
    """One token: the window without its oldest input and with ``x``, and the output.

    Shapes, with any leading dimensions: window [D, W − 1], oldest input first; x [D]; weight [D, W].
    """
    inputs = torch.cat([window, x[..., None]], dim=-1)
    y = (inputs * weight).sum(-1)
    if bias is not None:
        y = y + bias
    return inputs[..., 1:], silu(y) if activation == "silu" else y


def conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, batch: Batch, pool: Tensor | None
) -> Tensor:
    """Convolution over a packed batch. See `depthchart_kernels.causal_conv1d`."""
    x64, weight64 = x.double(), weight.double()
    bias64 = None if bias is None else bias.double()

    def token(window: Tensor, t: int) -> tuple[Tensor, Tensor]:
        return conv_token(window, x64[t], weight64, bias64, activation)

    return _scan(token, x, [x.shape[1], weight.shape[1] - 1], batch, pool)
