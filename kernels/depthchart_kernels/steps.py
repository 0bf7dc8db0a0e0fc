"""One-token decode steps on pool slots: `gated_delta_step`, `kda_step`, `ssd_step`, `causal_conv1d_step`.

Row i of a step reads its state from slots[i] and writes it back there; where track_slots[i] is not −1 the new state
is written to that slot as well (the ping-pong copy that a decode checkpoint donates). A row with slot −1 is padding:
its output is zeros and nothing is written.

In a mixed batch, prefill rows go through the scan and decode rows through the step, on slices of the same packed
tensors; a decode row then never pays for a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from depthchart_kernels import convolution, delta_rule, mamba2
from depthchart_kernels.batch import IntArray, Integers, as_integers
from depthchart_kernels.checks import Backend, check_room, check_shape, choose

__all__ = ["StepSlots", "causal_conv1d_step", "gated_delta_step", "kda_step", "make_step", "ssd_step"]


@dataclass(frozen=True, eq=False)
class StepSlots:
    """Checked slots of one decode step, shared by all layers: ``slots`` and ``track_slots``, [rows] each, −1 = none."""

    slots: IntArray
    track_slots: IntArray


def make_step(slots: Integers, track_slots: Integers | None = None) -> StepSlots:
    """Check the slots of a step: every written slot is written once.

    Raises ``ValueError`` naming the first slot that two rows, or a row's state and a tracked copy, would share.
    """
    rows = as_integers("slots", slots)
    track = (
        np.full_like(rows, -1) if track_slots is None else as_integers("track_slots", track_slots, len(rows))
    )
    for name, values in (("slots", rows), ("track_slots", track)):
        for row in np.flatnonzero(values < -1)[:1]:
            raise ValueError(f"{name}[{row}] is {values[row]}; a slot is 0 or more, or −1 for none")
    for row in np.flatnonzero((rows < 0) & (track >= 0))[:1]:
        raise ValueError(
            f"track_slots[{row}] is {track[row]}, but row {row} is padding (slot −1) and has no state"
        )
    used = np.concatenate([rows[rows >= 0], track[track >= 0]])
    values, counts = np.unique(used, return_counts=True)
    for value in values[counts > 1][:1]:
        raise ValueError(
            f"slot {value} would be written twice in one step; slots and track_slots must all differ"
        )
    return StepSlots(rows, track)


def gated_delta_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    pool: Tensor,
    slots: Integers | StepSlots,
    track_slots: Integers | None = None,
    *,
    scale: float | None = None,
    impl: Backend = "auto",
) -> Tensor:
    """One token of the gated delta rule a row: q, k [rows, H, K], v [rows, HV, V], g, beta [rows, HV].

    ``pool`` [slots, HV, K, V] is read and written in place; returns the output [rows, HV, V] in v's dtype.
    """
    check_shape("g", g, ["rows", "value_heads"])
    return _delta_step(q, k, v, g, beta, pool, slots, track_slots, scale, impl)


def kda_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    pool: Tensor,
    slots: Integers | StepSlots,
    track_slots: Integers | None = None,
    *,
    scale: float | None = None,
    impl: Backend = "auto",
) -> Tensor:
    """One token of Kimi delta attention a row; as `gated_delta_step` with g [rows, HV, K]."""
    check_shape("g", g, ["rows", "value_heads", "key_dim"])
    return _delta_step(q, k, v, g, beta, pool, slots, track_slots, scale, impl)


def ssd_step(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor | None,
    pool: Tensor,
    slots: Integers | StepSlots,
    track_slots: Integers | None = None,
    *,
    impl: Backend = "auto",
) -> Tensor:
    """One token of Mamba-2 a row: x [rows, H, P], dt [rows, H], a, d [H], b, c [rows, G, N].

    ``pool`` [slots, H, P, N] is read and written in place; returns y [rows, H, P] in x's dtype.
    """
    mamba2.check_inputs(x, dt, a, b, c, d)
    plan = _resolve(x, slots, track_slots, pool, [x.shape[1], x.shape[2], b.shape[2]])
    if choose(impl, x) == "triton":
        from depthchart_kernels.triton.steps import ssd_step as triton_step

        return triton_step(x, dt, a, b, c, d, pool, plan)
    from depthchart_kernels.reference.scan import ssd_token

    kind = _kind(impl, x)
    repeat = x.shape[1] // b.shape[1]
    wide_b, wide_c = (z.to(kind).repeat_interleave(repeat, dim=1) for z in (b, c))
    skip = None if d is None else d.to(kind)
    state, y = ssd_token(_read(pool, plan, kind), x.to(kind), dt.to(kind), a.to(kind), wide_b, wide_c, skip)
    return _write(pool, plan, state, y, x)


def causal_conv1d_step(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    pool: Tensor,
    slots: Integers | StepSlots,
    track_slots: Integers | None = None,
    *,
    activation: convolution.Activation = "silu",
    impl: Backend = "auto",
) -> Tensor:
    """One token of the convolution a row: x [rows, D], weight [D, W], bias [D], pool [slots, D, W − 1]."""
    convolution.check_inputs(x, weight, bias, activation)
    plan = _resolve(x, slots, track_slots, pool, [x.shape[1], weight.shape[1] - 1])
    if choose(impl, x) == "triton":
        from depthchart_kernels.triton.steps import conv_step as triton_step

        return triton_step(x, weight, bias, activation, pool, plan)
    from depthchart_kernels.reference.conv import conv_token

    kind = _kind(impl, x)
    wide_bias = None if bias is None else bias.to(kind)
    window, y = conv_token(_read(pool, plan, kind), x.to(kind), weight.to(kind), wide_bias, activation)
    return _write(pool, plan, window, y, x)


def _delta_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    pool: Tensor,
    slots: Integers | StepSlots,
    track_slots: Integers | None,
    scale: float | None,
    impl: str,
) -> Tensor:
    delta_rule.check_inputs(q, k, v, g, beta)
    plan = _resolve(q, slots, track_slots, pool, [v.shape[1], k.shape[2], v.shape[2]])
    factor = float(q.shape[2]) ** -0.5 if scale is None else float(scale)
    if choose(impl, q) == "triton":
        from depthchart_kernels.triton.steps import delta_step as triton_step

        return triton_step(q, k, v, g, beta, pool, plan, factor)
    from depthchart_kernels.reference.scan import delta_token

    kind = _kind(impl, q)
    repeat = v.shape[1] // q.shape[1]
    wide_q, wide_k = (z.to(kind).repeat_interleave(repeat, dim=1) for z in (q, k))
    decay = (g[..., None] if g.ndim == 2 else g).to(kind)
    state, o = delta_token(_read(pool, plan, kind), wide_q, wide_k, v.to(kind), decay, beta.to(kind), factor)
    return _write(pool, plan, state, o, v)


def _kind(impl: str, like: Tensor) -> torch.dtype:
    """Reference steps run in float64, the others in float32 (float64 inputs keep theirs)."""
    return (
        torch.float64 if choose(impl, like) == "reference" or like.dtype == torch.float64 else torch.float32
    )


def _resolve(
    like: Tensor, slots: Integers | StepSlots, track_slots: Integers | None, pool: Tensor, shape: list[int]
) -> StepSlots:
    if isinstance(slots, StepSlots):
        if track_slots is not None:
            raise ValueError("slots is a StepSlots and already holds track_slots: give one of them")
        plan = slots
    else:
        plan = make_step(slots, track_slots)
    if len(plan.slots) != like.shape[0]:
        raise ValueError(f"slots has {len(plan.slots)} entries, but the inputs hold {like.shape[0]} rows")
    highest = max(plan.slots.max(initial=-1), plan.track_slots.max(initial=-1))
    check_room(pool, int(highest), shape, like)
    return plan


def _read(pool: Tensor, plan: StepSlots, kind: torch.dtype) -> Tensor:
    """States of all rows [rows, ...]; padding rows read zeros, whatever the pool holds."""
    rows = torch.from_numpy(np.flatnonzero(plan.slots >= 0)).to(pool.device)
    state = pool.new_zeros([len(plan.slots), *pool.shape[1:]], dtype=kind)
    state[rows] = pool[torch.from_numpy(plan.slots[plan.slots >= 0]).to(pool.device)].to(kind)
    return state


def _write(pool: Tensor, plan: StepSlots, state: Tensor, output: Tensor, like: Tensor) -> Tensor:
    """Write the new states to both lists of slots and silence the padding rows."""
    for slots in (plan.slots, plan.track_slots):
        rows = np.flatnonzero(slots >= 0)
        if len(rows):
            where = torch.from_numpy(slots[rows]).to(pool.device)
            pool[where] = state[torch.from_numpy(rows).to(pool.device)].to(pool.dtype)
    padding = torch.from_numpy(plan.slots < 0).to(pool.device)
    shape = [-1] + [1] * (output.ndim - 1)
    return output.masked_fill(padding.view(shape), 0.0).to(like.dtype)
