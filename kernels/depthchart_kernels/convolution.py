"""`causal_conv1d`: the short depthwise convolution before a scan, with its window as state.

    y_t = activation(bias + Σ_j weight_j · x_{t − W + 1 + j})      j = 0 … W − 1

Letters: T packed tokens, D channels, W width. The state is the window: the last W − 1 inputs, oldest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from torch import Tensor

from depthchart_kernels.batch import Batch, Integers
from depthchart_kernels.checks import Backend, check_pool, check_shape, choose, resolve_batch

__all__ = ["Activation", "causal_conv1d"]

Activation = Literal["silu"] | None


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: Activation = "silu",
    *,
    cu_seqlens: Integers | None = None,
    pool: Tensor | None = None,
    initial_slots: Integers | None = None,
    final_slots: Integers | None = None,
    snapshots: Iterable[Sequence[int]] | Integers = (),
    batch: Batch | None = None,
    impl: Backend = "auto",
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
    plan = resolve_batch(x.shape[0], batch, cu_seqlens, initial_slots, final_slots, snapshots)
    check_pool(pool, plan, [x.shape[1], weight.shape[1] - 1], x)
    backend = choose(impl, x)
    if backend == "reference":
        from depthchart_kernels.reference.conv import conv

        return conv(x, weight, bias, activation, plan, pool)
    if backend == "chunked":
        from depthchart_kernels.chunked.conv import conv as chunked_conv

        return chunked_conv(x, weight, bias, activation, plan, pool)
    from depthchart_kernels.triton.conv import conv as triton_conv

    return triton_conv(x, weight, bias, activation, plan, pool)


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
