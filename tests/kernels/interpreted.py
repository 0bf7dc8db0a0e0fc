"""Run by test_triton.py in a process of its own under TRITON_INTERPRET=1: the Triton kernels at small sizes."""

import numpy as np
import pytest
import torch
from kernel_support import BF16, CASES, FP32, error, golden, random_call
from test_paging import paged, plain

import depthchart_kernels as dk
from depthchart_kernels.triton import plan

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
@pytest.mark.parametrize(
    ("width", "length", "depths"), [(128, 150, (1, 100, 128, 149)), (256, 258, (63, 64, 193, 257))]
)
def test_wide_chunks_in_bf16(op, width, length, depths):
    """Several snapshots in one chunk, in blocks on and off the borders of 64 and 32."""
    call = random_call(
        op,
        [length, 1],
        heads=1,
        value_heads=1,
        gate="harsh",
        snapshots=[(0, d) for d in depths],
        v=16,
        seed=width,
    )
    call.check("triton", width, BF16, dtype=torch.bfloat16)
    if op != "kda":  # its scores take the interpreter longest; slow tests do both
        call.check("triton", width, FP32)


@pytest.mark.parametrize("op", OPS)
def test_keys_and_states_of_200(op):
    """Above 128 the tuning table takes smaller blocks."""
    call = random_call(op, [70, 3], heads=1, value_heads=1, snapshots=[(0, 41)], k=200, v=16)
    call.check("triton", 64, BF16, dtype=torch.bfloat16)


@pytest.mark.parametrize(("op", "width", "pieces"), [(op, 16, n) for op in OPS for n in (2, 5)] + [
    (op, 128, 2) for op in OPS
])  # fmt: skip
def test_a_split_sequence_is_the_whole_one(op, width, pieces, monkeypatch):
    """Snapshots in every piece, on and off the chunk grid and at the pieces' borders; short sequences stay whole."""
    lengths = [90, 0, 1, 20] if width == 16 else [260, 0]
    depths = [0, 1, 31, 32, 33, 48, 79, 80, 89, 90] if width == 16 else [5, 128, 129, 200, 256, 259]
    marks = [(0, d) for d in depths] + [(1, 0)] + ([(2, 1), (3, 17)] if width == 16 else [])
    heads = 1 + (width == 16)
    call = random_call(
        op, lengths, heads=1, value_heads=heads, gate="erase", snapshots=marks, k=24, v=16, seed=pieces
    )
    monkeypatch.setattr(plan, "choose_pieces", lambda *_: pieces)
    seen = []
    make = plan._make
    monkeypatch.setattr(plan, "_make", lambda *given: seen.append(make(*given)) or seen[-1])
    call.check("triton", width, FP32)
    if op != "kda":
        call.check("triton", width, BF16, dtype=torch.bfloat16)
    assert all(table.split and table.piece_count > len(lengths) for table in seen)
    assert seen


@pytest.mark.parametrize("op", OPS)
def test_snapshot_at_every_depth_of_a_split_sequence(op, monkeypatch):
    monkeypatch.setattr(plan, "choose_pieces", lambda *_: 2)
    call = random_call(op, [40], heads=1, value_heads=1, snapshots=[(0, d) for d in range(41)], v=16)
    call.check("triton", 16, FP32)


def test_pieces_are_chosen_by_how_full_the_machine_is():
    """132 multiprocessors; 8 heads of 4 blocks of 32 columns are 32 programs a sequence."""
    choose = plan.choose_pieces
    assert choose(np.array([8192]), 32, 64, 132) == 4  # 128 of 132 are busy
    assert choose(np.array([8192]), 256, 64, 132) == 1  # 64 heads fill it
    assert choose(np.array([1024] * 8), 256, 64, 132) == 1
    assert choose(np.array([8192, 0, 8192]), 32, 64, 132) == 2  # the empty one occupies nothing
    assert choose(np.array([2048]), 8, 64, 132) == 4  # no piece shorter than 512 tokens
    assert choose(np.array([2048]), 8, 256, 132) == 1  # nor than 8 chunks
    assert choose(np.array([0, 0]), 8, 64, 132) == 1


def test_tables_of_a_split_batch():
    batch = dk.make_batch(
        [0, 100, 100, 120], initial_slots=[3, 4, -1], final_slots=[7, 8, 9], snapshots=[(0, 65, 1)]
    )
    made = plan.tables(batch, 16, torch.device("cpu"), programs_each=1, split=3)
    assert made.sequences.tolist() == [
        [0, 48, 0, 3, -1], [48, 48, 3, 3, -1], [96, 4, 6, 3, 7], [100, 0, 7, 4, -1], [100, 20, 7, -1, 9],
    ]  # fmt: skip
    assert made.runs.tolist() == [[0, 3, 0, 3], [3, 1, 2, 4], [4, 1, 2, -1]]
    assert made.followed.tolist() == [0, 1]
    assert made.chunks[4].tolist() == [64, 16, 0, 1]
    assert made.snapshots.tolist() == [[1, 1]]
    assert plan.tables(batch, 16, torch.device("cpu"), programs_each=1, split=3) is made
    assert not plan.tables(batch, 16, torch.device("cpu"), programs_each=1).split
    with pytest.raises(ValueError, match="split is 0; legal are 1"):
        plan.tables(batch, 16, torch.device("cpu"), programs_each=1, split=0)


@pytest.mark.slow
@pytest.mark.parametrize("split", [1, 3])
@pytest.mark.parametrize("gate", ["mild", "harsh", "erase", "mixed"])
@pytest.mark.parametrize("size", [24, 160])
@pytest.mark.parametrize("width", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("op", OPS)
def test_everything(op, width, size, gate, split, monkeypatch):
    monkeypatch.setattr(plan, "choose_pieces", lambda *_: split)
    length = max(100, width + 70)
    depths = [0, 1, 64, 65, width, width + 1, length - 1]
    marks = [(0, d) for d in sorted(set(depths))] + [(1, 0), (3, 16)]
    call = random_call(
        op, [length, 0, 1, 17], heads=1, value_heads=2, gate=gate, snapshots=marks, k=size, v=40
    )
    call.check("triton", width, FP32)
    call.check("triton", width, BF16, dtype=torch.bfloat16)


@pytest.mark.slow
@pytest.mark.parametrize("width", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("case", CASES)
def test_goldens_in_bf16(case, width):
    golden(case)[0].check("triton", width, BF16, dtype=torch.bfloat16)


@pytest.mark.parametrize("op", OPS)
def test_what_is_not_supported_is_named(op):
    call = random_call(op, [5], heads=1, value_heads=1)
    with pytest.raises(ValueError, match="supports float32, bfloat16 and float16"):
        call.run("triton", 16, torch.float64)
    long = random_call(op, [5], heads=1, value_heads=1, k=272)
    with pytest.raises(ValueError, match="size up to 256, got 272"):
        long.run("triton", 16)


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
