"""Checks that every public operator shares: shapes, dtypes, the backend's name, the pool."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor

from depthchart_kernels.batch import Batch, Integers, make_batch

__all__ = [
    "Backend",
    "Plan",
    "check_groups",
    "check_pool",
    "check_room",
    "check_shape",
    "check_width",
    "choose",
    "resolve_batch",
]

Backend = Literal["auto", "reference", "chunked", "triton"]
BACKENDS = ("auto", "reference", "chunked", "triton")
WIDTHS = (16, 32, 64, 128, 256)
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def choose(impl: str, tensor: Tensor) -> str:
    """The backend that ``impl`` means for tensors like this one: "auto" is triton on CUDA, chunked elsewhere."""
    if impl not in BACKENDS:
        raise ValueError(f"impl is {impl!r}; legal are {', '.join(BACKENDS)}")
    if impl != "auto":
        return impl
    return "triton" if tensor.is_cuda else "chunked"


def check_width(chunk_width: int) -> int:
    """``chunk_width`` if it is one of 16, 32, 64, 128 and 256 tokens."""
    if chunk_width not in WIDTHS:
        nearest = min(WIDTHS, key=lambda width: abs(width - chunk_width))
        raise ValueError(
            f"chunk_width is {chunk_width}; legal are 16, 32, 64, 128, 256, the nearest is {nearest}"
        )
    return int(chunk_width)


def check_shape(name: str, tensor: Tensor, shape: Sequence[int | str], like: Tensor | None = None) -> None:
    """``tensor`` has this shape (a name instead of a number fits anything), a float dtype and ``like``'s device."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
    fits = tensor.ndim == len(shape) and all(
        isinstance(want, str) or want == have for want, have in zip(shape, tensor.shape, strict=True)
    )
    if not fits:
        wanted = ", ".join(str(size) for size in shape)
        raise ValueError(f"{name} must have shape [{wanted}], got {list(tensor.shape)}")
    if tensor.dtype not in FLOATS:
        raise ValueError(f"{name} is {tensor.dtype}; legal are float64, float32, bfloat16, float16")
    if like is not None and tensor.device != like.device:
        raise ValueError(f"{name} lies on {tensor.device}, but the other inputs on {like.device}")


def check_groups(name: str, heads: int, groups_name: str, groups: int) -> None:
    """``heads`` is a multiple of ``groups``."""
    if groups < 1 or heads % groups:
        raise ValueError(f"{name} has {heads} heads, which is no multiple of the {groups} {groups_name}")


def check_pool(pool: Tensor | None, batch: Batch, shape: Sequence[int], like: Tensor) -> None:
    """The pool is there if a slot is named, holds [slots, *shape] and has room for the highest slot."""
    if pool is not None:
        check_room(pool, batch.highest_slot, shape, like)
    elif batch.touches_states:
        raise ValueError("pool is None, but initial_slots, final_slots or snapshots name slots of it")


def check_room(pool: Tensor, highest: int, shape: Sequence[int], like: Tensor) -> None:
    """``pool`` holds [slots, *shape] and has slot ``highest``."""
    check_shape("pool", pool, ["slots", *shape], like)
    if highest >= pool.shape[0]:
        raise ValueError(
            f"slot {highest} is named, but pool has {pool.shape[0]} slots: legal are 0 to {pool.shape[0] - 1}"
        )


class Plan(TypedDict, total=False):
    """The arguments of a scan that say which tokens belong together and which states are read and written.

    cu_seqlens, initial_slots, final_slots, snapshots: see `make_batch`; one sequence and no states if absent.
    batch: the plan made beforehand, instead of the four others.
    """

    cu_seqlens: Integers | None
    initial_slots: Integers | None
    final_slots: Integers | None
    snapshots: Iterable[Sequence[int]] | Integers
    batch: Batch | None


def resolve_batch(
    tokens: int,
    *,
    batch: Batch | None = None,
    cu_seqlens: Integers | None = None,
    initial_slots: Integers | None = None,
    final_slots: Integers | None = None,
    snapshots: Any = (),
) -> Batch:
    """The plan of a call: ``batch``, or one made of the four others (one sequence if nothing is said)."""
    if batch is None:
        batch = make_batch(
            [0, tokens] if cu_seqlens is None else cu_seqlens,
            initial_slots=initial_slots,
            final_slots=final_slots,
            snapshots=snapshots,
        )
    elif cu_seqlens is not None or initial_slots is not None or final_slots is not None or len(snapshots):
        raise ValueError(
            "batch already holds cu_seqlens, initial_slots, final_slots and snapshots: give either it or them"
        )
    if batch.tokens != tokens:
        raise ValueError(f"cu_seqlens ends at {batch.tokens}, but the inputs hold {tokens} tokens")
    return batch
