"""Public faults of chunked scans, each at the sizes of its thread; the ids are those of ``data/cases/kernels.toml``.

The wanted values come from the token-by-token float64 reference, or from the same text run without the cut.
"""

import pytest
import torch
from kernel_support import FP32, error, random_call

import depthchart_kernels as dk

OPS = ("gated_delta", "kda", "ssd")


def part(call, begin, end):
    """The operands of the tokens [begin, end) of a call."""
    total = int(call.plan["cu_seqlens"][-1])
    return [x[begin:end] if x.shape[0] == total else x for x in call.tensors.values()]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("segments", [2, 5], ids=lambda n: f"{n}-segments")
def test_fla_494_segments_with_the_carried_state_equal_one_pass(op, segments):
    call = random_call(op, [300], gate="mild", k=8, v=8)
    whole, right = call.run("reference", pool=call.pool(torch.float64))
    pool, slot, rows = call.pool(), int(call.plan["initial_slots"][0]), []
    size = 300 // segments
    for at in range(0, 300, size):
        plan = {"initial_slots": [slot], "final_slots": [slot], "chunk_width": 64}
        rows.append(getattr(dk, op)(*part(call, at, at + size), pool=pool, **plan))
    assert error(torch.cat(rows), whole) < FP32
    assert error(pool[slot], right[int(call.plan["final_slots"][0])], 0) < FP32


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("width", [16, 32, 64, 128, 256])
def test_fla_1104_chunks_of_48_under_every_tile(op, width):
    """Requests and snapshots every 48 tokens, which no legal width divides. A width of 48 itself is refused. Every slot
    that nothing writes is poisoned before the call and must stay so (``Call.check``)."""
    depths = [(0, 47), (0, 48), (0, 49), (0, 96), (0, 144), (1, 48), (2, 64)]
    call = random_call(op, [150, 48, 65], k=8, v=8, snapshots=depths)
    call.check("chunked", width, FP32)
    with pytest.raises(ValueError, match="chunk_width is 48"):
        call.run("chunked", 48)


@pytest.mark.parametrize("op", OPS)
def test_fla_122_strong_decay_over_a_long_text(op):
    """Log decays to -40 a token: over 2048 tokens products underflow, and quotients of them would be NaN."""
    call = random_call(op, [2048], gate="harsh", heads=1, value_heads=1, k=8, v=8, snapshots=[(0, 1000)])
    call.check("chunked", 64, FP32)


@pytest.mark.parametrize("op", OPS)
def test_vllm_23279_a_cut_off_the_chunk_changes_nothing(op):
    """1000 tokens cut at 300, with chunks of 256: 300 is no chunk end, and another sequence is packed before it."""
    call = random_call(op, [1000], gate="mild", k=8, v=8, initial=False)
    whole, right = call.run("reference", pool=call.pool(torch.float64))
    slot = int(call.plan["final_slots"][0])
    pool = call.pool()
    start = {"cu_seqlens": [0, 300], "initial_slots": [-1], "final_slots": [slot], "chunk_width": 256}
    first = getattr(dk, op)(*part(call, 0, 300), pool=pool, **start)
    packed = [
        torch.cat([x[:77], x[300:]]) if x.shape[0] == 1000 else x for x in call.tensors.values()
    ]  # 77 tokens of another request in front
    plan = {
        "cu_seqlens": [0, 77, 777],
        "initial_slots": [-1, slot],
        "final_slots": [-1, slot],
        "chunk_width": 256,
    }
    second = getattr(dk, op)(*packed, pool=pool, **plan)[77:]
    assert error(torch.cat([first, second]), whole) < FP32
    assert error(pool[slot], right[slot], 0) < FP32


@pytest.mark.parametrize("op", OPS)
def test_sglang_33450_packed_requests_have_grids_of_their_own(op):
    """500, 700 and 900 packed tokens with chunks of 128: the last grid points of the requests are the flat positions
    384, 1140 and 2096, and not 384, 1024 and 1920, the grid of the whole batch."""
    lengths, depths = [500, 700, 900], [384, 640, 896]
    starts = [0, 500, 1200]
    assert [a + d for a, d in zip(starts, depths, strict=True)] == [384, 1140, 2096]
    call = random_call(op, lengths, k=8, v=8, snapshots=list(enumerate(depths)), initial=False)
    _, pool = call.run("chunked", 128)
    for (at, depth, slot), begin in zip(call.plan["snapshots"], starts, strict=True):
        alone = call.pool(torch.float64)
        plan = {"initial_slots": [-1], "final_slots": [slot], "impl": "reference"}
        getattr(dk, op)(*part(call, begin, begin + depth), pool=alone, **plan)
        assert error(pool[slot], alone[slot], 0) < FP32, f"request {at}"


@pytest.mark.parametrize("op", OPS)
def test_sglang_35086_a_depth_is_no_entry_of_a_chunk_array(op):
    """Offset 768 of 1024 tokens is the state of 768 tokens, whether the kernel packs by 64 (entry 12) or 128 (6)."""
    call = random_call(op, [1024], heads=1, value_heads=1, k=8, v=8, snapshots=[(0, 768), (0, 384)])
    for width in (64, 128):
        call.check("chunked", width, FP32)
    _, pool = call.run("chunked", 128)
    at_768, at_384 = (slot for _, _, slot in call.plan["snapshots"])
    assert error(pool[at_384], pool[at_768], 0) > 0.1, "the wrong entry would be noticed"
