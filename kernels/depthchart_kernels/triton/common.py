"""What all kernels share: loads and stores that survive the interpreter, products, tables.

Under TRITON_INTERPRET=1 Triton computes on bfloat16 as if it were an integer and truncates when it casts to it, so
loads go to float32 at once there and stores round by hand.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from depthchart_kernels.batch import Batch, IntArray

__all__ = [
    "Tables",
    "check_device",
    "check_size",
    "check_width",
    "differences",
    "dot",
    "exp",
    "kind_of",
    "load",
    "power_of_two",
    "store",
    "tables",
]

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
INTERPRET = tl.constexpr(INTERPRETED)
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def load(pointer, mask):
    """Load with zeros where masked; float32 at once under the interpreter."""
    value = tl.load(pointer, mask=mask, other=0.0)
    if INTERPRET:
        value = value.to(tl.float32)
    return value


@triton.jit
def store(pointer, value, mask):
    """Store float32, rounding to nearest even."""
    if INTERPRET and pointer.dtype.element_ty == tl.bfloat16:
        bits = value.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        value = bits.to(tl.float32, bitcast=True)
    tl.store(pointer, value.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def dot(a, b, KIND: tl.constexpr):
    """a @ b in float32: operands in KIND; float32 ones as three TF32 products, whose error is that of float32."""
    if INTERPRET:
        return tl.dot(a.to(tl.float32), b.to(tl.float32))
    if tl.float32 == KIND:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="tf32x3")
    return tl.dot(a.to(KIND), b.to(KIND))


@triton.jit
def exp(x):
    """exp of differences: scaled by log2 e only here, after the subtraction."""
    return tl.exp2(x * LOG2E)


@triton.jit
def differences(sums):
    """sums_i − sums_j of float64 sums [C] as float32 [C, C], right to the last bit or two, without float64 squares."""
    high = sums.to(tl.float32)
    low = (sums - high.to(tl.float64)).to(tl.float32)
    return (high[:, None] - high[None, :]) + (low[:, None] - low[None, :])


@dataclass(frozen=True, eq=False)
class Tables:
    """Host-made tables of one batch on the device.

    ``sequences`` [n, 5]: first token, tokens, first chunk, initial slot, final slot.
    ``chunks`` [chunks, 4]: first token, tokens, first snapshot, first snapshot of the next chunk.
    ``snapshots`` [snapshots, 2]: tokens into the chunk, slot. ``most``: most snapshots in one chunk, rounded up.
    """

    sequences: Tensor
    chunks: Tensor
    snapshots: Tensor
    most: int

    @property
    def chunk_count(self) -> int:
        """Chunks of all sequences."""
        return int(self.chunks.shape[0])


def tables(batch: Batch, width: int, device: torch.device) -> Tables:
    """The tables of ``batch`` with chunks of ``width`` tokens; depth 0 is not in them (see `copy_depth_zero`)."""
    lengths, begins = batch.lengths, batch.cu_seqlens[:-1]
    counts = -(-lengths // width)
    first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    owner = np.repeat(np.arange(batch.sequences), counts)
    within = np.arange(first[-1]) - first[owner]
    starts = begins[owner] + within * width
    rows = np.minimum(lengths[owner] - within * width, width)
    keep = batch.snapshot_depths > 0
    depths, slots = batch.snapshot_depths[keep], batch.snapshot_slots[keep]
    chunk = first[batch.snapshot_sequences[keep]] + (depths - 1) // width
    edges = np.searchsorted(chunk, np.arange(first[-1] + 1))
    most = int(np.diff(edges).max(initial=0))
    final = np.where(lengths > 0, batch.final_slots, -1)
    return Tables(
        _on(np.column_stack([begins, lengths, first[:-1], batch.initial_slots, final]), device),
        _on(np.column_stack([starts, rows, edges[:-1], edges[1:]]), device),
        _on(np.column_stack([(depths - 1) % width + 1, slots]), device),
        0 if most == 0 else triton.next_power_of_2(most),
    )


def _on(array: IntArray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64)).to(device)


def check_device(tensor: Tensor, *more: Tensor | None) -> None:
    """Triton runs on CUDA tensors, or on any under the interpreter; and not in float64."""
    if not (tensor.is_cuda or INTERPRETED):
        raise ValueError(
            f"impl='triton' needs CUDA tensors, got {tensor.device}; on CPU use 'chunked' or 'reference'"
        )
    for x in (tensor, *more):
        if x is not None and x.dtype == torch.float64:
            raise ValueError(
                "impl='triton' supports float32, bfloat16 and float16; for float64 use 'chunked'"
            )


def check_size(name: str, size: int, most: int) -> None:
    """A dimension that a program holds whole."""
    if size > most:
        raise ValueError(f"impl='triton' supports {name} up to {most}, got {size}; use 'chunked'")


def check_width(width: int) -> None:
    """Chunks whose C × C matrices fit a program's registers."""
    if width > 128:
        raise ValueError(
            f"impl='triton' supports chunk_width 16, 32, 64, 128, got {width}; use 'chunked' for 256"
        )


def power_of_two(size: int) -> int:
    """The block that holds ``size``: a power of two, at least the 16 that a product needs."""
    return max(16, triton.next_power_of_2(size))


def kind_of(tensor: Tensor) -> tl.constexpr:
    """Triton's name of the operand type."""
    names = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
    return names[tensor.dtype]
