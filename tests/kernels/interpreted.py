"""Run by test_triton.py in a process of its own under TRITON_INTERPRET=1: the Triton kernels at small sizes."""

import pytest
import torch
from kernel_support import BF16, CASES, FP32, golden, random_call

import depthchart_kernels as dk

OPS = ("gated_delta", "kda", "ssd")


@pytest.mark.parametrize("width", [16, 64])
@pytest.mark.parametrize("case", CASES)
def test_goldens(case, width):
    golden(case)[0].check("triton", width, FP32)


@pytest.mark.parametrize("width", [16, 32, 64, 128])
@pytest.mark.parametrize("gate", ["mild", "harsh", "erase", "mixed"])
@pytest.mark.parametrize("op", OPS)
def test_gates(op, gate, width):
    depths = [(0, 0), (0, 3), (0, 33), (0, 34), (0, 40), (1, 0), (2, 1), (3, 16)]
    call = random_call(op, [40, 0, 1, 17], heads=1, value_heads=2, gate=gate, snapshots=depths, k=16, v=16, seed=width)
    call.check("triton", width, FP32)


@pytest.mark.parametrize("op", OPS)
def test_bf16_and_sizes_off_the_power_of_two(op):
    call = random_call(op, [40, 9], heads=1, value_heads=1, snapshots=[(0, 21)], k=24, v=40)
    call.check("triton", 32, BF16, dtype=torch.bfloat16)


@pytest.mark.parametrize("op", OPS[:2])
def test_nearly_parallel_keys(op):
    call = random_call(op, [130], heads=1, value_heads=1, gate="none", parallel=True, snapshots=[(0, 100)])
    call.check("triton", 64, FP32)


@pytest.mark.parametrize("op", OPS)
def test_what_is_not_supported_is_named(op):
    call = random_call(op, [5], heads=1, value_heads=1)
    with pytest.raises(ValueError, match="supports chunk_width 16, 32, 64, 128, got 256"):
        call.run("triton", 256)
    with pytest.raises(ValueError, match="supports float32, bfloat16 and float16"):
        call.run("triton", 16, torch.float64)


def test_empty_batch_writes_initial_states():
    pool = torch.randn(3, 1, 16, 16)
    first = pool[0].clone()
    q = torch.zeros(0, 1, 16)
    dk.gated_delta(
        q, q, q, q[..., 0], q[..., 0], cu_seqlens=[0, 0], pool=pool, initial_slots=[0], final_slots=[2], impl="triton"
    )
    assert torch.equal(pool[2], first)
