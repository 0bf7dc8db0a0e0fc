"""Run by test_triton.py in a process of its own under TRITON_INTERPRET=1: the Triton kernels at small sizes."""

import pytest
import torch
from kernel_support import BF16, CASES, FP32, error, golden, random_call
from test_paging import paged, plain

import depthchart_kernels as dk

OPS = ("gated_delta", "kda", "ssd")


@pytest.mark.parametrize("width", [16, 64])
@pytest.mark.parametrize("case", CASES)
def test_goldens(case, width):
    golden(case)[0].check("triton", width, FP32)


@pytest.mark.parametrize(
    ("gate", "width"),
    [(gate, width) for gate in ("mild", "harsh", "erase", "mixed") for width in (16, 32, 64)]
    + [("erase", 128)],
)
@pytest.mark.parametrize("op", OPS)
def test_gates(op, gate, width):
    depths = [(0, 0), (0, 3), (0, 33), (0, 34), (0, 40), (1, 0), (2, 1), (3, 16)]
    call = random_call(
        op, [40, 0, 1, 17], heads=1, value_heads=2, gate=gate, snapshots=depths, k=16, v=16, seed=width
    )
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
    if op != "gated_delta":
        with pytest.raises(
            ValueError, match=f"supports chunk_width 16, 32, 64 for {op} in torch.bfloat16, got 128"
        ):
            call.run("triton", 128, torch.bfloat16)
    with pytest.raises(ValueError, match="supports float32, bfloat16 and float16"):
        call.run("triton", 16, torch.float64)


def test_empty_batch_writes_initial_states():
    pool = torch.randn(3, 1, 16, 16)
    first = pool[0].clone()
    q = torch.zeros(0, 1, 16)
    dk.gated_delta(
        q,
        q,
        q,
        q[..., 0],
        q[..., 0],
        cu_seqlens=[0, 0],
        pool=pool,
        initial_slots=[0],
        final_slots=[2],
        impl="triton",
    )
    assert torch.equal(pool[2], first)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("pool_dtype", [torch.float32, torch.bfloat16])
def test_steps(op, pool_dtype):
    call = random_call(op, [1] * 4, heads=1, value_heads=2, k=24, v=40)
    pool = torch.randn(8, *call.initial.shape[1:]).to(pool_dtype)
    other = pool.clone()
    options = {} if op == "ssd" else {"scale": call.scale}
    step = getattr(dk, f"{op}_step")
    got = step(*call.tensors.values(), pool, [3, -1, 0, 7], [4, -1, -1, 1], impl="triton", **options)
    want = step(*call.tensors.values(), other, [3, -1, 0, 7], [4, -1, -1, 1], impl="chunked", **options)
    limit = FP32 if pool_dtype == torch.float32 else BF16
    assert error(got, want) < limit
    assert error(pool.float(), other.float(), 0) < limit
    assert bool((got[1] == 0).all())
    assert torch.equal(pool[[2, 5, 6]], other[[2, 5, 6]])


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("activation", ["silu", None])
def test_convolution(width, activation):
    cu, x, weight, bias = [0, 70, 70, 71, 74], torch.randn(74, 40), torch.randn(40, width), torch.randn(40)
    pool = torch.randn(20, 40, width - 1)
    other = pool.double()
    plan = {
        "cu_seqlens": cu,
        "initial_slots": [0, 1, 2, -1],
        "final_slots": [0, 6, 7, 8],
        "snapshots": [(0, 0, 10), (0, 1, 11), (0, 64, 12), (2, 1, 13), (3, 2, 14), (1, 0, 15)],
    }
    got = dk.causal_conv1d(x, weight, bias, activation, **plan, pool=pool, impl="triton")
    want = dk.causal_conv1d(x, weight, bias, activation, **plan, pool=other, impl="reference")
    assert error(got, want) < FP32
    assert error(pool, other.float(), 0) == 0
    step = torch.randn(3, 40)
    a = dk.causal_conv1d_step(
        step, weight, bias, pool, [0, -1, 9], [5, -1, -1], activation=activation, impl="triton"
    )
    b = dk.causal_conv1d_step(step, weight, bias, other, [0, -1, 9], [5, -1, -1], activation=activation)
    assert error(a, b) < FP32
    assert error(pool, other, 0) < FP32


def test_moves():
    cache, values = torch.randn(5, 4, 2, 3), torch.randn(4, 2, 3)
    other = cache.clone()
    dk.scatter_kv(values, cache, [0, 19, -1, 6], impl="triton")
    dk.scatter_kv(values, other, [0, 19, -1, 6], impl="chunked")
    assert torch.equal(cache, other)
    assert torch.equal(
        dk.gather_kv(cache, [19, -1, 6], impl="triton"), dk.gather_kv(cache, [19, -1, 6], impl="chunked")
    )
    states = torch.randn(6, 2, 3, 4).bfloat16()
    same = states.clone()
    dk.copy_states([states], [0, -1], [3, 5], impl="triton")
    dk.copy_states([same], [0, -1], [3, 5], impl="chunked")
    assert torch.equal(states, same)


@pytest.mark.parametrize("ranks", [1, 3])
def test_paged_attention(ranks):
    lengths, queries = [7, 70, 12], [7, 13, 1]
    q, dense, caches = paged(lengths, queries, 4, ranks)
    parts = [
        dk.paged_attention(
            q, k, v, table, [0, 7, 20, 21], lengths, dcp_rank=rank, dcp_size=ranks, impl="triton"
        )
        for rank, (k, v, table) in enumerate(caches)
    ]
    outputs, logs = (torch.stack(x) for x in zip(*parts, strict=True))
    got = dk.merge_attention(outputs, logs, impl="triton")
    output, lse = plain(q, dense, queries)
    assert error(got.output, output) < FP32
    assert error(got.lse, lse) < FP32
