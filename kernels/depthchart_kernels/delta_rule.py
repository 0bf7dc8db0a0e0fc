"""Delta-rule scans: `gated_delta` (one decay a head) and `kda` (one decay a channel).

    S = exp(g) · S                 decay, then
    u = beta · (v − kᵀ S)          the delta against the decayed state,
    S = S + k uᵀ                   the write, then
    o = scale · qᵀ S               the read: a token sees itself

Letters: T packed tokens, H query/key heads, HV value heads (HV a multiple of H; value head j reads query/key head
j // (HV / H)), K key size, V value size. q and k come l2-normalised (`l2norm`); beta in [0, 1].
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

__all__ = ["gated_delta", "kda"]


def gated_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    pool: Tensor | None = None,
    scale: float | None = None,
    chunk_width: int = 64,
    impl: Backend = "auto",
    **plan: Unpack[Plan],
) -> Tensor:
    """Gated delta net over a packed batch; returns the output [T, HV, V] in v's dtype.

    Parameters
    ----------
    q, k:
        [T, H, K], unit length a head.
    v:
        [T, HV, V].
    g:
        [T, HV], log decay (natural log, ≤ 0), applied before the read of the same token.
    beta:
        [T, HV], write strength.
    pool:
        [slots, HV, K, V] states, read and written in place; any stride between slots.
    scale:
        factor of q, K^−0.5 if absent.
    chunk_width:
        16, 32, 64, 128 or 256 tokens a chunk; the result does not depend on it beyond rounding.
    impl:
        "reference" (float64, token by token), "chunked" (plain torch), "triton" (CUDA), "auto" (by device).
    cu_seqlens, initial_slots, final_slots, snapshots:
        the plan, see `make_batch`; one sequence if absent.
    batch:
        the plan made beforehand, instead of these four.

    Raises ``ValueError`` for wrong shapes, slots or depths, and for what the backend does not support.
    """
    check_shape("g", g, ["tokens", "value_heads"])
    return _delta(q, k, v, g, beta, pool, scale, chunk_width, impl, plan)


def kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    pool: Tensor | None = None,
    scale: float | None = None,
    chunk_width: int = 64,
    impl: Backend = "auto",
    **plan: Unpack[Plan],
) -> Tensor:
    """Kimi delta attention over a packed batch; returns the output [T, HV, V] in v's dtype.

    As `gated_delta`, but ``g`` is [T, HV, K]: row i of the state is multiplied by exp(g_i). Any gate, bounded or
    not: no decay is clamped, however strong.
    """
    check_shape("g", g, ["tokens", "value_heads", "key_dim"])
    return _delta(q, k, v, g, beta, pool, scale, chunk_width, impl, plan)


def _delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    pool: Tensor | None,
    scale: float | None,
    chunk_width: int,
    impl: str,
    plan: Plan,
) -> Tensor:
    check_inputs(q, k, v, g, beta)
    check_width(chunk_width)
    batch = resolve_batch(q.shape[0], **plan)
    check_pool(pool, batch, [v.shape[1], k.shape[2], v.shape[2]], q)
    factor = float(q.shape[2]) ** -0.5 if scale is None else float(scale)
    backend = choose(impl, q)
    if backend == "reference":
        from depthchart_kernels.reference.scan import delta

        return delta(q, k, v, g, beta, batch, pool, factor)
    if backend == "chunked":
        from depthchart_kernels.chunked.delta import delta as chunked_delta

        return chunked_delta(q, k, v, g, beta, batch, pool, factor, chunk_width)
    from depthchart_kernels.triton.delta import delta as triton_delta

    return triton_delta(q, k, v, g, beta, batch, pool, factor, chunk_width)


def check_inputs(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> None:
    """Shapes of one token batch of either delta rule."""
    check_shape("q", q, ["tokens", "heads", "key_dim"])
    tokens, heads, key_dim = q.shape
    check_shape("k", k, [tokens, heads, key_dim], q)
    check_shape("v", v, [tokens, "value_heads", "value_dim"], q)
    value_heads = v.shape[1]
    check_groups("v", value_heads, "query/key heads", heads)
    check_shape("g", g, [tokens, value_heads] if g.ndim == 2 else [tokens, value_heads, key_dim], q)
    check_shape("beta", beta, [tokens, value_heads], q)
