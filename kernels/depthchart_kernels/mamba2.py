"""Mamba-2's scan, `ssd`.

    S = exp(dt · A) · S + (dt · x) Bᵀ      decay and write
    y = S C + D · x                        read: a token sees itself

Letters: T packed tokens, H heads of size P, N state size, G groups of B and C (H a multiple of G; head j reads group
j // (H / G)).
"""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from depthchart_kernels.checks import (
    Backend,
    Plan,
    check_groups,
    check_pool,
    check_shape,
    check_width,
    choose,
    resolve_batch,
)

__all__ = ["ssd"]


def ssd(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor | None = None,
    *,
    pool: Tensor | None = None,
    chunk_width: int = 64,
    impl: Backend = "auto",
    **plan: Unpack[Plan],
) -> Tensor:
    """State-space duality (Mamba-2) over a packed batch; returns y [T, H, P] in x's dtype.

    Parameters
    ----------
    x:
        [T, H, P].
    dt:
        [T, H], final step sizes: bias, softplus and clamp already applied (`ssd_gate`).
    a:
        [H], negative: log decay a unit of dt (not its logarithm).
    b, c:
        [T, G, N].
    d:
        [H], skip; none if absent.
    pool:
        [slots, H, P, N] states, read and written in place; any stride between slots.
    cu_seqlens, initial_slots, final_slots, snapshots, batch, chunk_width, impl:
        as in `gated_delta`.

    Raises ``ValueError`` for wrong shapes, slots or depths, and for what the backend does not support.
    """
    check_inputs(x, dt, a, b, c, d)
    check_width(chunk_width)
    batch = resolve_batch(x.shape[0], **plan)
    check_pool(pool, batch, [x.shape[1], x.shape[2], b.shape[2]], x)
    backend = choose(impl, x)
    if backend == "reference":
        from depthchart_kernels.reference.scan import ssd as reference_ssd

        return reference_ssd(x, dt, a, b, c, d, batch, pool)
    if backend == "chunked":
        from depthchart_kernels.chunked.ssd import ssd as chunked_ssd

        return chunked_ssd(x, dt, a, b, c, d, batch, pool, chunk_width)
    from depthchart_kernels.triton.ssd import ssd as triton_ssd

    return triton_ssd(x, dt, a, b, c, d, batch, pool, chunk_width)


def check_inputs(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor | None) -> None:
    """Shapes of one token batch of Mamba-2."""
    check_shape("x", x, ["tokens", "heads", "head_dim"])
    tokens, heads, _ = x.shape
    check_shape("dt", dt, [tokens, heads], x)
    check_shape("a", a, [heads], x)
    check_shape("b", b, [tokens, "groups", "state_dim"], x)
    check_shape("c", c, [tokens, b.shape[1], b.shape[2]], x)
    if d is not None:
        check_shape("d", d, [heads], x)
    check_groups("x", heads, "groups of b and c", b.shape[1])
