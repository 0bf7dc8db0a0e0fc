"""The chunked backend against the reference: goldens, hard gates, odd lengths, every width, every depth."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_support import BF16, CASES, FP32, POISON, error, golden, random_call

import depthchart_kernels as dk
from depthchart_kernels.samples import random_inputs

OPS = ("gated_delta", "kda", "ssd")
WIDTHS = (16, 32, 64, 128, 256)
ODD = [70, 0, 1, 16, 33, 129]
DEPTHS = [
    (0, 0),
    (0, 1),
    (0, 15),
    (0, 16),
    (0, 17),
    (0, 64),
    (0, 70),
    (1, 0),
    (2, 1),
    (5, 63),
    (5, 65),
    (5, 128),
]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("case", CASES)
def test_goldens(case, width):
    call, (rows, output), finals, snapshots = golden(case)
    got, pool = call.run("chunked", width)
    assert error(got[rows], output) < FP32
    assert error(pool[torch.from_numpy(call.plan["final_slots"])], finals) < FP32
    slots = torch.from_numpy(call.plan["snapshots"][:, 2])
    assert error(pool[slots], snapshots) < FP32
    call.check("chunked", width, FP32)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("gate", ["mild", "none", "harsh", "erase", "mixed"])
@pytest.mark.parametrize("op", OPS)
def test_gates(op, gate, width):
    call = random_call(op, ODD, gate=gate, snapshots=DEPTHS, seed=width)
    call.check("chunked", width, FP32)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("steep", [0.01, 0.3], ids=["few blocks", "most blocks"])
def test_kda_blocks_that_decay_too_far_to_divide_by(steep, width):
    """Blocks of 8 tokens in which a channel falls by more than 58 bits, beside blocks where none does."""
    call = random_call("kda", [300, 40], snapshots=[(0, 100), (0, 255), (1, 32)], k=32, v=16)
    r = torch.Generator().manual_seed(width)
    g = call.tensors["g"]
    g[torch.rand(g.shape[:2], generator=r) < steep] = -30.0
    g[:, :, ::4] = -1e-4  # channels that remember everything
    call.check("chunked", width, FP32)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("op", OPS[:2])
def test_nearly_parallel_keys_and_beta_near_one(op, width):
    call = random_call(
        op, [260, 33], gate="none", parallel=True, snapshots=[(0, 100), (0, 255), (1, 32)], k=32
    )
    call.check("chunked", width, FP32)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("op", OPS)
def test_bf16(op, width):
    call = random_call(op, ODD, snapshots=DEPTHS, k=32, v=48)
    call.check("chunked", width, BF16, dtype=torch.bfloat16)


@pytest.mark.parametrize("op", OPS)
def test_long_sequence_beside_short_ones(op):
    call = random_call(
        op, [3, 1300, 40], gate="mild", snapshots=[(1, 512), (1, 513), (1, 1299), (1, 1), (2, 7)]
    )
    call.check("chunked", 32, FP32)


@settings(max_examples=25, deadline=None)
@given(
    op=st.sampled_from(OPS),
    lengths=st.lists(st.integers(0, 80), min_size=1, max_size=5),
    width=st.sampled_from(WIDTHS),
    gate=st.sampled_from(["mild", "harsh", "erase", "mixed"]),
    heads=st.sampled_from([(1, 1), (1, 3), (2, 4)]),
    depths=st.lists(st.tuples(st.integers(0, 4), st.floats(0, 1)), max_size=6),
    seed=st.integers(0, 1000),
)
def test_any_call(op, lengths, width, gate, heads, depths, seed):
    wanted = [(s % len(lengths), int(part * lengths[s % len(lengths)])) for s, part in depths]
    call = random_call(
        op, lengths, heads=heads[0], value_heads=heads[1], gate=gate, snapshots=wanted, seed=seed, k=8, v=5
    )
    call.check("chunked", width, FP32)


@pytest.mark.parametrize("gate", ["mild", "harsh", "erase"])
@pytest.mark.parametrize(("op", "width"), [(op, width) for op in OPS for width in (16, 32, 64, 256)])
def test_snapshot_is_final_state_of_the_run_cut_there_bit_for_bit(op, width, gate):
    total, r = 150, range(0, 151)
    call = random_call(op, [total], gate=gate, snapshots=[(0, d) for d in r], k=32, v=32, seed=width)
    _, pool = call.run("chunked", width)
    for (_, depth, slot), before in zip(call.plan["snapshots"], [call.pool() for _ in r], strict=True):
        tensors = {name: x[:depth] if x.shape[0] == total else x for name, x in call.tensors.items()}
        plan = {"initial_slots": call.plan["initial_slots"], "final_slots": [slot]}
        getattr(dk, op)(*tensors.values(), pool=before, chunk_width=width, impl="chunked", **plan)
        assert torch.equal(before[slot], pool[slot]), f"depth {depth}"


@pytest.mark.parametrize("decay", [0.2, 5.0])
@pytest.mark.parametrize("op", OPS)
def test_bit_for_bit_with_two_threads_at_full_size(op, decay):
    """Sizes at which torch shares one elementwise loop, or one product, between threads."""
    heads, value_dim = (16, 64) if op == "ssd" else (8, 128)
    inputs = random_inputs(op, 300, heads, value_dim=value_dim, decay=decay)
    shape = [heads, value_dim, 128] if op == "ssd" else [heads, 128, value_dim]
    depths = [5, 64, 127, 200, 300]
    before, options = torch.get_num_threads(), {"chunk_width": 64, "impl": "chunked"}
    torch.set_num_threads(2)
    try:
        pool = torch.full([len(depths), *shape], POISON)
        wanted = [(0, d, i) for i, d in enumerate(depths)]
        getattr(dk, op)(*inputs.values(), pool=pool, snapshots=wanted, **options)
        for i, d in enumerate(depths):
            cut = [x[:d] if x.shape[0] == 300 else x for x in inputs.values()]
            final = torch.full([1, *shape], POISON)
            getattr(dk, op)(*cut, pool=final, final_slots=[0], **options)
            assert torch.equal(final[0], pool[i]), f"depth {d}"
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("cuts", [[1], [63, 64], [20, 40, 60, 80], [99]])
def test_segments_with_carried_state_equal_one_pass(op, cuts):
    call = random_call(op, [100], gate="mild")
    whole, pool = call.run("reference", pool=call.pool(torch.float64))
    carried, slot = call.pool(), int(call.plan["initial_slots"][0])
    rows = []
    for a, b in zip([0, *cuts], [*cuts, 100], strict=True):
        tensors = {name: x[a:b] if x.shape[0] == 100 else x for name, x in call.tensors.items()}
        options = {"initial_slots": [slot], "final_slots": [slot], "chunk_width": 32}
        rows.append(getattr(dk, op)(*tensors.values(), pool=carried, **options))
    assert error(torch.cat(rows), whole) < FP32
    assert error(carried[slot], pool[int(call.plan["final_slots"][0])], 0) < FP32


@pytest.mark.parametrize("op", OPS)
def test_seventy_thousand_sequences(op):
    """One-token sequences beside some longer ones; the wanted states are one token in closed form."""
    lengths = [1] * 69_990 + [5] * 10
    call = random_call(op, lengths, heads=1, value_heads=1, k=8, v=4, initial=False)
    got, pool = call.run("chunked", 16)
    t, ones = call.tensors, slice(0, 69_990)
    if op == "ssd":
        write = (t["dt"][..., None] * t["x"])[ones, :, :, None] * t["b"][ones, :, None]
        want = (write * t["c"][ones, :, None]).sum(-1) + t["d"][:, None] * t["x"][ones]
    else:
        write = t["k"][ones, :, :, None] * (t["beta"][..., None] * t["v"])[ones, :, None]
        want = 8**-0.5 * (t["q"][ones, :, :, None] * write).sum(-2)
    assert error(got[ones], want) < FP32
    assert error(pool[torch.from_numpy(call.plan["final_slots"])[ones]], write) < FP32


def test_pool_offsets_beyond_int32_and_strided_slots():
    """Slots 70,000 elements apart in a pool of 2.4e9; only the touched pages of it are ever backed by memory."""
    call = random_call("gated_delta", [20], heads=1, value_heads=1, snapshots=[(0, 7)], initial=False)
    shape = call.initial.shape[1:]
    far = torch.empty([34_000, 70_000], dtype=torch.float32)[:, : shape.numel()].unflatten(1, shape[0:])
    call.plan |= {"final_slots": [33_999], "snapshots": [(0, 7, 33_500)]}
    call.slots = 34_000
    call.run("chunked", 16, pool=far)
    small = call.pool(torch.float64)
    call.run("reference", pool=small)
    for slot in (33_999, 33_500):
        assert error(far[slot], small[slot], 0) < FP32
    assert float(small[0, 0, 0, 0]) == POISON
