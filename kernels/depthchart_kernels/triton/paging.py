"""Gather, scatter and copy: one program a row and block of elements, offsets in 64 bits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from depthchart_kernels.triton.common import check_device, load, slots_of, store

__all__ = ["ELEMENTS", "copy", "gather", "scatter"]

ELEMENTS = 1024  # of a row that a program moves


@triton.jit
def move_kernel(source, target, sources, targets, size, source_stride, target_stride, BLOCK: tl.constexpr):
    """Row sources[i] to row targets[i]; a source of −1 is zeros, a target of −1 writes nothing."""
    i, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    come, go = tl.load(sources + i), tl.load(targets + i)
    value = load(source + come * source_stride + at, (at < size) & (come >= 0))
    store(target + go * target_stride + at, value.to(tl.float32), (at < size) & (go >= 0))


def _move(source: Tensor, target: Tensor, sources: Tensor, targets: Tensor) -> None:
    size = source[0].numel()
    if len(sources) and size:
        move_kernel[(len(sources), -(-size // ELEMENTS))](
            source, target, sources, targets, size, source.stride(0), target.stride(0), BLOCK=ELEMENTS
        )


def scatter(values: Tensor, cache: Tensor, slots: Tensor) -> None:
    """See `depthchart_kernels.scatter_kv`."""
    check_device(values, cache)
    _check_cache(cache)
    rows = torch.arange(len(slots), device=cache.device)
    _move(values.contiguous(), cache.flatten(0, 1), rows, slots)


def gather(cache: Tensor, slots: Tensor) -> Tensor:
    """See `depthchart_kernels.gather_kv`."""
    check_device(cache)
    _check_cache(cache)
    output = cache.new_empty([len(slots), *cache.shape[2:]])
    _move(cache.flatten(0, 1), output, slots, torch.arange(len(slots), device=cache.device))
    return output


def copy(pool: Tensor, sources: Tensor, targets: Tensor) -> None:
    """See `depthchart_kernels.copy_states`; no source is also a target."""
    check_device(pool)
    _move(slots_of(pool, pool), pool, sources, targets)


def _check_cache(cache: Tensor) -> None:
    if not cache.is_contiguous():
        raise ValueError(
            f"impl='triton' supports contiguous caches, got strides {cache.stride()}; use 'chunked'"
        )
