"""What all kernels share: loads and stores that survive the interpreter, products, checks of arguments.

Under TRITON_INTERPRET=1 Triton computes on bfloat16 as if it were an integer and truncates when it casts to it, so
loads go to float32 at once there and stores round by hand.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = [
    "BLOCK",
    "MANY",
    "apply_silu",
    "check_device",
    "check_size",
    "contiguous",
    "differences",
    "dot",
    "either",
    "exp",
    "kind_of",
    "load",
    "number",
    "power_of_two",
    "slots_of",
    "store",
]

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
INTERPRET = tl.constexpr(INTERPRETED)
LOG2E = tl.constexpr(1.4426950408889634)
BLOCK = 64  # tokens of a chunk that a product takes at once: wider chunks are blocks of it
MANY = -1  # in place of a number of snapshots a chunk: a loop over them, which costs the pipelining of loads


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
def differences(rows, columns):
    """rows_i − columns_j of float64 sums as float32, right to the last bit or two, without float64 squares."""
    high, other = rows.to(tl.float32), columns.to(tl.float32)
    low, rest = (rows - high.to(tl.float64)).to(tl.float32), (columns - other.to(tl.float64)).to(tl.float32)
    return (high[:, None] - other[None, :]) + (low[:, None] - rest[None, :])


@triton.jit
def either(mask, ALWAYS: tl.constexpr):
    """The mask, or one that costs no registers where it would be true everywhere."""
    if ALWAYS:
        return tl.full([1, 1], True, tl.int1)
    else:
        return mask


@triton.jit
def number(pointer):
    """One number as float32 [1]: a scalar load would not pass through `load`."""
    one = tl.arange(0, 1)
    return load(pointer + one, one == 0).to(tl.float32)


@triton.jit
def apply_silu(x, SILU: tl.constexpr):
    """x · sigmoid(x), or x."""
    if SILU:
        return x / (1.0 + exp(-x))
    else:
        return x


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


def power_of_two(size: int) -> int:
    """The block that holds ``size``: a power of two, at least the 16 that a product needs."""
    return max(16, triton.next_power_of_2(size))


def kind_of(tensor: Tensor) -> tl.constexpr:
    """Triton's name of the operand type."""
    names = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
    return names[tensor.dtype]


def contiguous(*tensors: Tensor) -> Iterator[Tensor]:
    """The tensors as kernels want them: rows one behind the other."""
    return (tensor.contiguous() for tensor in tensors)


def slots_of(pool: Tensor | None, like: Tensor) -> Tensor:
    """The pool, or something that can be passed in its place where no slot is touched."""
    if pool is None:
        return like.new_zeros([1, 1], dtype=torch.float32)
    if not pool[:1].is_contiguous():
        raise ValueError(
            f"pool's slots must be contiguous, got strides {pool.stride()}; any stride between slots is fine"
        )
    return pool
