"""`causal_conv1d`: the short depthwise convolution before a scan, with its window as state.

    y_t = activation(bias + Σ_j weight_j · x_{t − W + 1 + j})      j = 0 … W − 1

Letters: T packed tokens, D channels, W width. The state is the window: the last W − 1 inputs, oldest first.
"""

from __future__ import annotations

from typing import Literal, Unpack

from torch import Tensor

from depthchart_kernels.checks import Backend, Plan, check_pool, check_shape, choose, resolve_batch

__all__ = ["Activation", "causal_conv1d"]

Activation = Literal["silu"] | None


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: Activation = "silu",
    *,
    pool: Tensor | None = None,
    impl: Backend = "auto",
    **plan: Unpack[Plan],
) -> Tensor:
    """Causal depthwise convolution over a packed batch; returns [T, D] in x's dtype.

    Parameters
    ----------
    x, bias:
        [T, D] and [D].
    weight:
        [D, W], the last column meets the token itself.
    activation:
        "silu" or None.
    pool:
        [slots, D, W − 1] windows, read and written in place; before a sequence's start lie zeros.
    cu_seqlens, initial_slots, final_slots, snapshots, batch, impl:
        as in `gated_delta`. Give the layer's scan the
        same ``batch``: its state and its window are then cut at the same tokens.

    Raises ``ValueError`` for wrong shapes, slots or depths.
    """
    check_inputs(x, weight, bias, activation)
    batch = resolve_batch(x.shape[0], **plan)
    check_pool(pool, batch, [x.shape[1], weight.shape[1] - 1], x)
    backend = choose(impl, x)
    if backend == "reference":
        from depthchart_kernels.reference.conv import conv

        return conv(x, weight, bias, activation, batch, pool)
    if backend == "chunked":
        from depthchart_kernels.chunked.conv import conv as chunked_conv

        return chunked_conv(x, weight, bias, activation, batch, pool)
    from depthchart_kernels.triton.conv import conv as triton_conv

    return triton_conv(x, weight, bias, activation, batch, pool)


def check_inputs(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> None:
    """Shapes of one token batch of the convolution."""
    check_shape("x", x, ["tokens", "channels"])
    check_shape("weight", weight, [x.shape[1], "width"], x)
    if weight.shape[1] < 2:
        raise ValueError(f"weight has width {weight.shape[1]}; legal are 2 and more")
    if bias is not None:
        check_shape("bias", bias, [x.shape[1]], x)
    if activation not in ("silu", None):
        raise ValueError(f"activation is {activation!r}; legal are 'silu' and None")
